"""One trial in a worker: from its directory to its result."""

from __future__ import annotations

import pathlib
import queue
import statistics
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jax

from luthier import faults
from luthier.errors import LockLost, LuthierError, ShardingError, ValidationError
from luthier.faults import Fault
from luthier.plan import Plan
from luthier.records import events
from luthier.records.metrics_file import read_events
from luthier.records.redaction import redact
from luthier.sweep.protocol import Ended, Faulted, Outcome, Reported, TrialWork
from luthier.sweep.results import TRACEBACK, write_result
from luthier.train.interrupt import INTERRUPTED, PRUNED, Watcher
from luthier.train.results import FINISHED, Result

RUN = "run"
_LONGEST_REASON = 500


class TrialWatcher(Watcher):
    """Reports the evaluations of a trial, and ends it when it is told to.

    Args:
      slice: Where the trial runs.
      work: The trial.
      asks: Whether a report waits for its answer.
      send: Sends an event to the driver.
    """

    def __init__(self, slice: int, work: TrialWork, asks: bool, send: Callable[[Any], None]):
        self.requested: str | None = None
        self._slice = slice
        self._work = work
        self._asks = asks
        self._send = send
        self._answers: queue.Queue[bool | None] = queue.Queue()

    def evaluated(self, step: int, metrics: Mapping[str, float], last: bool) -> str | None:
        """Report an evaluation; wait for the answer where the trial could go on."""
        work = self._work
        self._send(Reported(self._slice, work.trial, work.fence, step, dict(metrics)))
        if not self._asks or last or self.requested is not None:
            return None
        return PRUNED if self._answers.get() is False else None

    def answer(self, go_on: bool) -> None:
        """Take in the answer to the last report; from another thread."""
        self._answers.put(go_on)

    def stop(self) -> None:
        """Have the trial saved and left at its next step; from another thread."""
        self.requested = INTERRUPTED
        self._answers.put(None)


def ended(
    slice: int,
    work: TrialWork,
    plan: Plan,
    mode: Mapping[str, Any],
    result: Result,
    peak_bytes: int | None,
) -> Ended | None:
    """Write down how a trial ended; return it, or None where it was left to go on later.

    Args:
      slice: Where the trial ran.
      work: The trial.
      plan: Its plan.
      mode: How it was run: lanes, hoisted paths, slice shape.
      result: What training came to.
      peak_bytes: Bytes on one device that its compiled step needs.
    """
    outcomes: dict[str, Outcome] = {FINISHED: "complete", PRUNED: "pruned"}
    if result.status not in outcomes:
        return None
    reason = "" if result.status == FINISHED else f"pruned after step {result.step}"
    facts = {"parameters": plan.parameters, "peak_bytes": peak_bytes}
    found = summary(result.directory / "metrics.jsonl", mode)
    found["facts"] |= facts
    return _written(
        work, Ended(slice, work.trial, work.fence, outcomes[result.status], reason, found)
    )


def failed(
    slice: int, work: TrialWork, mode: Mapping[str, Any], error: BaseException
) -> Ended | Faulted:
    """Write down that a trial cannot run, or went wrong, with its traceback; return it.

    A fault of the machine is not the trial's: it gets no result, and is run again.

    Args:
      slice: Where it ran.
      work: The trial.
      mode: How it was run.
      error: What was raised.
    """
    if any(isinstance(link, LockLost) for link in faults.chain(error)):
        # The folder is another process's now: nothing is written there.
        return Faulted(slice, work.trial, work.fence, _one_line(error))
    reason = why_infeasible(error)
    fault = faults.classify(error)
    if reason is None and fault is Fault.PLACE:
        return Faulted(slice, work.trial, work.fence, _one_line(error))
    outcome: Outcome = "failed" if reason is None else "infeasible"
    line = reason or _one_line(error)
    try:
        found = summary(pathlib.Path(work.directory, RUN, "metrics.jsonl"), mode)
        if reason is None:
            found["fault"] = fault.value
            text = "".join(traceback.format_exception(error))
            path = pathlib.Path(work.directory, TRACEBACK)
            path.write_text(redact(text), encoding="utf-8")
        return _written(work, Ended(slice, work.trial, work.fence, outcome, line, found))
    except (OSError, LuthierError) as refused:  # the disk does not even take that it failed
        return Faulted(slice, work.trial, work.fence, _one_line(refused))


def why_infeasible(error: BaseException) -> str | None:
    """Return why a trial can never run on its slice; None where the error says nothing of it."""
    if isinstance(error, ShardingError | ValidationError):
        return _one_line(error)
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
        return f"out of memory: {_one_line(error)}"[:_LONGEST_REASON]
    return None


def summary(metrics_path: pathlib.Path, mode: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the driver is told of a run, from its record, however often it was resumed.

    Args:
      metrics_path: The run's metrics.jsonl.
      mode: How it was run.
    """
    series: dict[int, dict[str, float]] = {}
    seconds, steps = [], 0
    for _, step, event in read_events(metrics_path):
        if isinstance(event, events.Evaluation):
            values = {f"{event.name}/{name}": x for name, x in event.values.items()}
            series.setdefault(step, {}).update(values)
        elif isinstance(event, events.Step):
            seconds.append(event.values["step_seconds"])
            steps = step
    metrics: dict[str, float] = {}
    for values in series.values():
        metrics |= values
    return {
        "metrics": metrics,
        "series": [[step, values] for step, values in series.items()],
        "steps": steps,
        "facts": {"step_seconds": statistics.median(seconds) if seconds else None},
        "mode": dict(mode),
    }


def _written(work: TrialWork, ended: Ended) -> Ended:
    write_result(work.directory, ended)
    return ended


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if not isinstance(error, LuthierError):
        text = f"{type(error).__name__}: {text}"
    return text[:_LONGEST_REASON]
