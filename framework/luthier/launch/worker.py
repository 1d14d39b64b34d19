"""The worker of a device group on other machines, with one process or several.

Only process 0 talks to the driver. The others learn of trials, of verdicts and of the end from it
through `distributed.Rounds`, which are exchanges over JAX's coordination service: every process
must call the same ones in the same order. What makes this hard is failure. A process that fails
alone cannot simply report it, because the others wait for it in a collective of the compiled step,
where nothing but its death is noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import jax

from luthier import environment, faults, planner
from luthier.errors import EXIT_BUG, EXIT_DONE, EXIT_REQUEUE, BadInput
from luthier.faults import Fault
from luthier.launch import link
from luthier.parallel import distributed, hosts
from luthier.records import read_facts
from luthier.records.redaction import redact_output
from luthier.records.weights_and_biases import shared_mirrors
from luthier.study.engines.execution import Execution, Inbox, Plans, TrialTask
from luthier.study.engines.messages import MessageWriter, Refill, decode, encode
from luthier.study.engines.packed_trials import LaneRunner
from luthier.study.protocol import (
    Faulted,
    Lost,
    Paused,
    SliceInfo,
    TrialEnded,
    TrialWork,
    Work,
)
from luthier.trainer.interrupt import INTERRUPTED, Watcher
from luthier.trainer.loop import TrainStep
from luthier.trainer.run import Session

# One trial on several processes: all of them train it, the first one speaks with the driver.

EXIT_APART = 70
"""The exit code of a process that failed where others did not: they wait for it in a collective."""

APART_SECONDS = 60.0
_T = TypeVar("_T")


class Together(Watcher):
    """Passes the driver's answers from the first process to all processes of a trial.

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

    def evaluated(
        self, step: int, metrics: Mapping[str, float], last: bool, fraction: float = 1.0
    ) -> str | None:
        """Return the verdict of the first process."""
        # An exchange in which the others give nothing and the first one computes the answer, after
        # all have arrived. It blocks until the driver has answered, so all processes leave at the
        # same step or none does.
        return self._rounds.exchange(
            None, lambda _: self._own.evaluated(step, metrics, last, fraction)
        )


class GroupExecution(Execution):
    """Runs trials on the devices of several processes, all of which call the same methods alike.

    Where a trial fails in all processes, or in some that are not waited for, it has failed. A
    process that fails while others wait for it ends itself, and so the group.
    """

    def open(
        self, plan: planner.Plan, step: TrainStep, work: TrialWork, watcher: Watcher
    ) -> contextlib.AbstractContextManager[Session]:
        """Return the session of a trial, to be entered by all processes."""
        return super().open(plan, step, work, Together(watcher, _name(work)))

    def agree(self, make: Callable[[], _T]) -> _T:
        """Return what the first process makes, in all processes."""
        return distributed.from_primary(make)

    def _settle(
        self,
        trial: TrialWork,
        mode: Mapping[str, Any],
        error: BaseException | None,
        end: Callable[[], TrialEnded | Paused | Faulted | None] = lambda: None,
    ) -> None:
        # How a failure is handled: every process runs the same code, and each catches its own
        # error. Then all of them exchange what went wrong (`_gathered`). If all arrive, the first
        # process reports the trial by the first error, or by its result. If a process failed alone,
        # the others never arrive, because they wait for it in a collective of the step; then it can
        # only end itself (`_leave`). Its death breaks their collective, the engine starts the group
        # again, and its trials resume from their checkpoints.
        if error is not None and distributed.is_several():
            traceback.print_exception(error)  # of another process, this log is the only place
        try:
            # All processes come here, also those that failed. Where one fails alone, the others are
            # stuck in the step and never come: it waits `APART_SECONDS` for them, then ends itself,
            # and with it the whole group, which the engine starts again.
            theirs = _gathered(error, _name(trial))
        except distributed.GaveUp:
            assert error is not None  # without one, this process waits
            self._leave(trial, mode, error)
        # Only the first process has a line to the driver.
        if distributed.process_index() == 0:
            # Its own error first, which has a traceback; those of others arrive as one line.
            super()._settle(trial, mode, error or _first_error(theirs), end)

    def _leave(self, trial: TrialWork, mode: Mapping[str, Any], error: BaseException) -> NoReturn:
        """End this process, which failed alone: the others wait for it in a collective."""
        print(f"luthier: this process failed alone: {_one_line(error)}", file=sys.stderr)
        sys.stderr.flush()
        try:
            # Process 0 can still say that the trial is not to blame, such as for a full disk.
            if distributed.process_index() == 0 and faults.classify(error) is Fault.PLACE:
                super()._settle(trial, mode, error)
                self._send(Lost(self.slice, _one_line(error), counts=False))
        finally:  # also where the driver is gone
            os._exit(EXIT_APART)


def _gathered(error: BaseException | None, name: str) -> list[list[str] | None]:
    """Return the error of each process, with its kind of fault; None for those without one.

    Raises:
      GaveUp: This process failed, and the others do not come.
    """
    mine = None if error is None else [_one_line(error), faults.classify(error).value]
    deadline = time.monotonic() + APART_SECONDS
    # Named by the trial, because a group runs many. Only a process that failed gives up waiting:
    # one that succeeded may be minutes ahead of the others, which still save.
    rounds = distributed.Rounds(f"ends/{name}")
    return rounds.exchange(mine, list, lambda: mine is not None and time.monotonic() > deadline)


def _first_error(theirs: Sequence[Sequence[str] | None]) -> faults.RemoteFault | None:
    """Return the error of the first process that has one."""
    for index, found in enumerate(theirs):
        if found is not None:
            text, fault = found
            what = f"process {index} of {len(theirs)} reports: {text}"
            return faults.RemoteFault(what, Fault(fault))
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _name(trial: TrialWork) -> str:
    """Return what no other lease of these processes has, for the names of their exchanges."""
    return f"{trial.trial}/{trial.fence}"


class GroupTasks:
    """The trials of a group, in all its processes: those that the first one takes from its inbox.

    All processes call the same methods in the same order, so that the same trials begin everywhere,
    between the same two steps of a pack.

    Args:
      inbox: The inbox of the first process; None in the others.
      watcher: Watches every trial in a process that is not the first.
      farewell: Knows whether this process is to end.
    """

    def __init__(self, inbox: Inbox | None, watcher: Watcher, farewell: Farewell):
        self._inbox = inbox
        self._watcher = watcher
        self._farewell = farewell
        self._rounds = distributed.Rounds("tasks")

    def next(self, is_broken: Callable[[], bool]) -> TrialTask | None:
        """Wait for a trial; return None when the worker ends.

        Args:
          is_broken: Whether the devices can take no more trials; asked in the first process.
        """
        return self._announced(lambda inbox: inbox.next(is_broken))

    def take(self, fits: Callable[[TrialTask], bool]) -> TrialTask | None:
        """Return a trial that waits and fits; None where there is none now.

        Args:
          fits: Asked in the first process.
        """
        return self._announced(lambda inbox: inbox.take(fits))

    def _announced(self, choose: Callable[[Inbox], TrialTask | None]) -> TrialTask | None:
        """Return the task that the first process chooses, in all processes."""
        chosen: list[TrialTask] = []

        def announce(are_leaving: Sequence[bool]) -> list[str] | None:
            assert self._inbox is not None
            # One machine that is taken away takes the group with it.
            if any(are_leaving) and not self._farewell.is_heard:
                self._farewell.is_heard = True
                self._inbox.close()
            if (task := choose(self._inbox)) is None:
                return None
            chosen.append(task)
            return describe(task.work, task.trial)

        record = self._rounds.exchange(self._farewell.is_heard, announce)
        if chosen:
            return chosen[0]  # with the watcher that the driver's messages reach
        return None if record is None else TrialTask(*described(record), self._watcher)


def describe(work: Work, trial: TrialWork) -> list[str]:
    """Return the description of a trial for the other processes, as JSON values.

    Args:
      work: What the trial belongs to.
      trial: The trial.
    """
    return [encode(work).decode(), encode(Refill(trial)).decode()]


def described(record: Sequence[str]) -> tuple[Work, TrialWork]:
    """Return the trial that `describe` described.

    Args:
      record: What it returned.
    """
    work, refill = (decode(line.encode()) for line in record)
    return work, refill.trial


# The worker of a slice that an engine of `luthier.launch` started, on one process or several.
#
#     python -m luthier.launch.worker --driver FILE --slice 0 ...
#
# The first process speaks with the driver, which may be on another machine; the others do what it
# announces. SIGTERM means that the machine is taken away: running trials are saved, `Lost` is sent,
# and the worker leaves with exit code 75.

DRIVER_SECONDS = 60.0
"""The time for which a worker looks for its driver."""

JOIN_SECONDS = 300.0
"""The time within which the processes of a group must start."""

TAKEN_AWAY = "its machines were taken away"
BROKEN = "its worker left after a fault of its devices"


# SIGTERM must be noticed while the main thread is in a compiled step or waits for a peer: Python
# runs signal handlers only between bytecodes of the main thread. `set_wakeup_fd` makes the C-level
# handler write the signal's number into a pipe at once, and a thread reads it.
class Farewell:
    """Reacts to SIGTERM, when the machine is taken away, from a thread of its own."""

    def __init__(self) -> None:
        self.is_heard = False
        self._act: Callable[[], None] | None = None
        wakeup_read, wakeup_write = os.pipe()
        os.set_blocking(wakeup_write, False)
        signal.set_wakeup_fd(wakeup_write)
        self.listen()
        waiting = threading.Thread(target=self._wait, args=(wakeup_read,), daemon=True)
        waiting.start()

    def listen(self) -> None:
        """Install the handler of SIGTERM, also over one that a library has installed by now."""
        # A handler must be installed for the pipe to be written, or SIGTERM would end the process.
        # A library may install its own when processes join, hence this is called again after that.
        signal.signal(signal.SIGTERM, lambda number, frame: None)

    def then(self, act: Callable[[], None]) -> None:
        """Set the reaction to SIGTERM; it is called at once where the signal came before.

        Args:
          act: Called from another thread.
        """
        self._act = act
        if self.is_heard:
            act()

    def _wait(self, wakeup_read: int) -> None:
        while signal.SIGTERM not in os.read(wakeup_read, 64):
            pass
        self.is_heard = True
        # Nothing has been started that could be saved.
        if self._act is None:
            os._exit(EXIT_REQUEUE)  # nothing runs yet
        self._act()


def main(arguments: Sequence[str]) -> int:
    """Run trials until the driver closes the study or is gone; return the exit code.

    Args:
      arguments: The words of the command line.
    """
    environment.report_native_crashes()
    parser = argparse.ArgumentParser(prog="luthier.launch.worker")
    parser.add_argument("--driver", required=True)
    parser.add_argument("--slice", type=int, required=True)
    parser.add_argument("--name", default="")
    parser.add_argument("--devices")
    parser.add_argument("--memory-bytes", type=int)
    parser.add_argument("--package", action="append", default=[])
    options = parser.parse_args(arguments)
    # An interrupt is for the driver, which has running trials saved through the protocol.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    farewell = Farewell()
    rank = int(os.environ.get("JAX_PROCESS_ID", "0"))
    line = None
    # Before the processes join and take their devices: a worker without a driver should free its
    # machines.
    if rank == 0:
        line = link.connect(options.driver, {"slice": options.slice}, DRIVER_SECONDS)
        if line is None:
            print("luthier: no driver is running for this study", file=sys.stderr)
            return EXIT_DONE
    return _serve(options, line, farewell)


def _serve(options: argparse.Namespace, line: link.Connection | None, farewell: Farewell) -> int:
    hosts.configure(options.devices)
    # Set by `launch.member`, or by the Ray actor, for groups of several processes only.
    if "JAX_NUM_PROCESSES" in os.environ:
        facts = read_facts(options.package)
        membership = distributed.Membership.of_environment(os.environ)
        # Versions and source are compared here, before the first collective.
        distributed.join(dataclasses.replace(membership, join_seconds=JOIN_SECONDS), facts)
    farewell.listen()
    devices = jax.devices()
    # Of a local device: `devices` are those of all processes, and others' have no statistics here.
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    memory_bytes = options.memory_bytes or limit

    if line is None:
        # Only the first process has a line to the driver.
        execution = _execution(options, Plans(devices), memory_bytes, lambda event: None)
        return _follow(execution, farewell)
    with shared_mirrors():
        return _lead(options, line, Plans(devices), memory_bytes, farewell)


def _execution(
    options: argparse.Namespace,
    plans: Plans,
    memory_bytes: int | None,
    send: Callable[[Any], None],
) -> GroupExecution:
    return GroupExecution(options.slice, plans, options.package, memory_bytes, send)


def _lead(
    options: argparse.Namespace,
    line: link.Connection,
    plans: Plans,
    memory_bytes: int | None,
    farewell: Farewell,
) -> int:
    """Receive trials from the driver and run them, in the first process."""
    writer = MessageWriter(line.sent)
    execution = _execution(options, plans, memory_bytes, writer.send)
    inbox = Inbox(line.received, execution.watcher)
    # Closing the inbox has running trials saved, and ends the loop of `_run_trials`.
    farewell.then(inbox.close)
    kind = plans.devices[0].device_kind
    writer.send(SliceInfo(options.slice, options.name, len(plans.devices), kind, memory_bytes))
    _run_trials(execution, GroupTasks(inbox, Watcher(), farewell))
    if execution.is_broken:
        # The next trial may be in the inbox already, and is not to blame. The driver cuts the line
        # when it hears this: the inbox must not take that for the end of the driver.
        inbox.close()
        writer.send(Lost(options.slice, BROKEN, counts=False))
    # The trials are saved by now: the driver may give them to another group at once.
    # `counts=False`, because no trial is to blame.
    elif farewell.is_heard:
        writer.send(Lost(options.slice, TAKEN_AWAY, counts=False))
    # Also after a fault of the devices: engines start a group again that leaves with this code.
    return EXIT_REQUEUE if farewell.is_heard or execution.is_broken else EXIT_DONE


def _follow(execution: GroupExecution, farewell: Farewell) -> int:
    """Run the trials that the first process announces, in another process."""
    watcher = Watcher()

    def leave() -> None:
        # Seen by training at its next step, which agrees on it with the other processes.
        watcher.requested = INTERRUPTED

    farewell.then(leave)
    _run_trials(execution, GroupTasks(None, watcher, farewell))
    return EXIT_REQUEUE if farewell.is_heard else EXIT_DONE


def _run_trials(execution: GroupExecution, tasks: GroupTasks) -> None:
    """Run trials one after another or packed, in every process, until the worker ends."""
    lanes = LaneRunner(execution, tasks)
    while (task := tasks.next(lambda: execution.is_broken)) is not None:
        if task.work.lanes == "single":
            execution.run(task.work, task.trial, task.watcher)
        else:
            lanes.run(task)
    execution.wait_until_closed()


if __name__ == "__main__":
    redact_output()  # what is printed is kept in a file of the group
    try:
        code = main(sys.argv[1:])
    except BadInput as error:
        print(f"luthier: {error}", file=sys.stderr)
        code = error.exit_code
    except Exception:
        traceback.print_exc()
        code = EXIT_BUG
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what is left to be done at exit would wait for processes that may have ended
