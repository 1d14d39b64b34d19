"""One trial on several processes: all of them train it, the first one speaks with the driver."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from luthier import faults
from luthier.faults import Fault
from luthier.parallel import distributed
from luthier.sweep.engines.execution import RAISED, Execution
from luthier.sweep.engines.trial import ended
from luthier.sweep.gate import memory_problem, step_bytes
from luthier.sweep.protocol import Lost, TrialWork, Work
from luthier.train.interrupt import Watcher
from luthier.train.loop import OwnSlot
from luthier.train.run import drive

EXIT_APART = 70
"""The exit code of a process that failed where others did not: they wait for it in a collective."""

APART_SECONDS = 60.0


class Together(Watcher):
    """Has all processes of a trial hear the answers that the first one gets.

    Args:
      own: Watches the trial in this process; the driver speaks with that of the first one.
      name: What no other trial of these processes has.
    """

    def __init__(self, own: Watcher, name: str):
        self._own = own
        self._rounds = distributed.Rounds(f"evaluated/{name}")

    @property
    def requested(self) -> str | None:  # type: ignore[override]
        """Why this process wants to leave; training agrees on it with the others."""
        return self._own.requested

    def evaluated(self, step: int, metrics: Mapping[str, float], last: bool) -> str | None:
        """Return the verdict of the first process."""
        return self._rounds.exchange(None, lambda _: self._own.evaluated(step, metrics, last))


class GangExecution(Execution):
    """Runs trials on the devices of several processes, each of which calls `run_together`."""

    def run_together(self, work: Work, trial: TrialWork, watcher: Watcher, name: str) -> None:
        """Run one trial, from where it was left to its end; the first process tells of it.

        Where it fails in all processes, or in some that are not waited for, it has failed. A
        process that fails while others wait for it ends itself, and so the gang.

        Args:
          work: What the trial belongs to.
          trial: The trial.
          watcher: Watches it in this process.
          name: What no other trial of these processes has.
        """
        mode, plan, result = self.mode(()), None, None
        error: BaseException | None = None
        try:
            plan = self.plans.plan(self.read(trial), work.hoist)
            mode = self.mode(plan.program.hoist)
            problem = memory_problem(plan, self.memory_bytes)
            if problem is not None:
                raise problem
            slot = OwnSlot(plan.program)
            training = self.begin(plan, slot, trial, Together(watcher, name))  # type: ignore[arg-type]
            result = drive(training, slot.step)
        except RAISED as raised:
            error = raised
            traceback.print_exc()
        try:
            theirs = _gathered(error, name)
        except distributed.GaveUp:
            assert error is not None  # without one, this process waits
            self._leave(trial, mode, error)
        if distributed.process_index():
            return
        error = error or _first_error(theirs)
        if error is not None:
            self.tell_failed(trial, mode, error)
        elif plan is not None and result is not None:
            try:
                event = ended(self.slice, trial, plan, mode, result, step_bytes(plan))
            except Exception as raised:  # its result cannot be written
                return self.tell_failed(trial, mode, raised)
            self.tell(event)

    def _leave(self, trial: TrialWork, mode: Mapping[str, Any], error: BaseException) -> NoReturn:
        """End this process, which failed alone: the others wait for it in a collective."""
        print(f"luthier: this process failed alone: {_one_line(error)}", file=sys.stderr)
        sys.stderr.flush()
        try:
            # Process 0 can still say that the trial is not to blame, such as for a full disk.
            if distributed.process_index() == 0 and faults.classify(error) is Fault.PLACE:
                self.tell_failed(trial, mode, error)
                self._send(Lost(self.slice, _one_line(error), counts=False))
        finally:  # also where the driver is gone
            os._exit(EXIT_APART)


def _gathered(error: BaseException | None, name: str) -> list[list[str] | None]:
    """Return what went wrong in each process, with the kind of fault; None where all is well.

    Raises:
      GaveUp: This process failed, and the others do not come.
    """
    mine = None if error is None else [_one_line(error), faults.classify(error).value]
    deadline = time.monotonic() + APART_SECONDS
    rounds = distributed.Rounds(f"ends/{name}")
    return rounds.exchange(mine, list, lambda: mine is not None and time.monotonic() > deadline)


def _first_error(theirs: Sequence[Sequence[str] | None]) -> faults.RemoteFault | None:
    """Return the error of the first process that has one."""
    for index, found in enumerate(theirs):
        if found is not None:
            text, fault = found
            what = f"process {index} of {len(theirs)} says: {text}"
            return faults.RemoteFault(what, Fault(fault))
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def describe(work: Work, trial: TrialWork) -> dict[str, Any]:
    """Return what the other processes need to know of a trial, as JSON values.

    Args:
      work: What the trial belongs to.
      trial: The trial.
    """
    return {
        "trial": trial.trial,
        "fence": trial.fence,
        "directory": trial.directory,
        "hoist": list(work.hoist),
        "asks": work.asks,
    }


def described(told: Mapping[str, Any]) -> tuple[Work, TrialWork]:
    """Return what `describe` described.

    Args:
      told: What it returned.
    """
    trial = TrialWork(told["trial"], told["fence"], told["directory"])
    return Work((trial,), tuple(told["hoist"]), asks=told["asks"]), trial
