"""The protocol between the driver of a sweep and its engines; every message is plain JSON.

The driver leases a slice to one unit of work: one trial, or several that run as lanes of one
program. A lease has a fence, a number that grows with every lease of the study; what arrives with
an old fence is from a worker that was given up, and is dropped.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from luthier import project
from luthier.errors import Problem, RunError
from luthier.records.redaction import redact, write_json
from luthier.storage import json_text, require_format, run_error
from luthier.storage.bucket import Bucket, is_url

Outcome = Literal["complete", "pruned", "infeasible", "failed"]
Verdict = Literal["continue", "prune", "pause"]
"""The answer to a report: a trial that pauses is saved, and can be leased again later."""
Lanes = Literal["single", "vmap", "map", "shard", "auto"]
"""How several trials share a slice: `auto` leaves it to the worker, which measures; where it finds
that they are faster one after another, those that do not run yet wait in the worker."""


@dataclasses.dataclass(frozen=True)
class SliceInfo:
    """A process group of devices that runs one unit of work at a time.

    Args:
      index: Its number in the engine, from 0.
      name: Its name in messages.
      num_devices: Devices in it.
      device_kind: What they are.
      memory_bytes: Memory of one device; None where it has no limit of its own.
    """

    index: int
    name: str
    num_devices: int
    device_kind: str = "cpu"
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class TrialWork:
    """One trial of a unit of work.

    Args:
      trial: Its number in the study.
      fence: The fence of the lease.
      directory: Its directory, or the URL of that of a study in an object store; `config.json` in
        it is the whole graph (`read_text`), `run/` its run.
      is_to_rung: Whether it is a run of its own to a rung below the full length. Its last
        evaluation is bounded by `num_batches`, as those before: rungs rank trials, and whole sets
        are for those that complete.
    """

    trial: int
    fence: int
    directory: str
    is_to_rung: bool = False


@dataclasses.dataclass(frozen=True)
class Work:
    """The work that a device group is leased for.

    Args:
      trials: One trial, or one for each lane.
      hoist: Paths of the leaves that may enter the compiled step as arguments; the worker finds
        out which of them can, and reports them in its results.
      lanes: How several trials share the slice.
      asks: Whether every report waits for an answer, by which the trial can be pruned or paused.
      spare_lanes: Lanes without a trial yet, which `Engine.refill` may use.
      num_expected: Trials that the device group will have from here on, these among them, as far
        as that is known: what measuring the lanes (`auto`) has to pay for itself in.
    """

    trials: Sequence[TrialWork]
    hoist: Sequence[str] = ()
    lanes: Lanes = "single"
    asks: bool = False
    spare_lanes: int = 0
    num_expected: int = 0


@dataclasses.dataclass(frozen=True)
class Reported:
    """A trial evaluated: metrics by `evaluation/metric` after `step` optimizer steps.

    Args:
      slice: Index of the device group.
      fence: The lease that the report belongs to.
      fraction: The part of its own full length that the trial has trained, from 0 to 1, by which
        rungs are reached; an engine that leaves it out reaches none.
    """

    slice: int
    trial: int
    fence: int
    step: int
    metrics: Mapping[str, float]
    fraction: float = 0.0


@dataclasses.dataclass(frozen=True)
class TrialTrained:
    """A trial has left its place on the device group; its files are still being written.

    Its end, or its pause, is a later event. An engine need not send this one: the place is then
    free when the trial has ended.

    Args:
      slice: Where it ran.
      trial: Its number.
      fence: The fence of its lease.
    """

    slice: int
    trial: int
    fence: int


@dataclasses.dataclass(frozen=True)
class Paused:
    """A trial was paused by the answer to its last report: it is saved, and its place is free.

    Args:
      slice: Where it ran.
      trial: Its number.
      fence: The fence of its lease.
      step: The optimizer steps that its checkpoint holds.
    """

    slice: int
    trial: int
    fence: int
    step: int


@dataclasses.dataclass(frozen=True)
class TrialEnded:
    """A trial has ended, and its `result.json` is on the disk.

    Args:
      slice: Where it ran.
      trial: Its number.
      fence: The fence of its lease.
      outcome: How it ended.
      reason: Why, in one line, where it is not complete.
      result: What `result.json` holds: `metrics` (the last of each), `series` (step and metrics
        of every evaluation), `steps`, `facts` (`step_seconds`, `peak_bytes`, `parameters`; and
        `device_seconds` where the engine knows better than the time of the lease), `mode` (lanes,
        hoisted paths, slice shape), and `fault`, the kind of fault of a trial that failed.
    """

    slice: int
    trial: int
    fence: int
    outcome: Outcome
    reason: str = ""
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Faulted:
    """A trial met a fault of its machine (a full disk, a broken device) and has no result.

    It goes back to the queue with its checkpoints, and nothing is counted against it.

    Args:
      slice: Where it ran.
      trial: Its number.
      fence: The fence of its lease.
      reason: The fault, in one line.
    """

    slice: int
    trial: int
    fence: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Lost:
    """The worker of a slice died; its trials go back to the queue, with their checkpoints.

    Args:
      slice: Which one; the engine starts a new worker there by itself.
      reason: What is known: an exit code or a signal, and the last line that it wrote.
      counts: Whether this is one of the deaths that `budget.retries` counts; not where a trial was
        saved because its machines were taken away.
      is_away: Whether nothing can run there until `Back` reports a worker again.
      is_gone: Whether no worker will come any more: the slice is excluded from the study, unless
        `Back` reports one after all.
    """

    slice: int
    reason: str
    counts: bool = True
    is_away: bool = False
    is_gone: bool = False


@dataclasses.dataclass(frozen=True)
class Back:
    """There is a worker again on a slice that was away."""

    slice: int


Event = Reported | TrialTrained | Paused | TrialEnded | Faulted | Lost | Back


class TrialEngine(Protocol):
    """Runs work on slices; the driver is its only caller, from one thread."""

    def open(self, directory: str) -> Sequence[SliceInfo]:
        """Start the workers of a study that is kept in `directory`; return the slices.

        Args:
          directory: The directory of the study.

        Returns:
          The device groups, in their order.
        """

    def start(self, slice: int, work: Work) -> None:
        """Start work on a free device group.

        Args:
          slice: Number of the device group.
          work: The trials, and how they run.
        """

    def refill(self, slice: int, trial: TrialWork) -> None:
        """Put one more trial on a free lane of the work that a slice is busy with.

        Args:
          slice: Number of the device group.
          trial: The trial.
        """

    def answer(self, slice: int, trial: int, fence: int, verdict: Verdict) -> None:
        """Answer a report of work that `asks`: the trial continues, is pruned or pauses.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
          verdict: `continue`; `prune`, which ends the trial; or `pause`, which saves and leaves it:
            `Paused` follows, and a later lease resumes it from that step.
        """

    def stop(self, slice: int, trial: int, fence: int) -> None:
        """Stop a trial after the current step. It is checkpointed; no `TrialEnded` is sent.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
        """

    def events(self, timeout: float) -> Sequence[Event]:
        """Return new events; wait up to `timeout` seconds for the first.

        Args:
          timeout: The longest time to wait, in seconds.

        Returns:
          The events in order; none where the time has passed.
        """

    def close(self) -> None:
        """End all workers; running trials are saved first, so that they can be resumed."""


# `result.json`: the end of a trial; whole or absent, and on the disk before it is reported. That of
# a trial that paused is what it has come to so far, with the outcome `pruned`.

NAME = "result.json"
TRACEBACK = "traceback.txt"
"""In the folder of a trial that failed: where in the code it did."""

FORMAT = 1
"""The format of result.json; a file without one is of format 1."""


class UnreadableResult(RunError):
    """A file of a trial is damaged, or a disk cannot read it; an object store is only away."""


_FIELDS = {field.name for field in dataclasses.fields(TrialEnded)}


def write_result(directory: str | os.PathLike[str], ended: TrialEnded) -> None:
    """Write the end of a trial into its directory.

    Args:
      directory: `TrialWork.directory`.
      ended: The event that the driver will receive.

    Example:
      >>> from luthier import study
      >>> study.write_result(".", study.TrialEnded(slice=0, trial=3, fence=0, outcome="complete"))
      >>> study.read_result(".").trial
      3
    """
    # Whole or not at all, and on the disk: the driver may read it at any moment, and goes by it
    # after a crash.
    fields = {"format": FORMAT, **_encode(dataclasses.asdict(ended))}
    if (bucket := _bucket_of(directory)) is not None:
        bucket.write(NAME, redact(json_text(fields)).encode())
    else:
        write_json(pathlib.Path(directory, NAME), fields)


def read_result(directory: str | os.PathLike[str]) -> TrialEnded | None:
    """Read the end of the trial in a directory; None where it was not written.

    Args:
      directory: `TrialWork.directory`.

    Returns:
      The event, as `write_result` got it.

    Raises:
      UnreadableResult: The file is damaged, or the disk refuses.
      RunError: The object store refuses.
      VersionError: It was written by a later luthier.

    Example:
      >>> from luthier import study
      >>> print(study.read_result("."))
      None
    """
    text = read_text(directory, NAME)
    if text is None:
        return None
    path = f"{project.address(directory)}/{NAME}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableResult(Problem(f"{path} is damaged: {error}")) from error
    require_format(path, found, FORMAT)
    if not isinstance(found, dict):
        raise UnreadableResult(Problem(f"{path} is damaged: it holds no result"))
    try:
        # What a later version adds is not known here, and harmless.
        return TrialEnded(**{k: v for k, v in _decode(found).items() if k in _FIELDS})
    except (TypeError, ValueError) as error:
        raise UnreadableResult(Problem(f"{path} is damaged: {error}")) from error


def read_text(directory: str | os.PathLike[str], name: str) -> str | None:
    """Return the text of a file in a trial's directory; None where there is no such file.

    Args:
      directory: `TrialWork.directory`.
      name: Its name, such as `config.json`.

    Raises:
      UnreadableResult: It is not text, or the disk refuses.
      RunError: The object store refuses.
    """
    try:
        if (bucket := _bucket_of(directory)) is not None:
            data = bucket.read(name).data
            return None if data is None else data.decode("utf-8")
        return pathlib.Path(directory, name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        refused = run_error("read", pathlib.Path(directory, name), error)
        raise UnreadableResult(refused.problems) from error
    except UnicodeDecodeError as error:
        where = f"{project.address(directory)}/{name}"
        raise UnreadableResult(Problem(f"{where} is damaged: {error}")) from None


def write_text(directory: str | os.PathLike[str], name: str, text: str) -> None:
    """Write a file in a trial's directory, without secrets.

    Args:
      directory: `TrialWork.directory`.
      name: Its name.
      text: Its text.

    Raises:
      OSError: The disk refuses.
      RunError: The object store refuses.
    """
    if (bucket := _bucket_of(directory)) is not None:
        bucket.write(name, redact(text).encode())
    else:
        pathlib.Path(directory, name).write_text(redact(text), encoding="utf-8")


def local_folder(directory: str | os.PathLike[str]) -> pathlib.Path:
    """Return the folder of this machine in which a trial is run.

    Args:
      directory: `TrialWork.directory`.

    Returns:
      The directory, or the working copy of its URL.
    """
    text = os.fspath(directory)
    return project.working_copy(text) if is_url(text) else pathlib.Path(text)


# Workers read and write there and not in the working copy of the study, which the driver has on
# another machine. The driver itself names a trial by its folder in that copy.
def _bucket_of(directory: str | os.PathLike[str]) -> Bucket | None:
    text = os.fspath(directory)
    url = text if is_url(text) else project.bucket_url(text)
    return Bucket(url) if url else None


def _encode(value: Any) -> Any:
    """Encode a value as strict JSON; NaN and infinities become `{"float": "nan"}`."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, dict):
        return {key: _encode(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(child) for child in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"float"}:
            return float(value["float"])
        return {key: _decode(child) for key, child in value.items()}
    return [_decode(child) for child in value] if isinstance(value, list) else value
