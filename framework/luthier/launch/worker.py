"""The worker of a device group on other machines, with one process or several.

Only process 0 talks to the driver. The others learn of trials, of verdicts and of the end from it
through `distributed.Rounds`, which are exchanges over JAX's coordination service: every process
must call the same ones in the same order. What makes this hard is failure. A process that fails
alone cannot simply report it, because the others wait for it in a collective of the compiled step,
where nothing but its death is noticed.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import pathlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from luthier import environment, faults
from luthier.errors import EXIT_BUG, EXIT_DONE, EXIT_REQUEUE, BadInput
from luthier.faults import Fault
from luthier.launch import link
from luthier.parallel import distributed
from luthier.records.redaction import redact_output
from luthier.study.engines.execution import RAISED, Execution, TrialTask, ended
from luthier.study.gate import memory_problem, step_bytes
from luthier.study.protocol import Lost, TrialWork, Work
from luthier.trainer.interrupt import Watcher
from luthier.trainer.loop import CompiledStep

# One trial on several processes: all of them train it, the first one speaks with the driver.

EXIT_APART = 70
"""The exit code of a process that failed where others did not: they wait for it in a collective."""

APART_SECONDS = 60.0


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
    """Runs trials on the devices of several processes, each of which calls `run_together`."""

    def run_together(self, work: Work, trial: TrialWork, watcher: Watcher, name: str) -> None:
        """Run one trial, from where it was left to its end; the first process reports it.

        Where it fails in all processes, or in some that are not waited for, it has failed. A
        process that fails while others wait for it ends itself, and so the group.

        Args:
          work: What the trial belongs to.
          trial: The trial.
          watcher: Watches it in this process.
          name: What no other trial of these processes has.
        """
        # How a failure is handled: every process runs the same code, and each catches its own
        # error. Then all of them exchange what went wrong (`_gathered`). If all arrive, the first
        # process reports the trial by the first error, or by its result. If a process failed alone,
        # the others never arrive, because they wait for it in a collective of the step; then it can
        # only end itself (`_leave`). Its death breaks their collective, the engine starts the group
        # again, and the trial resumes from its checkpoint.
        #
        # Until there is a plan, the mode is one without hoisted paths: a trial whose plan cannot be
        # made is reported with that.
        mode, plan, result = self.mode(()), None, None
        error: BaseException | None = None
        try:
            plan = self.plans.plan(self.read(trial), work.hoist)
            mode = self.mode(plan.program.hoist)
            problem = memory_problem(plan, self.memory_bytes)
            if problem is not None:
                raise problem
            together: Any = Together(watcher, name)
            with self.open(plan, CompiledStep(plan.program), trial, together) as session:
                session.run()
            result = session.outcome
        except RAISED as raised:
            error = raised
            traceback.print_exc()
        try:
            # All processes come here, also those that failed. Where one fails alone, the others are
            # stuck in the step and never come: it waits `APART_SECONDS` for them, then ends itself,
            # and with it the whole group, which the engine starts again.
            theirs = _gathered(error, name)
        except distributed.GaveUp:
            assert error is not None  # without one, this process waits
            self._leave(trial, mode, error)
        # Only the first process has a line to the driver.
        if distributed.process_index():
            return
        # Its own error first, which has a traceback; those of others arrive as one line.
        error = error or _first_error(theirs)
        if error is not None:
            self.report_failure(trial, mode, error)
        elif plan is not None and result is not None:
            try:
                event = ended(self.slice, trial, plan, mode, result, step_bytes(plan))
            except Exception as raised:  # its result cannot be written
                return self.report_failure(trial, mode, raised)
            self.report(event)

    def _leave(self, trial: TrialWork, mode: Mapping[str, Any], error: BaseException) -> NoReturn:
        """End this process, which failed alone: the others wait for it in a collective."""
        print(f"luthier: this process failed alone: {_one_line(error)}", file=sys.stderr)
        sys.stderr.flush()
        try:
            # Process 0 can still say that the trial is not to blame, such as for a full disk.
            if distributed.process_index() == 0 and faults.classify(error) is Fault.PLACE:
                self.report_failure(trial, mode, error)
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


def describe(work: Work, trial: TrialWork) -> dict[str, Any]:
    """Return the description of a trial for the other processes, as JSON values.

    Args:
      work: What the trial belongs to.
      trial: The trial.
    """
    return {
        "trial": trial.trial,
        "fence": trial.fence,
        "directory": trial.directory,
        "is_to_rung": trial.is_to_rung,
        "hoist": list(work.hoist),
        "asks": work.asks,
    }


def described(record: Mapping[str, Any]) -> tuple[Work, TrialWork]:
    """Return the trial that `describe` described.

    Args:
      record: What it returned.
    """
    fields = ("trial", "fence", "directory", "is_to_rung")
    trial = TrialWork(**{name: record[name] for name in fields})
    # One trial and no lanes: lanes on several processes do not exist.
    return Work((trial,), tuple(record["hoist"]), asks=record["asks"]), trial


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
    parser.add_argument("--driver", type=pathlib.Path, required=True)
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
    # Before JAX is imported, which takes seconds: a worker without a driver should free its
    # machines.
    if rank == 0:
        line = link.connect(options.driver, {"slice": options.slice}, DRIVER_SECONDS)
        if line is None:
            print("luthier: no driver is running for this study", file=sys.stderr)
            return EXIT_DONE
    return _serve(options, line, farewell)


def _serve(options: argparse.Namespace, line: link.Connection | None, farewell: Farewell) -> int:
    import jax

    from luthier.parallel import distributed, hosts
    from luthier.records import read_facts
    from luthier.records.weights_and_biases import shared_mirrors
    from luthier.study.engines.execution import Plans

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

    # A function, since how to send differs: followers have no line to the driver, and send nothing.
    def execution(send: Callable[[Any], None]) -> GroupExecution:
        return GroupExecution(options.slice, Plans(devices), options.package, memory_bytes, send)

    if line is None:
        return _follow(execution(lambda event: None), farewell)
    with shared_mirrors():
        return _lead(options, line, execution, farewell)


def _lead(
    options: argparse.Namespace,
    line: link.Connection,
    make_execution: Callable[[Callable[[Any], None]], GroupExecution],
    farewell: Farewell,
) -> int:
    """Receive trials from the driver and run them, in the first process."""
    from luthier.parallel import distributed
    from luthier.study.engines.execution import Inbox
    from luthier.study.engines.messages import MessageWriter
    from luthier.study.engines.packed_trials import LaneRunner
    from luthier.study.protocol import Lost, SliceInfo

    writer = MessageWriter(line.sent)
    execution = make_execution(writer.send)
    inbox = Inbox(line.received, execution.watcher)
    lanes = LaneRunner(execution, inbox)
    devices, is_several = execution.plans.devices, distributed.is_several()
    info = SliceInfo(
        options.slice, options.name, len(devices), devices[0].device_kind, execution.memory_bytes
    )
    # Closing the inbox has running trials saved, and ends the loop below by `wait`.
    farewell.then(inbox.close)
    writer.send(info)
    rounds = distributed.Rounds("work")
    for number in itertools.count():
        if execution.is_broken or not inbox.wait():
            break
        task = inbox.take()
        if task is None:
            continue  # its trial was stopped while it waited
        # Lanes, which take further trials from the inbox while they run, exist on one process only:
        # the others would have to learn of each such trial between two steps.
        if is_several:
            _run_with_others(execution, task, rounds, number)
        elif task.work.lanes == "single":
            execution.run(task.work, task.trial, task.watcher)
        else:
            lanes.run(task)
    if execution.is_broken:
        # The next trial may be in the inbox already, and is not to blame. The driver cuts the line
        # when it hears this: the inbox must not take that for the end of the driver.
        inbox.close()
        writer.send(Lost(options.slice, BROKEN, counts=False))
    if is_several:
        # None instead of a trial: the followers leave their loop.
        rounds.exchange(None, lambda _: None)
    # The trials are saved by now: the driver may give them to another group at once.
    # `counts=False`, because no trial is to blame.
    if farewell.is_heard and not execution.is_broken:
        writer.send(Lost(options.slice, TAKEN_AWAY, counts=False))
    # Also after a fault of the devices: engines start a group again that leaves with this code.
    return EXIT_REQUEUE if farewell.is_heard or execution.is_broken else EXIT_DONE


def _run_with_others(
    execution: GroupExecution, task: TrialTask, rounds: distributed.Rounds, number: int
) -> None:
    record = describe(task.work, task.trial) | {"name": str(number)}
    # Before the trial, so that the others start the same one: its name is in the names of all later
    # exchanges.
    rounds.exchange(None, lambda _: record)
    execution.run_together(task.work, task.trial, task.watcher, record["name"])


class _Follower:
    """Watches a trial in a process that is not the first: only a signal ends it there."""

    requested: str | None = None

    def __enter__(self) -> _Follower:
        return self

    def __exit__(self, *unused: object) -> None:
        """Do nothing: a follower holds no resources."""


def _follow(execution: GroupExecution, farewell: Farewell) -> int:
    """Run the trials that the first process announces, in another process."""
    from luthier.parallel import distributed
    from luthier.trainer.interrupt import INTERRUPTED

    rounds, follower = distributed.Rounds("work"), _Follower()

    def leave() -> None:
        # Seen by training at its next step, which agrees on it with the other processes.
        follower.requested = INTERRUPTED

    farewell.then(leave)
    while (record := rounds.exchange(None, lambda _: None)) is not None:
        work, trial = described(record)
        execution.run_together(work, trial, follower, record["name"])
    return EXIT_REQUEUE if farewell.is_heard else EXIT_DONE


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
