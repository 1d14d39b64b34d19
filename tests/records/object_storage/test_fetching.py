import random
import re
import time

import pytest

from luthier.errors import RunError
from luthier.records.object_storage import (
    Bucket,
    Mirror,
    bring_back,
    fetch,
    open_below,
)
from tests import object_stores


@pytest.fixture
def copied(run, bucket, save):
    """Return the files of a run that is copied, as its copy should give them back."""
    save(10, "old")
    save(20, "new")
    made = Mirror(run, bucket, print)
    made.close()
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    del files["lock"]
    return {name: path.read_bytes() for name, path in files.items()}


def _files(place):
    paths = [path for path in place.rglob("*") if path.is_file()]
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in paths}


def test_a_run_comes_back_as_it_was(copied, bucket, tmp_path):
    place = tmp_path / "elsewhere" / "lab" / "ab12"
    assert fetch(place, bucket)
    assert _files(place) == copied
    assert not fetch(place, bucket), "it is there already"
    assert [path.name for path in place.parent.iterdir()] == ["ab12"]


def test_half_a_checkpoint_stays_where_it_is(copied, bucket, tmp_path):
    bucket.delete("checkpoints/20/commit.json")
    place = tmp_path / "elsewhere" / "lab" / "ab12"
    assert fetch(place, bucket)
    assert _files(place) == {n: b for n, b in copied.items() if "/20/" not in n}


def test_where_there_is_no_copy_nothing_is_made(bucket, tmp_path):
    assert not fetch(tmp_path / "elsewhere" / "lab" / "ab12", bucket)
    assert not (tmp_path / "elsewhere").exists()


def test_what_the_disk_refuses_is_one_line_and_leaves_nothing(copied, bucket, tmp_path):
    (tmp_path / "elsewhere").write_text("")
    with pytest.raises(RunError, match=r"^cannot create .*: Not a directory"):
        fetch(tmp_path / "elsewhere" / "lab" / "ab12", bucket)


def test_the_environment_says_where_the_copy_is(copied, run, tmp_path, monkeypatch):
    place = tmp_path / "elsewhere" / "lab" / "ab12"
    monkeypatch.delenv("LUTHIER_MIRROR", raising=False)
    assert not bring_back(place)
    monkeypatch.setenv("LUTHIER_MIRROR", f"file://{tmp_path}/empty")
    assert not bring_back(place)


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("{up}/.profile", "it leads to another folder"),
        ("checkpoints/20/{up}/.profile", "it leads to another folder"),
        ("{root}/home/.profile", "it is absolute"),
        ("a//b", "a part of it is empty"),
        ("a/./b", "it leads to another folder"),
        ("folder/", "a part of it is empty"),
        ("..\\\\.profile", "it has a backslash"),
        ("C:/profile", "it names a drive"),
        ("a\x1b]0;title\x07", "it has control characters"),
        ("a\u202eb", "it has control characters"),
        ("wandb/settings", "it is of the machine that writes it only"),
    ],
)
def test_no_object_is_written_outside_the_run(key, fault, tmp_path, monkeypatch, capsys):
    """Whoever may write to the bucket does not own the machines that resume runs from it."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    monkeypatch.setenv("HOME", str(home))
    place = project / "runs" / "lab" / "ab12"
    key = key.format(up="../../../../home", root=tmp_path)
    objects = {"runs/lab/ab12/config.json": b"{}", f"runs/lab/ab12/{key}": b"evil"}
    objects |= {"runs/lab/ab12/checkpoints/20/commit.json": b"{}"}
    with object_stores.serving({"bucket": objects}) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("LUTHIER_MIRROR", "gs://bucket/runs")
        with pytest.raises(RunError) as refusal:
            bring_back(place)
    assert refusal.value.exit_code == 2
    assert str(refusal.value) == (
        f"gs://bucket/runs/lab/ab12/ is not a copy of a run: it has an object {key!r}: {fault}; "
        "nothing was copied; see who writes to that bucket, and delete the object"
    )
    assert sorted(tmp_path.rglob("*")) == [home, project]


def test_no_link_on_the_way_is_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "folder" / "a").symlink_to(tmp_path / "home")
    (tmp_path / "folder" / "b").symlink_to(tmp_path / "home" / "new")
    for key in ("a/file", "b", "b/file"):
        with pytest.raises(OSError):
            open_below(tmp_path / "folder", key)
    assert not list((tmp_path / "home").iterdir())
    with open_below(tmp_path / "folder", "c/d/file") as file:
        file.write(b"right")
    assert (tmp_path / "folder" / "c" / "d" / "file").read_bytes() == b"right"


def _until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("scheme", ["gs", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_slow_line_copies_large_files_and_a_stalled_one_resumes(
    scheme, run, save, tmp_path, monkeypatch
):
    """The time limit is one on progress: the whole file takes longer than it on this line."""
    monkeypatch.setattr("luthier.storage.segments.WHOLE_BYTES", 1 << 16)
    monkeypatch.setattr("luthier.records.object_storage.mirror.PUSH_SECONDS", 3600.0)
    save(20, random.Random(0).randbytes(300_000).hex())
    lines, stored, stalled, size = [], {}, [], 600_000

    def stalls(key):  # once half of it is there
        is_piece = "/array.pieces/0" in key
        if is_piece and len(stalled) == 0 and sum("/array.pieces/" in key for key in stored) == 4:
            stalled.append(key)
            return True
        return False

    rate, stall_seconds = 200_000, 2.0
    assert size / rate > stall_seconds
    with object_stores.serving({"lab": stored}, rate, stalls) as (address, requests):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        bucket = Bucket(f"{scheme}://lab/ab12", stall_seconds)
        made = Mirror(run, bucket, lines.append)
        _until(lambda: lines)
        (line,) = lines
        assert re.fullmatch(
            rf"{scheme}://lab/ab12/checkpoints/20/state/array\.pieces/\S+: no answer in 2 s; "
            "wait until the store responds again, or check the network; training continues, and "
            "the copy is retried",
            line,
        )
        there = {key for key in stored if "/array.pieces/" in key}
        assert "ab12/checkpoints/20/commit.json" not in stored
        requests.clear()
        made.close()
        assert len(there) == 4
        assert not [p for p in requests if any(key.split("/")[-1] in p for key in there)], "again"
        assert max(map(len, stored.values())) <= 1 << 16
        place = tmp_path / "elsewhere" / "lab" / "ab12"
        assert fetch(place, bucket)
        damaged = next(iter(there))
        stored[damaged] = b"x" + stored[damaged][1:]
        with pytest.raises(RunError, match=r"array: the copy is damaged: piece \d+-\d+-"):
            fetch(tmp_path / "again" / "lab" / "ab12", bucket)
    assert _files(place) == {n: b for n, b in _files(run).items() if n != "lock"}
