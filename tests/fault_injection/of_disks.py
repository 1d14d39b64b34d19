"""Faults of disks: full, out of inodes, read-only, limited, and shared by two runs."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator

from injecting import Unstageable, injection, resumed
from staging import EVERY, Outcome, Stage, Truths, compare


@contextlib.contextmanager
def disk(stage: Stage, *options: str) -> Iterator[pathlib.Path]:
    """Mount a small disk at the place of the runs."""
    with mounted(stage.folder / "runs", *options) as place:
        yield place


@contextlib.contextmanager
def mounted(place: pathlib.Path, *options: str) -> Iterator[pathlib.Path]:
    """Mount a small disk."""
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(["size=8m", *options]), "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unstageable(f"no disk can be mounted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: pathlib.Path) -> pathlib.Path:
    """Fill a disk to the last byte; return the file to delete."""
    path = place / "filler"
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return path


@injection("the disk is full during a save", 1, 2)
def full_at_save(stage: Stage, truths: Truths) -> Outcome:
    with disk(stage) as place:
        stage.slow()
        started = stage.start()
        stage.until_saved(EVERY, started)
        filler = fill(place)
        since = time.monotonic()
        assert started.wait() == 2
        seconds = started.ended_at - since
        lines = set(started.stderr.splitlines())
        assert any("No space left on device" in x or "the disk is full" in x for x in lines), lines
        assert any("free " in line and "rerun" in line for line in lines), lines
        saved = max(stage.saved())
        filler.unlink()
        outcome = resumed(
            stage, truths, "exit code 2, one line; saved checkpoints are kept", seconds
        )
        assert stage.began() == saved
        return outcome


@injection("the disk is full during logging, and free again before the next save")
def full_at_logging(stage: Stage, truths: Truths) -> Outcome:
    rare = "checkpoints.every.count=50"
    with disk(stage) as place:
        stage.slow(0.1)
        started = stage.start(rare)
        stage.until_step(5, started)
        filler = fill(place)
        since = time.monotonic()
        time.sleep(2)
        filler.unlink()
        stage.until(lambda: "wait in memory" in stage.notices(), started)
        seconds = time.monotonic() - since
        stage.hurry()
        assert started.wait() == 0
        assert "can be written again; nothing is lost" in stage.notices()
        agreed = compare(stage, truths.of(1, rare))
        return Outcome("a notice; records wait in memory, training continues", seconds, 0, agreed)


@injection("the disk has no inodes left")
def no_inodes(stage: Stage, truths: Truths) -> Outcome:
    with disk(stage, "nr_inodes=400") as place:
        stage.slow()
        started = stage.start()
        stage.until_saved(EVERY, started)
        taken = []
        with contextlib.suppress(OSError):
            for number in range(10_000):
                path = place / f"filler-{number}"
                path.touch()
                taken.append(path)
        since = time.monotonic()
        assert started.wait() == 2
        seconds = started.ended_at - since
        assert "the disk is full" in started.stderr, started.stderr
        for path in taken:
            path.unlink()
        return resumed(stage, truths, "exit code 2, one line", seconds)


@injection("the disk turns read-only", 1, 2)
def read_only(stage: Stage, truths: Truths) -> Outcome:
    with disk(stage) as place:
        stage.slow()
        started = stage.start()
        stage.until_saved(EVERY, started)
        # What is open for writing keeps a disk from turning read-only, but not a mount above it.
        for words in (["--bind", str(place)], ["-o", "remount,ro,bind"]):
            subprocess.run(["mount", *words, str(place)], check=True)
        since = time.monotonic()
        assert started.wait() == 2
        seconds = started.ended_at - since
        subprocess.run(["umount", "-l", str(place)], check=True)
        assert "Read-only file system; " in started.stderr, started.stderr
        return resumed(stage, truths, "exit code 2, one line", seconds)


@injection("the directory is read-only at the start", 1, 2)
def read_only_at_start(stage: Stage, truths: Truths) -> Outcome:
    with disk(stage, "ro"):
        started = stage.train(code=2)
        (line,) = set(started.stderr.splitlines())
        assert "Read-only file system; choose a writable place with records.directory=PATH" in line
    (stage.folder / "runs").rmdir()
    stage.train()
    seconds = started.ended_at - started.began_at
    agreed = compare(stage, truths.of(stage.processes))
    return Outcome("exit code 2, one line; nothing written", seconds, 0, agreed)


@injection("files may not grow beyond a limit (ulimit -f)")
def file_limit(stage: Stage, truths: Truths) -> Outcome:
    since = time.monotonic()
    started = stage.train(code=2, limits={"RLIMIT_FSIZE": 20_000})
    seconds = started.ended_at - since
    assert "File too large" in started.stderr, started.stderr
    stage.train()
    agreed = compare(stage, truths.of(1))
    return Outcome("exit code 2, one line", seconds, 0, agreed)


@injection("two runs on one directory", 1, 2)
def two_runs(stage: Stage, truths: Truths) -> Outcome:
    stage.slow(1.0)
    first = stage.start("checkpoints.every.count=2")
    stage.until_saved(2, first)
    second = stage.train("checkpoints.every.count=2", code=2)
    seconds = second.ended_at - second.began_at
    (line,) = set(second.stderr.splitlines())
    assert "is being written by process" in line, line
    assert "wait for it, or stop it with `kill " in line
    stage.hurry()
    assert first.wait() == 0
    agreed = compare(stage, truths.of(stage.processes, "checkpoints.every.count=2"))
    return Outcome("the second is refused, exit code 2", seconds, 0, agreed)


@injection("the folder of the checkpoints is deleted")
def deleted_checkpoints(stage: Stage, truths: Truths) -> Outcome:
    stage.slow()
    started = stage.start()
    stage.until_saved(EVERY, started)
    since = time.monotonic()
    shutil.rmtree(stage.run / "checkpoints", ignore_errors=True)
    stage.until(lambda: stage.saved(), started)
    seconds = time.monotonic() - since
    stage.hurry()
    assert started.wait() == 0
    return Outcome("the next save creates it again", seconds, 0, compare(stage, truths.of(1)))
