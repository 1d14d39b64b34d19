"""The engine that plans trials instead of training them, for device groups that need not be here.

Each plan is made by a process of its own (`plan_apart`), because a process has one set of virtual
devices; the threads here only wait for them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import queue
from collections.abc import Sequence
from typing import Any, ClassVar

from luthier import graph as graphs
from luthier import project
from luthier.errors import BadInput, LuthierError, Problem, StoreError
from luthier.planner import Report, plan_apart
from luthier.planner.report import roofline_seconds
from luthier.planner.targets import missing_compiler, read
from luthier.study.gate import why_too_large
from luthier.study.protocol import (
    Event,
    Faulted,
    Outcome,
    SliceInfo,
    TrialEnded,
    TrialWork,
    UnreadableResult,
    Verdict,
    Work,
    read_text,
    write_result,
)

SHAPES, COMPILE = LEVELS = ("shapes", "compile")


@dataclasses.dataclass
class Planned:
    """Plans each trial for a slice, as `luthier plan` does; nothing is trained.

    `StepTime` is then the modelled time of a step, `PeakBytes` what a device needs, `DeviceHours`
    what the whole run would take, and `Parameters` what it always is. A trial that does not fit is
    infeasible, with the sizes as the reason.

    Args:
      slice: Target of the plan: `v5e-16`, `2xv4-8`, `h100:8`, `cpu:8`.
      level: `compile`, or `shapes`, which takes seconds and is less exact.
      workers: Number of trials that are planned at a time.
      packages: The user's modules that graphs may name.
    """

    RANGES: ClassVar[dict[str, str]] = {"workers": "1 <= x"}

    slice: str
    level: str = COMPILE
    workers: int = 1
    packages: Sequence[str] = ()

    def __post_init__(self) -> None:
        # Filled by the threads of the pool, and emptied by the driver's thread alone.
        self._events: queue.Queue[Event] = queue.Queue()
        self._stopped: set[int] = set()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def open(self, directory: str) -> Sequence[SliceInfo]:
        """Return as many slices as trials are planned at a time; `directory` is not needed.

        Args:
          directory: The directory of the study.

        Returns:
          The device groups, in their order.

        Raises:
          BadInput: There is no such slice, or its compiler is not installed.
        """
        del directory
        if self.level not in LEVELS:
            what, remedy = f"there is no level {self.level!r}", f"write {' or '.join(LEVELS)}"
            raise BadInput(Problem(what, "engine.level", remedy=remedy))
        target = read(self.slice)
        problem = missing_compiler(target) if self.level == COMPILE else ""
        if problem:
            raise BadInput(Problem(problem, "engine.slice", remedy="or set engine.level=shapes"))
        self._pool = concurrent.futures.ThreadPoolExecutor(self.workers)
        chip = target.chip
        # A target of CPUs has no chip, and no limit of memory that a plan could exceed.
        kind, limit = ("cpu", None) if chip is None else (chip.device_kind, chip.limit_bytes)
        return [
            SliceInfo(i, f"{target} (planned)", target.num_devices, kind, limit)
            for i in range(self.workers)
        ]

    def start(self, slice: int, work: Work) -> None:
        """Plan the trials of some work, one after another.

        Args:
          slice: Number of the device group.
          work: The trials, and how they run.
        """
        for trial in work.trials:
            self.refill(slice, trial)

    def refill(self, slice: int, trial: TrialWork) -> None:
        """Plan one more trial.

        Args:
          slice: Number of the device group.
          trial: The trial.
        """
        assert self._pool is not None
        self._pool.submit(self._plan, slice, trial)

    def answer(self, slice: int, trial: int, fence: int, verdict: Verdict) -> None:
        """Do nothing: a plan reports nothing before its end.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
          verdict: Whether the trial continues, is pruned or pauses.
        """

    def stop(self, slice: int, trial: int, fence: int) -> None:
        """Forget a trial; its plan, if it is still being made, is not reported.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
        """
        self._stopped.add(fence)

    def events(self, timeout: float) -> Sequence[Event]:
        """Return the trials that are planned; wait up to `timeout` seconds for the first.

        Args:
          timeout: The longest time to wait, in seconds.

        Returns:
          The events in order; none where the time has passed.
        """
        found: list[Event] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._events.get(timeout=timeout))
            while True:
                found.append(self._events.get_nowait())
        return found

    def close(self) -> None:
        """Drop trials that wait, and wait for those that are being planned."""
        if self._pool is not None:
            # Trials that wait are dropped without a result: a resumed study plans them again.
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _plan(self, slice: int, trial: TrialWork) -> None:
        try:
            text = read_text(trial.directory, "config.json")
            if text is None:
                raise FileNotFoundError(f"{project.address(trial.directory)} has no config.json")
            graph = graphs.from_json(text, packages=self.packages)
            report = plan_apart(graph, self.slice, level=self.level, packages=self.packages)
            outcome, reason = _outcome(report)
            result = _result(report)
        except StoreError as error:
            self._events.put(Faulted(slice, trial.trial, trial.fence, " ".join(str(error).split())))
            return
        except (LuthierError, OSError) as error:
            # A graph that cannot be planned for the target cannot run there; anything else is an
            # error.
            is_refused = isinstance(error, BadInput) and not isinstance(error, UnreadableResult)
            outcome = "infeasible" if is_refused else "failed"
            reason, result = " ".join(str(error).split()), {}
        # Before the result is written: a stopped trial has ended in the journal, and must not have
        # another result on the disk.
        if trial.fence in self._stopped:
            return
        ended = TrialEnded(slice, trial.trial, trial.fence, outcome, reason, result)
        event: Event = ended
        try:
            write_result(trial.directory, ended)
        except (LuthierError, OSError) as error:  # the driver waits for an event of every trial
            event = Faulted(slice, trial.trial, trial.fence, " ".join(str(error).split()))
        self._events.put(event)


def _outcome(report: Report) -> tuple[Outcome, str]:
    reason = why_too_large(report)
    return ("infeasible", reason) if reason else ("complete", "")


def _result(report: Report) -> dict[str, Any]:
    devices = report.subject.devices
    # Trials are compared by the roofline, also where it is too small to be shown as a time.
    seconds = roofline_seconds(report.step)
    return {
        "metrics": {},
        "series": [],
        "steps": 0,
        "facts": {
            "step_seconds": seconds,
            # In the facts, because the time of the lease is that of planning; the driver prefers
            # this one.
            "device_seconds": seconds * report.subject.steps * devices["count"],
            "peak_bytes": report.memory.needed_bytes,
            "parameters": report.subject.parameters["total"],
        },
        "mode": {
            "slice": {"devices": devices["count"], "kind": devices["kind"]},
            "lanes": "single",
            "num_lanes": 1,
            "lane": 0,
            "hoisted": [],
        },
    }
