import dataclasses
import signal
import subprocess
import sys
import time

import pytest

from luthier.data import (
    Bytes,
    Decoded,
    Documents,
    Field,
    JsonObject,
    Source,
    plan_layout,
    prepare,
    survey,
)
from luthier.errors import DataError, Problem

TEXTS = [f"document {number} " * (number % 9) for number in range(60)]


@dataclasses.dataclass(frozen=True)
class Flawed(Source):
    """Documents of which some cannot be read."""

    bad: tuple[int, ...] = ()

    def __repr__(self):
        return "Flawed()"

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index in self.bad:
            raise DataError(Problem(f"file.bin: record {index} is damaged"))
        return TEXTS[index].encode()

    def name(self, index):
        return f"record {index}"


def run(source, directory, shards=7, processes=1, report=None, tokenizer=None):
    tokenizer = tokenizer or Bytes()
    layout = plan_layout(source, tokenizer, survey(Documents(TEXTS), Bytes()), shards)
    return prepare(
        source, tokenizer, str(directory), layout, num_processes=processes, report=report
    )


def files(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.full
def test_the_shards_are_the_same_for_any_number_of_processes(tmp_path):
    source = Documents(TEXTS)
    manifests = [run(source, tmp_path / f"{n}", processes=n) for n in (1, 2)]
    assert manifests[0] == manifests[1]
    assert files(tmp_path / "1") == files(tmp_path / "2")
    assert manifests[0]["documents"] == 60
    assert manifests[0]["bytes"] == sum(map(len, TEXTS))
    assert len(manifests[0]["shards"]) == 7


def test_it_goes_on_where_it_ended(tmp_path):
    with pytest.raises(DataError) as error:
        run(Flawed((20, 21, 50)), tmp_path / "a")
    assert [problem.what for problem in error.value.problems] == [
        f"file.bin: record {index} is damaged" for index in (20, 21, 50)
    ]
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "a").glob("shard-*")}
    assert len(before) == 5
    (tmp_path / "a" / ".partial-shard-00002-1").mkdir()
    reports = []
    run(
        Flawed(), tmp_path / "a", report=lambda entry, there: reports.append((entry["name"], there))
    )
    assert [name for name, there in reports if there] == sorted(before)
    assert all((tmp_path / "a" / name).stat().st_mtime_ns == t for name, t in before.items())
    run(Flawed(), tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.full
def test_errors_of_other_processes_are_reported(tmp_path):
    lines = ["{}" if index == 20 else '{"text": "a"}' for index in range(60)]
    source = Field(Decoded(Documents(lines), JsonObject()))
    with pytest.raises(DataError, match="document 21: no field 'text'"):
        run(source, tmp_path, processes=2)


KILLED = """
import dataclasses, sys, time
from luthier.data import Bytes, Documents, plan_layout, prepare, survey

@dataclasses.dataclass(frozen=True)
class Slow(Documents):
    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)

texts = [f"document {number} " * (number % 9) for number in range(60)]
layout = plan_layout(Documents(texts), Bytes(), survey(Documents(texts), Bytes()), 7)
prepare(Slow(texts), Bytes(), sys.argv[1], layout)
"""


def test_killed_and_begun_again(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "a")])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("a/shard-00001")) and time.monotonic() < deadline:
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert 2 <= len(list(tmp_path.glob("a/shard-*"))) < 7
    assert not (tmp_path / "a" / "manifest.json").exists()
    source = Documents(TEXTS)
    for name in "ab":
        layout = plan_layout(source, Bytes(), survey(source, Bytes()), 7)
        prepare(source, Bytes(), str(tmp_path / name), layout)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_folders_that_hold_something_else(tmp_path):
    run(Documents(TEXTS), tmp_path / "a")
    with pytest.raises(DataError, match="holds shards of another number of documents or shards"):
        run(Documents(TEXTS), tmp_path / "a", shards=6)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("")
    with pytest.raises(DataError, match=r"is not empty: thesis\.txt"):
        run(Documents(TEXTS), tmp_path / "b")
    with pytest.raises(DataError, match="cannot be written"):
        run(Documents(TEXTS), tmp_path / "b" / "thesis.txt" / "c")
