from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import subprocess
import sys

import pytest

from luthier.checkpoint import Commit
from luthier.checkpoint import commit as commit_lib
from luthier.errors import CheckpointError, VersionError

COMMIT = Commit(
    step=7,
    arrays={"parameters/a.b": ((2, 3), "float32"), "step": ((), "int32")},
    extra={"best": float("inf"), "nested": {"list": [1, None, "x"]}},
    metrics={"held_out/loss": 1.5},
    versions={"jax": "1"},
    has_iterator=True,
)


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "7"
    (directory / "d").mkdir(parents=True)
    (directory / "d" / "data").write_bytes(bytes(range(256)) * 100)
    (directory / "empty").touch()
    return directory


def test_what_is_written_is_read(checkpoint):
    written = commit_lib.write(checkpoint, COMMIT)
    assert commit_lib.read(checkpoint) == written
    assert dataclasses.replace(written, files={}) == COMMIT
    assert set(written.files) == {"d/data", "empty"}
    assert commit_lib.check(checkpoint, written) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "d/data is missing"),
        (lambda path: path.write_bytes(b"x"), "d/data has 1 bytes, not 25600"),
        (lambda path: path.write_bytes(bytes(25600)), "d/data differs"),
    ],
)
def test_damage_is_named(checkpoint, damage, message):
    commit = commit_lib.write(checkpoint, COMMIT)
    damage(checkpoint / "d" / "data")
    (found,) = commit_lib.check(checkpoint, commit)
    assert message in found


def test_every_flipped_bit_of_the_commit_file_is_found(checkpoint):
    commit_lib.write(checkpoint, COMMIT)
    file = checkpoint / commit_lib.FILE
    content = file.read_bytes()
    whole = commit_lib.read(checkpoint)
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        # White space may change without changing anything.
        with contextlib.suppress(CheckpointError):
            assert commit_lib.read(checkpoint) == whole


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"checksum": 0}', "null", "\x00"])
def test_nonsense_is_a_clear_error(checkpoint, text):
    (checkpoint / commit_lib.FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"commit\.json cannot be read"):
        commit_lib.read(checkpoint)


def test_a_later_format_asks_for_an_update(checkpoint):
    commit_lib.write(checkpoint, COMMIT)
    content = json.loads((checkpoint / commit_lib.FILE).read_text())
    del content["checksum"]
    content["format"] = 99
    content["checksum"] = commit_lib._text_checksum(content)
    (checkpoint / commit_lib.FILE).write_text(json.dumps(content))
    with pytest.raises(VersionError, match="another version"):
        commit_lib.read(checkpoint)


# An error of one process is raised in all of them; two real processes save together.


PROCESS = """
import errno, json, os, re, sys, time
import jax
index, address, directory = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(address, 2, index)
import numpy as np
from luthier.checkpoint import Store, commit, files
from luthier.errors import CheckpointError

mesh = jax.make_mesh((2,), ("data",))
sharding = jax.NamedSharding(mesh, jax.P("data"))
array = jax.make_array_from_callback((4,), sharding, lambda at: np.arange(4.0)[at])
write, checksum = commit.write, files.DiskFiles.checksum
read = set()

def spy(self, name, sync=False):
    if re.fullmatch(r"1(\\.saving-\\w+)?", self._path.name):
        read.add(name)
    return checksum(self, name, sync)

files.DiskFiles.checksum = spy

def slowly(path, content, sums):
    if content.step == 2:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    time.sleep(1.0)
    return write(path, content, sums)

commit.write = slowly
outcomes = {}
for again in range(2):  # a second store of the same directory starts again
    read.clear()
    with Store(directory) as store:
        for step in (1, 2, 3):
            store.save(step, {"a": array})
            try:
                store.wait()
            except CheckpointError as error:
                outcomes[step] = str(error)
            else:
                outcomes[step] = os.path.exists(f"{directory}/{step}/commit.json")
print(json.dumps([outcomes, sorted(read)]), flush=True)
"""


@pytest.mark.full
@pytest.mark.timeout(180)
def test_all_wait_for_the_commit_and_raise_what_it_fails_over(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    directory = str(tmp_path / "checkpoints")
    command = [sys.executable, "-c", PROCESS]
    processes = [
        subprocess.Popen([*command, str(i), address, directory], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    ends = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    outcomes, read = zip(*ends, strict=True)
    full = (
        f"{directory}: step 2 was not saved: the disk is full; free some space and rerun the "
        "command: it continues from step {}"
    )
    assert outcomes[0] == outcomes[1] == {"1": True, "2": full.format(3), "3": True}
    # Each process reads back the files that it wrote, and the primary what was merged from them.
    files = commit_lib.read(tmp_path / "checkpoints" / "1").files
    assert sorted([*read[0], *read[1]]) == sorted(files)
    assert read[1]
    assert all("process_1" in path for path in read[1])
    assert not any("process_1" in path for path in read[0])


class _Answered:
    """Rounds of a process that receives `answer` from the primary; None asks it, as the primary."""

    def __init__(self, others, answer=None):
        self.others, self.answer, self.sent = others, answer, []

    def exchange(self, mine, decide):
        self.sent.append(mine)
        return decide([mine, *self.others]) if self.answer is None else self.answer


class _Pending:
    def __init__(self, error=None):
        self.error = error

    def result(self):
        if self.error is not None:
            raise self.error


SUMS = {"arrays/ocdbt.process_0/manifest.ocdbt": (113, 7)}
THEIRS = {"arrays/ocdbt.process_1/manifest.ocdbt": (114, 8)}


def _finish(rounds, pending, commit=lambda sums: None):
    commit_lib.finish(
        pending,
        rounds,
        seal=lambda: SUMS,
        commit=commit,
        summarize=lambda error: (f"reported: {error}", 75),
    )


def test_the_primary_commits_what_all_have_written():
    committed = []
    _finish(_Answered([(None, THEIRS)]), _Pending(), committed.append)
    assert committed == [SUMS | THEIRS]


def test_nothing_is_committed_that_one_process_has_not_written():
    committed = []
    with pytest.raises(CheckpointError, match=r"^the other has no room$") as failed:
        _finish(_Answered([(("the other has no room", 2), {})]), _Pending(), committed.append)
    assert failed.value.exit_code == 2
    rounds = _Answered([(None, {})])
    with pytest.raises(OSError, match=r"^mine$"):
        _finish(rounds, _Pending(OSError("mine")), committed.append)
    assert rounds.sent == [(("reported: mine", 75), {})]
    assert not committed


def test_a_commit_that_fails_is_raised_here_and_reported_elsewhere():
    def refuse(sums):
        raise OSError("no room")

    answers = []

    class Rounds(_Answered):
        def exchange(self, mine, decide):
            answers.append(super().exchange(mine, decide))
            return answers[0]

    with pytest.raises(OSError, match=r"^no room$"):
        _finish(Rounds([(None, {})]), _Pending(), refuse)
    assert answers == [("reported: no room", 75)]
    with pytest.raises(CheckpointError, match=r"^reported: no room$") as failed:
        _finish(_Answered([], answer=answers[0]), _Pending())
    assert failed.value.exit_code == 75, "all processes of a run end with one exit code"
