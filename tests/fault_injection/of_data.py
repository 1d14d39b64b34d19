"""Faults of data: missing, unreadable, changed and corrupt files, and loaders that die."""

from __future__ import annotations

import json
import signal
import time

from injecting import injection, resumed
from staging import EVERY, LINE, Outcome, Stage, Truths, compare

SKIPPING = (
    "data.source:=luthier.data.Filtered(luthier.data.JsonLines('text/*.jsonl'), "
    "corrupt=luthier.data.Skip(at_most=1))"
)
LINES = "data.source:=luthier.data.JsonLines('text/*.jsonl')"


def _interrupted(stage: Stage, *overrides: str) -> None:
    stage.slow()
    started = stage.start(*overrides)
    stage.until_saved(EVERY, started)
    started.send(signal.SIGTERM)
    assert started.wait() == 75
    stage.hurry()


def _refused(stage: Stage, words: str, *overrides: str) -> float:
    """Start a run that must be refused in one line, once; return the seconds that it took."""
    before = stage.losses()
    refused = stage.train(*overrides, code=2)
    (line,) = set(refused.stderr.splitlines())
    assert words in line, line
    assert stage.losses() == before
    return refused.ended_at - refused.began_at


@injection("a data file is missing at the start", 1, 2)
def missing_at_start(stage: Stage, truths: Truths) -> Outcome:
    (stage.folder / "text" / "a.txt").rename(stage.folder / "away")
    seconds = _refused(stage, "no file matches 'text/*.txt'")
    assert not (stage.folder / "runs").exists(), "nothing is written"
    (stage.folder / "away").rename(stage.folder / "text" / "a.txt")
    stage.train()
    agreed = compare(stage, truths.of(stage.processes))
    return Outcome("exit code 2, one line; nothing written", seconds, 0, agreed)


@injection("a data file is missing at a restart")
def missing_at_restart(stage: Stage, truths: Truths) -> Outcome:
    _interrupted(stage)
    (stage.folder / "text" / "a.txt").rename(stage.folder / "away")
    seconds = _refused(stage, "no file matches 'text/*.txt'")
    (stage.folder / "away").rename(stage.folder / "text" / "a.txt")
    return resumed(stage, truths, "exit code 2, one line", seconds)


@injection("a data file cannot be read")
def unreadable(stage: Stage, truths: Truths) -> Outcome:
    # A link to itself cannot be opened by anybody, root included.
    path = stage.folder / "text" / "b.txt"
    path.symlink_to(path)
    start = time.monotonic()
    refused = stage.train(code=2)
    (line,) = refused.stderr.splitlines()
    assert "text/b.txt" in line, line
    assert not (stage.folder / "runs").exists(), "nothing is written"
    path.unlink()
    stage.train()
    detected = "exit code 2, one line that names it; nothing written"
    return Outcome(detected, refused.ended_at - start, 0, compare(stage, truths.of(1)))


@injection("the data has changed at a restart", 1, 2)
def changed(stage: Stage, truths: Truths) -> Outcome:
    _interrupted(stage)
    path = stage.folder / "text" / "a.txt"
    text = path.read_text()
    path.write_text(text.replace("question", "QUESTION", 1))
    seconds = _refused(stage, "the training data is not what it was at the checkpoint")
    path.write_text(text)
    return resumed(stage, truths, "exit code 2: its digest differs", seconds)


def _records(stage: Stage) -> None:
    lines = [json.dumps({"text": LINE * 5}) for _ in range(20)]
    lines[6] = '{"text": "half a rec'
    (stage.folder / "text" / "a.jsonl").write_text("\n".join(lines) + "\n")


@injection("a corrupt record, not tolerated", 1, 2)
def corrupt_fail(stage: Stage, truths: Truths) -> Outcome:
    _records(stage)
    seconds = _refused(stage, "text/a.jsonl:7: not JSON: ", LINES)
    assert not (stage.folder / "runs").exists(), "nothing is written"
    path = stage.folder / "text" / "a.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:6] + lines[7:]) + "\n")
    stage.train(LINES)
    return Outcome("exit code 2 with file and line; nothing written", seconds, 0, "trains")


@injection("a corrupt record, to be skipped", 1, 2)
def corrupt_skip(stage: Stage, truths: Truths) -> Outcome:
    _records(stage)
    start = time.time()
    stage.train(SKIPPING)
    seconds = stage.rows("header")[0]["time"] - start
    (notice,) = [line for line in stage.notices().splitlines() if "cannot be used" in line]
    assert notice.startswith(
        "1 document of 20 cannot be used, left out: text/a.jsonl:7: not JSON: "
    ), notice
    losses = stage.losses()
    path = stage.folder / "text" / "a.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:6] + lines[7:]) + "\n")
    clean = Stage(stage.machine, stage.folder / "clean", stage.processes)
    (clean.folder / "text" / "a.jsonl").write_text(path.read_text())
    clean.train(LINES)
    assert losses == clean.losses(), "as without the record"
    return Outcome("a notice with count, file and line", seconds, 0, "bit-identical")


@injection("more corrupt records than are tolerated")
def corrupt_too_many(stage: Stage, truths: Truths) -> Outcome:
    _records(stage)
    path = stage.folder / "text" / "a.jsonl"
    path.write_text(path.read_text() + '{"text": 3}\n')
    seconds = _refused(stage, "more than 1 documents cannot be used", SKIPPING)
    assert not (stage.folder / "runs").exists(), "nothing is written"
    return Outcome("exit code 2, one line; nothing written", seconds, 0, "nothing to restart")


@injection("a worker of the data loader dies", 1, 2)
def worker_death(stage: Stage, truths: Truths) -> Outcome:
    stage.slow()
    started = stage.start()
    stage.until_saved(EVERY, started)
    since = time.monotonic()
    (stage.folder / "broken").touch()
    assert started.wait() == 1
    seconds = started.ended_at - since
    logs = [path.read_text() for path in stage.run.glob("processes/*.log")]
    assert "the decoder of images has crashed" in "".join([started.stderr, *logs])
    assert stage.status()["status"] == "failed"
    (stage.folder / "broken").unlink()
    return resumed(stage, truths, "exit code 1 with its traceback", seconds)
