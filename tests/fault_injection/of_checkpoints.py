"""Faults of what is saved: torn, flipped, cut and deleted files."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import time
from collections.abc import Callable

from injecting import injection, resumed
from staging import EVERY, Outcome, Stage, Truths, compare


def _interrupted(stage: Stage) -> None:
    """Train until there are two checkpoints, and leave."""
    stage.slow()
    started = stage.start()
    stage.until_saved(2 * EVERY, started)
    started.send(signal.SIGTERM)
    assert started.wait() == 75


def _checkpoint(stage: Stage, place: int = -1) -> pathlib.Path:
    return stage.run / "checkpoints" / str(stage.saved()[place])


def _biggest(folder: pathlib.Path) -> pathlib.Path:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def _flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _damaged(
    stage: Stage, truths: Truths, damage: Callable[[pathlib.Path], object], word: str
) -> Outcome:
    _interrupted(stage)
    good, bad = stage.saved()[-2:]
    reached = stage.last_step()
    damage(_checkpoint(stage))
    stage.hurry()
    since = time.monotonic()
    started = stage.start()
    stage.until(lambda: word in stage.notices(), started)
    seconds = time.monotonic() - since
    assert started.wait() == 0
    (notice,) = [line for line in stage.notices().splitlines() if "is damaged" in line]
    assert f"checkpoints/{bad} is damaged: " in notice
    assert notice.endswith(f"resuming from step {good}"), notice
    assert stage.began() == good
    agreed = compare(stage, truths.of(stage.processes))
    detected = f'its checksum ("{word} ..."); resumes from the previous one'
    return Outcome(detected, seconds, reached - good, agreed)


@injection("a bit flipped in an array", 1, 2, 4)
def flipped_bit(stage: Stage, truths: Truths) -> Outcome:
    return _damaged(stage, truths, lambda at: _flip(_biggest(at / "arrays")), "differs from what")


@injection("an array file cut short")
def cut_short(stage: Stage, truths: Truths) -> Outcome:
    def cut(at: pathlib.Path) -> None:
        os.truncate(_biggest(at / "arrays"), 7)

    return _damaged(stage, truths, cut, "has 7 bytes")


@injection("a shard deleted", 1, 2)
def deleted_shard(stage: Stage, truths: Truths) -> Outcome:
    return _damaged(stage, truths, lambda at: _biggest(at / "arrays").unlink(), "is missing")


@injection("a bit flipped in the commit file")
def flipped_commit(stage: Stage, truths: Truths) -> Outcome:
    return _damaged(stage, truths, lambda at: _flip(at / "commit.json"), "commit.json cannot be")


@injection("the state of the data iterator deleted")
def deleted_iterator(stage: Stage, truths: Truths) -> Outcome:
    return _damaged(stage, truths, lambda at: shutil.rmtree(at / "iterator"), "is missing")


@injection("a checkpoint torn by a crash of the machine", 1, 2)
def torn(stage: Stage, truths: Truths) -> Outcome:
    _interrupted(stage)
    good = stage.saved()[-2]
    reached = stage.last_step()
    path = _checkpoint(stage)
    (path / "commit.json").unlink()
    os.truncate(_biggest(path / "arrays"), 0)
    since = time.monotonic()
    outcome = resumed(stage, truths, "no commit file: not treated as a checkpoint", 0.0)
    assert stage.began() == good
    return Outcome(outcome.detected, time.monotonic() - since, reached - good, outcome.restart)


@injection("all checkpoints damaged")
def all_damaged(stage: Stage, truths: Truths) -> Outcome:
    _interrupted(stage)
    before = stage.losses()
    for place in range(len(stage.saved())):
        _flip(_biggest(_checkpoint(stage, place) / "arrays"))
    since = time.monotonic()
    refused = stage.train(code=2)
    seconds = refused.ended_at - since
    lines = refused.stderr.splitlines()
    assert len(lines) == len(stage.saved()) == 2
    assert all("is damaged: arrays/" in line for line in lines)
    assert stage.losses() == before, "nothing is lost"
    # Mended, as from a backup, it goes on.
    for place in range(len(stage.saved())):
        path = _biggest(_checkpoint(stage, place) / "arrays")
        _flip(path)
    return resumed(stage, truths, "exit code 2, a line for each; nothing written", seconds)


@injection("status.json deleted")
def no_status(stage: Stage, truths: Truths) -> Outcome:
    _interrupted(stage)
    (stage.run / "status.json").unlink()
    return resumed(stage, truths, "not needed: the directories are searched", 0.0)


@injection("status.json torn")
def torn_status(stage: Stage, truths: Truths) -> Outcome:
    return _torn_file(stage, truths, "status.json", "/status.json is damaged: ")


@injection("config.json torn")
def torn_config(stage: Stage, truths: Truths) -> Outcome:
    message = "cannot be continued: its config.json cannot be loaded; restore that file, or start"
    return _torn_file(stage, truths, "config.json", message)


def _torn_file(stage: Stage, truths: Truths, name: str, words: str) -> Outcome:
    _interrupted(stage)
    path = stage.run / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    since = time.monotonic()
    refused = stage.train(code=2)
    seconds = refused.ended_at - since
    assert words in refused.stderr.splitlines()[0], refused.stderr
    assert "Traceback" not in refused.stderr
    path.write_bytes(whole)
    return resumed(stage, truths, "exit code 2, one line that names it", seconds)


@injection("metrics.jsonl with a torn last line", 1, 2)
def torn_metrics(stage: Stage, truths: Truths) -> Outcome:
    _interrupted(stage)
    with (stage.run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "step", "step": 99, "val')
    return resumed(stage, truths, "cut off at the restart", 0.0)


@injection("metrics.jsonl with a corrupt line in the middle")
def garbled_metrics(stage: Stage, truths: Truths) -> Outcome:
    _interrupted(stage)
    path = stage.run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines.insert(len(lines) // 2, b"\x00\xff{nonsense")
    path.write_bytes(b"\n".join(lines))
    return resumed(stage, truths, "readers skip the line", 0.0)
