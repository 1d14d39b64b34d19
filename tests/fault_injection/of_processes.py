"""Faults of processes: signals, and processes that are gone, stopped or stuck."""

from __future__ import annotations

import os
import random
import signal
import time

from injecting import injection, resumed
from machine import Started
from staging import EVERY, Outcome, Stage, Truths


def _begun(stage: Stage, step: int, *overrides: str) -> Started:
    """Return a run that takes its time, and has saved and come to a step."""
    stage.slow()
    started = stage.start(*overrides)
    stage.until_saved(EVERY, started)
    stage.until_step(step, started)
    return started


def _left(stage: Stage, truths: Truths, number: int, code: int, whom: str) -> Outcome:
    started = _begun(stage, random.randrange(11, 20))
    since = time.monotonic()
    if whom == "all":
        started.send(number)
    else:
        os.kill(started.children[-1], number)
    assert started.wait() == code
    seconds = started.ended_at - since
    status = stage.status()
    assert status["status"] == {75: "preempted", 130: "interrupted"}[code]
    assert max(stage.saved()) == status["step"] == stage.last_step()
    outcome = resumed(stage, truths, f"exit code {code}, saved at once", seconds)
    assert outcome.lost == 0
    return outcome


@injection("SIGTERM (preemption)", 1, 2, 4)
def sigterm(stage: Stage, truths: Truths) -> Outcome:
    return _left(stage, truths, signal.SIGTERM, 75, "all")


@injection("SIGTERM on one host only", 2, 4)
def sigterm_of_one(stage: Stage, truths: Truths) -> Outcome:
    return _left(stage, truths, signal.SIGTERM, 75, "one")


@injection("SIGINT (Ctrl-C)", 1, 2)
def sigint(stage: Stage, truths: Truths) -> Outcome:
    return _left(stage, truths, signal.SIGINT, 130, "all")


@injection("SIGINT twice (do not save)")
def sigint_twice(stage: Stage, truths: Truths) -> Outcome:
    stage.slow(3)  # so that no step ends, and nothing is saved, between the two
    started = stage.start("checkpoints.every.count=2")
    stage.until_saved(2, started)
    since = time.monotonic()
    started.send(signal.SIGINT)
    time.sleep(0.6)  # within half a second they would count as one
    started.send(signal.SIGINT)
    assert started.wait() == 130
    seconds = started.ended_at - since
    assert stage.status()["message"] == "interrupted twice, not saved"
    return resumed(stage, truths, "exit code 130", seconds, "checkpoints.every.count=2")


@injection("SIGKILL at a random step")
def sigkill(stage: Stage, truths: Truths) -> Outcome:
    started = _begun(stage, random.randrange(11, 40))
    started.send(signal.SIGKILL)
    started.wait()
    outcome = resumed(stage, truths, "at the restart: the lock of a dead process", 0.0)
    assert "took over the lock" in stage.notices()
    assert outcome.lost <= 2 * EVERY
    return outcome


@injection("SIGKILL of all at once", 2)
def sigkill_of_all(stage: Stage, truths: Truths) -> Outcome:
    started = _begun(stage, random.randrange(11, 40))
    for pid in [started.pid, *started.children]:
        os.kill(pid, signal.SIGKILL)
    started.wait()
    outcome = resumed(stage, truths, "at the restart: the lock of a dead process", 0.0)
    assert outcome.lost <= 2 * EVERY
    return outcome


def _one_is_killed(stage: Stage, truths: Truths, index: int) -> Outcome:
    started = _begun(stage, random.randrange(11, 40))
    since = time.monotonic()
    os.kill(started.children[index], signal.SIGKILL)
    assert started.wait() == 1
    seconds = started.ended_at - since
    (line,) = started.stderr.splitlines()
    who = range(stage.processes)[index]
    assert line.startswith(f"luthier: process {who} of {stage.processes} ended (signal 9); the run")
    assert "resume it with: luthier train drilled" in line
    assert seconds < 30
    return resumed(stage, truths, "the launcher names it and ends the others", seconds)


@injection("SIGKILL of one host", 2, 4)
def sigkill_of_one(stage: Stage, truths: Truths) -> Outcome:
    return _one_is_killed(stage, truths, -1)


@injection("SIGKILL of the coordinator", 2)
def sigkill_of_coordinator(stage: Stage, truths: Truths) -> Outcome:
    return _one_is_killed(stage, truths, 0)


@injection("SIGKILL of the launcher", 2)
def sigkill_of_parent(stage: Stage, truths: Truths) -> Outcome:
    started = _begun(stage, 12)
    children = started.children
    since = time.monotonic()
    started.send(signal.SIGKILL)
    started.wait()
    stage.until(lambda: not any(map(_lives, children)), seconds=60)
    seconds = time.monotonic() - since
    status = stage.status()
    assert status["status"] == "preempted", status
    outcome = resumed(stage, truths, "the other processes save and exit", seconds)
    assert outcome.lost == 0, outcome
    return outcome


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@injection("SIGKILL inside a save", 1, 2)
def sigkill_inside_a_save(stage: Stage, truths: Truths) -> Outcome:
    started = _begun(stage, 11)

    def is_saving() -> bool:
        folders = stage.folder.glob("runs/drilled/*/checkpoints/*")
        return any(not (path / "commit.json").exists() for path in folders)

    stage.until(is_saving, started)
    newest = max(stage.saved())
    for pid in [started.pid, *started.children]:
        os.kill(pid, signal.SIGKILL)
    started.wait()
    saved = max(stage.saved())
    outcome = resumed(stage, truths, "at the restart: no commit file, moved aside", 0.0)
    assert stage.began() == saved >= newest
    folders = list(stage.folder.glob("runs/drilled/*/checkpoints/*"))
    assert all((path / "commit.json").exists() for path in folders), "no remains"
    return outcome


def _stopped(stage: Stage, truths: Truths, index: int) -> Outcome:
    started = _begun(stage, 12)
    since = time.monotonic()
    os.kill(started.children[index], signal.SIGSTOP)
    assert started.wait() == 1
    seconds = started.ended_at - since
    (line,) = started.stderr.splitlines()
    who = f"process {range(stage.processes)[index]} of {stage.processes}"
    message = f"luthier: {who} ended, is stopped, or cannot be reached; stacks: "
    assert line.startswith(message), line
    stacks = [path.read_text() for path in stage.run.glob("stacks/*.txt")]
    assert stacks, "somebody wrote down where it was"
    assert all("luthier/trainer/loop.py" in text for text in stacks)
    assert seconds < 60
    return resumed(stage, truths, "the watchdog names it and dumps all stacks", seconds)


@injection("SIGSTOP of one host", 2, 4)
def sigstop_of_one(stage: Stage, truths: Truths) -> Outcome:
    return _stopped(stage, truths, -1)


@injection("SIGSTOP of the coordinator", 2)
def sigstop_of_coordinator(stage: Stage, truths: Truths) -> Outcome:
    return _stopped(stage, truths, 0)


@injection("SIGSTOP of the whole run, for longer than the watchdog waits, then SIGCONT")
def sigstop_of_all(stage: Stage, truths: Truths) -> Outcome:
    watchdog = "records.watchdog:=luthier.records.Watchdog(seconds=8)"
    started = _begun(stage, 12, watchdog)
    started.send(signal.SIGSTOP)
    time.sleep(10)
    since = time.monotonic()
    started.send(signal.SIGCONT)
    stage.hurry()
    assert started.wait() == 0
    truth = truths.of(1)
    assert stage.losses() == truth.losses
    return Outcome("not a fault: the run continues", started.ended_at - since, 0, "bit-identical")


@injection("a host that hangs", 1, 2)
def hang(stage: Stage, truths: Truths) -> Outcome:
    limit = 6 * stage.processes
    watchdog = f"records.watchdog:=luthier.records.Watchdog(seconds={limit})"
    started = _begun(stage, 12, watchdog)
    (stage.folder / f"stuck-{stage.processes - 1}").touch()
    since = time.monotonic()
    assert started.wait() == 1
    seconds = started.ended_at - since
    (line,) = started.stderr.splitlines()
    assert line.startswith(f"luthier: nothing has happened for {limit} s, after step ")
    if stage.processes > 1:
        assert ": process 1 of 2 is behind the others; stacks: " in line, line
    stacks = [path.read_text() for path in stage.run.glob("stacks/*.txt")]
    assert len(stacks) == stage.processes
    assert any("drilled.py" in text for text in stacks), "the stack of the one that hangs"
    assert stage.status()["status"] == "failed"
    (stage.folder / f"stuck-{stage.processes - 1}").unlink()
    detected = "the watchdog names it, dumps all stacks and ends the run"
    return resumed(stage, truths, detected, seconds)
