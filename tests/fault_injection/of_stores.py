"""Faults of object stores that are the home of a run: both protocols, on an emulator."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

from injecting import injection
from machine import Started
from of_disks import fill, mounted
from staging import EVERY, STEPS, BucketStage, Outcome, Stage, Truths, compare

from tests.object_stores import EXPIRED

SCHEMES = ("gs", "s3")
# A store that stays away is given up after this time, instead of five minutes.
IMPATIENT = {"LUTHIER_STORE_SECONDS": "2"}
SAVES = r"(PUT|POST) .*/checkpoints/\d"


def labs(stage: Stage, schemes: tuple[str, ...] = SCHEMES) -> Iterator[BucketStage]:
    """Yield a bucket of each kind, served, with the experiment of a stage."""
    for number, scheme in enumerate(schemes):
        folder = stage.folder / f"{scheme}-{number}"
        lab = BucketStage(stage.machine, folder, scheme, stage.processes)
        with lab.serving():
            yield lab


def began(lab: BucketStage, *overrides: str, slow: float = 0.05, **how: Any) -> Started:
    """Begin to train, and return when the first checkpoint is committed."""
    lab.slow(slow)
    started = lab.start(*overrides, **how)
    lab.until_saved(EVERY, started)
    return started


def finished(lab: BucketStage, started: Started, truths: Truths) -> str:
    """Wait for the end of a run that goes on; return how it compares with the undisturbed one."""
    lab.hurry()
    assert started.wait() == 0, started.stderr
    assert lab.saved()[-1] == STEPS
    return compare(lab, truths.of(lab.processes))


def stopped(lab: BucketStage, started: Started, code: int, *parts: str) -> None:
    """Wait for the end of a run that cannot go on, and look at its one line."""
    assert started.wait() == code, started.stderr
    (line,) = {line for line in started.stderr.splitlines() if line.startswith("luthier: ")}
    wanted = (" was not saved: ", f"{lab.scheme}://lab/runs", "rerun the command: it continues")
    for part in (*wanted, *parts):
        assert part in line, line
    assert "Traceback" not in started.stderr, started.stderr


def continued(lab: BucketStage, truths: Truths) -> tuple[int, str]:
    """Start again on another machine; return the steps that are repeated, and the comparison."""
    lab.hurry()
    reached, saved = lab.last_step(), max(lab.saved())
    lab.move()
    lab.train()
    assert lab.began() == saved, "nothing that was committed is lost"
    return reached - saved, compare(lab, truths.of(lab.processes))


@injection("an object store asks for fewer requests for a while (429, 503)")
def busy(stage: Stage, truths: Truths) -> Outcome:
    for lab, status in zip(labs(stage, SCHEMES * 2), (429, 429, 503, 503), strict=True):
        started = began(lab)
        with lab.fault(status=status) as fault:
            lab.until(lambda fault=fault: fault.num_met >= 4, started)
        agreed = finished(lab, started, truths)
    return Outcome("requests are repeated; training continues", 0.0, 0, agreed)


@injection("an object store stays unavailable (503)", 1, 2)
def away(stage: Stage, truths: Truths) -> Outcome:
    seconds, lost = 0.0, 0
    for lab in labs(stage):
        started = began(lab, environment=IMPATIENT)
        with lab.fault(status=503):
            since = time.monotonic()
            stopped(lab, started, 75, "503", "wait until the store responds")
            seconds = max(seconds, started.ended_at - since)
            refused = lab.start(environment=IMPATIENT)  # it is still away
            assert refused.wait() == 75, refused.stderr
        repeated, agreed = continued(lab, truths)
        lost = max(lost, repeated)
    return Outcome("exit code 75, one line", seconds, lost, agreed)


@injection("an object store refuses access (403)")
def denied(stage: Stage, truths: Truths) -> Outcome:
    seconds, lost = 0.0, 0
    for lab in labs(stage):
        started = began(lab)
        with lab.fault(status=403):
            since = time.monotonic()
            stopped(lab, started, 2, "403", "check that your credentials may")
            seconds = max(seconds, started.ended_at - since)
        repeated, agreed = continued(lab, truths)
        lost = max(lost, repeated)
    return Outcome("exit code 2, one line", seconds, lost, agreed)


@injection("the credentials for an object store expire")
def expired(stage: Stage, truths: Truths) -> Outcome:
    seconds, lost = 0.0, 0
    for lab in labs(stage):
        started = began(lab)
        status, body = EXPIRED[lab.scheme]
        with lab.fault(status=status, body=body):
            since = time.monotonic()
            stopped(lab, started, 2, "renew your credentials")
            seconds = max(seconds, started.ended_at - since)
        repeated, agreed = continued(lab, truths)
        lost = max(lost, repeated)
    return Outcome("exit code 2, one line", seconds, lost, agreed)


@injection("an object store refuses access for a moment, between two saves (403)")
def denied_between_saves(stage: Stage, truths: Truths) -> Outcome:
    for lab in labs(stage):
        started = began(lab, slow=1.5)  # so that the lease is renewed between two saves
        with lab.fault(status=403) as fault:
            lab.until(lambda fault=fault: fault.num_met, started)
        assert lab.saved() == [EVERY]
        agreed = finished(lab, started, truths)
    return Outcome("a notice; training continues", 0.0, 0, agreed)


@injection("an object store takes half a second for each request")
def slow(stage: Stage, truths: Truths) -> Outcome:
    for lab in labs(stage, ("gs",)):
        with lab.fault(seconds=0.5):
            started = began(lab, slow=0.5)
            lab.until_saved(2 * EVERY, started)
        agreed = finished(lab, started, truths)
    return Outcome("saves take longer; training continues", 0.0, 0, agreed)


@injection("an object store accepts requests and does not answer for a while")
def silent(stage: Stage, truths: Truths) -> Outcome:
    for lab in labs(stage):
        started = began(lab)
        with lab.fault(stalls=True) as fault:
            lab.until(lambda fault=fault: fault.num_met >= 4, started)
        agreed = finished(lab, started, truths)
    return Outcome("requests are repeated; training continues", 0.0, 0, agreed)


@injection("an object store never answers again")
def mute(stage: Stage, truths: Truths) -> Outcome:
    seconds, lost = 0.0, 0
    for lab in labs(stage):
        started = began(lab, environment=IMPATIENT)
        with lab.fault(stalls=True):
            since = time.monotonic()
            stopped(lab, started, 75, "wait until the store responds")
            seconds = max(seconds, started.ended_at - since)
        repeated, agreed = continued(lab, truths)
        lost = max(lost, repeated)
    return Outcome("exit code 75, one line", seconds, lost, agreed)


@injection("connections to an object store are reset in requests and in answers")
def reset(stage: Stage, truths: Truths) -> Outcome:
    for lab in labs(stage):
        started = began(lab)
        for where in ("request", "answer"):
            with lab.fault(resets=where, times=6) as fault:
                lab.until(lambda fault=fault: fault.num_met >= 6, started)
        agreed = finished(lab, started, truths)
    return Outcome("requests are repeated; training continues", 0.0, 0, agreed)


@injection("an object store keeps only the beginning of a file of a checkpoint")
def truncated(stage: Stage, truths: Truths) -> Outcome:
    seconds, lost = 0.0, 0
    for lab in labs(stage):
        for kind in ("/d/", "manifest.ocdbt", "commit_success.txt", "commit.json"):
            started = began(lab)
            with lab.fault(requests=f"{SAVES}.*{kind}", lost_bytes=7, times=1) as fault:
                since = time.monotonic()
                stopped(lab, started, 75, "was stored incompletely")
                assert fault.num_met == 1
                seconds = max(seconds, started.ended_at - since)
        repeated, agreed = continued(lab, truths)
        lost = max(lost, repeated)
    return Outcome("exit code 75, one line; it is not committed", seconds, lost, agreed)


@injection("an object store keeps only the beginning of a record")
def truncated_record(stage: Stage, truths: Truths) -> Outcome:
    for lab in labs(stage):
        for number, kind in enumerate(("writer.json", "status.json", "metrics.jsonl.segments/")):
            with lab.fault(requests=f"(PUT|POST) .*{kind}", lost_bytes=7, times=1) as fault:
                if not number:
                    started = began(lab, slow=0.1)
                lab.until(lambda fault=fault: fault.num_met, started)
        finished(lab, started, truths)
        lab.move()
        lab.train()  # of another machine, which reads the records: it is over
        agreed = compare(lab, truths.of(1))
    return Outcome("it is written again; training continues", 0.0, 0, agreed)


@injection("an object store refuses conditional writes although nobody else writes (412)")
def lost_race(stage: Stage, truths: Truths) -> Outcome:
    for lab in labs(stage):
        lab.slow()
        with lab.fault(
            requests=r"(PUT|POST) .*(writer|commit)\.json", status=412, times=2
        ) as fault:
            started = lab.start()
            lab.until_saved(EVERY, started)
            assert fault.num_met == 2
        agreed = finished(lab, started, truths)
    return Outcome("the object is read, and written again", 0.0, 0, agreed)


@injection("the answers to conditional writes are lost")
def lost_answers(stage: Stage, truths: Truths) -> Outcome:
    for lab in labs(stage):
        lab.slow()
        wanted = r"(PUT|POST) .*(writer|commit)\.json"
        with lab.fault(requests=wanted, resets="answer", times=2) as fault:
            started = lab.start()
            lab.until_saved(EVERY, started)
            assert fault.num_met == 2
        agreed = finished(lab, started, truths)
    return Outcome("the object is read: it is our own", 0.0, 0, agreed)


@injection("listings of an object store miss the newest objects for seconds")
def stale(stage: Stage, truths: Truths) -> Outcome:
    lost = 0
    for lab in labs(stage):
        with lab.fault(requests="GET $", hidden_seconds=3):
            started = began(lab, slow=0.2)
            started.send(signal.SIGTERM)
            assert started.wait() == 75, started.stderr
            repeated, agreed = continued(lab, truths)
            lost = max(lost, repeated)
    return Outcome("what is missing is waited for", 0.0, lost, agreed)


@injection("the disk with the local copy of the records is full")
def full_copy(stage: Stage, truths: Truths) -> Outcome:
    for lab in labs(stage, ("gs",)):
        place = lab.folder / "cache" / "luthier" / "buckets"
        with mounted(place):
            started = began(lab)
            filler = fill(place)
            since = time.monotonic()
            assert started.wait() == 2, started.stderr
            seconds = started.ended_at - since
            assert "No space left on device" in started.stderr, started.stderr
            assert str(place) in started.stderr, started.stderr
            filler.unlink()
            reached = lab.last_step()
            lab.hurry()
            lab.train()
            lost = reached - lab.began()
            agreed = compare(lab, truths.of(1))
    return Outcome("exit code 2, one line", seconds, lost, agreed)
