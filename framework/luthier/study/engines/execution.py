"""Execution of trials in a worker: the inbox, plans made once per program, and results."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import statistics
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypeVar

import jax

from luthier import faults, planner, user_code
from luthier import graph as graphs
from luthier.errors import (
    LockLost,
    LuthierError,
    Problem,
    RunError,
    ShardingError,
    StoreError,
    ValidationError,
)
from luthier.faults import Fault
from luthier.graph import Graph
from luthier.parallel import distributed
from luthier.planner import Plan
from luthier.records import events
from luthier.records.metrics_file import read_events
from luthier.study.engines.messages import Answer, Close, Refill, Stop, read_messages
from luthier.study.gate import memory_problem, step_bytes
from luthier.study.hoisting import Discoveries, program_key
from luthier.study.protocol import (
    TRACEBACK,
    Faulted,
    Outcome,
    Paused,
    Reported,
    TrialEnded,
    TrialTrained,
    TrialWork,
    Verdict,
    Work,
    local_folder,
    read_text,
    write_result,
    write_text,
)
from luthier.trainer.evaluate import trace_evaluations
from luthier.trainer.interrupt import INTERRUPTED, PAUSED, PREEMPTED, PRUNED, Watcher
from luthier.trainer.loop import CompiledStep, TrainStep
from luthier.trainer.opening import Request
from luthier.trainer.results import FINISHED, Result
from luthier.trainer.run import Session, open_session

# One trial in a worker: from its directory to its result.

RUN = "run"
_REASONS: Mapping[Verdict | None, str] = {
    "prune": PRUNED,
    "pause": PAUSED,
}  # to leave a run, by the driver's answer
_LONGEST_REASON = 500
_T = TypeVar("_T")


class TrialWatcher(Watcher):
    """Reports the evaluations of a trial to the driver, and ends it on request.

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
        self._answers: queue.Queue[Verdict | None] = queue.Queue()

    def evaluated(
        self, step: int, metrics: Mapping[str, float], last: bool, fraction: float = 1.0
    ) -> str | None:
        """Report an evaluation; wait for the answer where the trial could continue."""
        work = self._work
        self._send(Reported(self._slice, work.trial, work.fence, step, dict(metrics), fraction))
        # After the last evaluation there is nothing left to prune, and a trial that was stopped
        # gets no answer.
        if not self._asks or last or self.requested is not None:
            return None
        # Blocks the training loop until the driver has answered; `stop` wakes it by None.
        return _REASONS.get(self._answers.get())

    def answer(self, verdict: Verdict) -> None:
        """Pass on the answer to the last report; called from another thread."""
        self._answers.put(verdict)

    def stop(self) -> None:
        """Have the trial saved and left at its next step; called from another thread."""
        self.requested = INTERRUPTED
        self._answers.put(None)


def ended(
    slice: int,
    work: TrialWork,
    plan: Plan,
    mode: Mapping[str, Any],
    result: Result,
    peak_bytes: int | None,
) -> TrialEnded | Paused | Faulted | None:
    """Write how a trial ended; return it, or None where it was interrupted and can be resumed.

    The result of a trial that has paused stands where it is never promoted; the next lease writes
    another one. Its checkpoint is on the disk when this is called.

    Args:
      slice: Where the trial ran.
      work: The trial.
      plan: Its plan.
      mode: How it was run: lanes, hoisted paths, slice shape.
      result: What training came to.
      peak_bytes: Bytes on one device that its compiled step needs.
    """
    outcomes: dict[str, Outcome] = {FINISHED: "complete", PRUNED: "pruned", PAUSED: "pruned"}
    if result.status == PREEMPTED:
        # Not by the driver: it has saved its step, because the store of its data is away.
        reason = "the store of its training data does not respond"
        return Faulted(slice, work.trial, work.fence, reason)
    # Interrupted: its checkpoint is the result, and the driver has put the trial back into the
    # queue.
    if result.status not in outcomes:
        return None
    reason = "" if result.status == FINISHED else f"{result.status} after step {result.step}"
    facts = {"parameters": plan.parameters, "peak_bytes": peak_bytes}
    # With what `reruns` repeats it by.
    mode = {**mode, "is_to_rung": True} if work.is_to_rung else mode
    found = summary(result.directory / "metrics.jsonl", mode)
    found["facts"] |= facts
    event = _written(
        work, TrialEnded(slice, work.trial, work.fence, outcomes[result.status], reason, found)
    )
    if result.status == PAUSED:
        return Paused(slice, work.trial, work.fence, result.step)
    return event


def failed(
    slice: int, work: TrialWork, mode: Mapping[str, Any], error: BaseException
) -> TrialEnded | Faulted:
    """Write that a trial cannot run, or failed, with its traceback; return that.

    A fault of the machine is not the trial's: it gets no result, and is run again.

    Args:
      slice: Where it ran.
      work: The trial.
      mode: How it was run.
      error: What was raised.
    """
    # The whole chain of causes: the error that arrives here is mostly that of the code around the
    # save.
    if any(isinstance(link, LockLost) for link in faults.chain(error)):
        # The folder is another process's now: nothing is written there.
        return Faulted(slice, work.trial, work.fence, _one_line(error))
    # Before `classify`, which takes an error of sharding or of memory for one of the code.
    reason = why_infeasible(error)
    fault = faults.classify(error)
    if reason is None and fault is Fault.PLACE:
        return Faulted(slice, work.trial, work.fence, _one_line(error))
    outcome: Outcome = "failed" if reason is None else "infeasible"
    line = reason or _one_line(error)
    try:
        found = summary(local_folder(work.directory) / RUN / "metrics.jsonl", mode)
        if reason is None:
            found["fault"] = fault.value
            # The innermost frames of the user first, with what was called: they are what is looked
            # for among those of JAX and luthier.
            text = "".join(f"{one}\n" for one in (line, *user_code.details(error), ""))
            text += "".join(traceback.format_exception(error))
            # Before the result: whoever sees that the trial failed finds the traceback, too.
            write_text(work.directory, TRACEBACK, text)
        return _written(work, TrialEnded(slice, work.trial, work.fence, outcome, line, found))
    except (OSError, LuthierError) as refused:  # the disk does not even take that it failed
        return Faulted(slice, work.trial, work.fence, _one_line(refused))


def why_infeasible(error: BaseException) -> str | None:
    """Return why a trial can never run on its slice; None for other errors.

    Args:
      error: The exception that a trial raised.
    """
    if isinstance(error, ShardingError | ValidationError):
        return _one_line(error)
    # JAX has one class for all errors of XLA; the status code is in the text only.
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
        return f"out of memory: {_one_line(error)}"[:_LONGEST_REASON]
    return None


def summary(metrics_path: pathlib.Path, mode: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a run, from its record, however often it was resumed.

    Args:
      metrics_path: The run's metrics.jsonl.
      mode: How it was run.
    """
    # From the file and not from memory: a trial that was resumed ran in several processes, and only
    # the record has all of it. No step is there twice: a restart cuts the file back to its
    # checkpoint (`metrics_file.cut_back`).
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
        # Later evaluations replace earlier ones, so the last value of each metric remains, also
        # where evaluation sets have schedules of their own.
        metrics |= values
    return {
        "metrics": metrics,
        "series": [[step, values] for step, values in series.items()],
        "steps": steps,
        # The median, so that a few slow steps, such as the first, do not count.
        "facts": {"step_seconds": statistics.median(seconds) if seconds else None},
        "mode": dict(mode),
    }


def _written(work: TrialWork, ended: TrialEnded) -> TrialEnded:
    write_result(work.directory, ended)
    return ended


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if not isinstance(error, LuthierError):
        text = f"{type(error).__name__}: {text}"
    return text[:_LONGEST_REASON]


# Requests of the driver: read by a thread, taken by the thread that trains.

EXIT_ORPHANED = 3


@dataclasses.dataclass(frozen=True)
class TrialTask:
    """A trial to be run.

    Args:
      work: What it belongs to.
      trial: Which one.
      watcher: Knows whether it is to be stopped, even before it begins.
    """

    work: Work
    trial: TrialWork
    watcher: Watcher


class Inbox:
    """The trials that wait in a worker, and the driver's messages to those that run.

    A driver that dies without a word takes its workers with it, at once: another driver may want
    the directories of their trials.

    Args:
      stream: Where the driver's messages come from.
      make_watcher: From a trial, and whether it asks, to its watcher.
    """

    def __init__(self, stream: IO[bytes], make_watcher: Callable[[TrialWork, bool], TrialWatcher]):
        self._stream = stream
        self._make_watcher = make_watcher
        self._tasks: list[TrialTask] = []
        self._watchers: dict[tuple[int, int], TrialWatcher] = {}
        self._last: Work | None = None
        self._closing = False
        self._changed = threading.Condition()
        # A thread, because the main thread trains: a request to stop, or the driver's death, must
        # be noticed in the middle of a step.
        self._thread = threading.Thread(target=self._read, name="luthier-inbox", daemon=True)
        self._thread.start()

    def take(self, fits: Callable[[TrialTask], bool] = lambda task: True) -> TrialTask | None:
        """Return the first waiting trial that fits, without waiting for one; None without one."""
        with self._changed:
            # Trials that were stopped while they waited: the driver has put them elsewhere.
            self._tasks = [task for task in self._tasks if task.watcher.requested is None]
            for task in self._tasks:
                if fits(task):
                    self._tasks.remove(task)
                    return task
            return None

    def next(self, is_broken: Callable[[], bool]) -> TrialTask | None:
        """Wait for a trial and take it; return None when the worker ends.

        Args:
          is_broken: Whether the devices can take no more trials.
        """
        # Asked again after the wait: a fault may have shown meanwhile, in a trial that was being
        # closed. The driver gives a trial that is left here to another worker.
        while not is_broken() and self.wait() and not is_broken():
            # None where its trial was stopped while it waited.
            if (task := self.take()) is not None:
                return task
        return None

    def wait(self) -> bool:
        """Wait for a trial; return whether there is one, which is not so when the worker ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._closing)
            # False although trials wait: a worker that closes begins none of them.
            return not self._closing

    def close(self) -> None:
        """Have running trials saved and start no more; called from another thread."""
        with self._changed:
            self._handle(Close())
            self._changed.notify_all()

    @property
    def num_waiting(self) -> int:
        """The number of trials that wait."""
        return len(self._tasks)

    def _read(self) -> None:
        with self._stream:
            for message in read_messages(self._stream):
                with self._changed:
                    self._handle(message)
                    self._changed.notify_all()
        # The stream has ended without `Close`: the driver is dead. `os._exit`, because the main
        # thread is in a compiled step, or in user code, and cannot be asked to leave.
        if not self._closing:
            os._exit(EXIT_ORPHANED)

    def _handle(self, message: object) -> None:
        if isinstance(message, Work):
            self._last = message
            for trial in message.trials:
                self._add(message, trial)
        # A refill belongs to the work that was sent last, whose lanes it fills.
        elif isinstance(message, Refill) and self._last is not None:
            self._add(self._last, message.trial)
        elif isinstance(message, Answer | Stop):
            watcher = self._watchers.get((message.trial, message.fence))
            if watcher is not None and isinstance(message, Answer):
                watcher.answer(message.verdict)
            elif watcher is not None:
                watcher.stop()
        elif isinstance(message, Close):
            self._closing = True
            for watcher in self._watchers.values():
                watcher.stop()

    def _add(self, work: Work, trial: TrialWork) -> None:
        # A watcher exists from the moment the trial arrives: a stop that comes before it runs is
        # remembered there (see `take`).
        watcher = self._make_watcher(trial, work.asks)
        # By fence, too: an answer to an earlier lease of the same trial must not reach the later
        # one.
        self._watchers[trial.trial, trial.fence] = watcher
        self._tasks.append(TrialTask(work, trial, watcher))


# Work in a worker: plans are made once for each program, trials are run one by one.

NUM_PLANS = 8
"""Programs that a worker keeps compiled."""

MAX_CLOSING = 8
"""Trials that may be closing at a time: a disk that is slower than training holds it back."""


RAISED = (Exception, SystemExit)
"""What ends a trial and not its worker. User code that calls `sys.exit` would otherwise choose the
worker's exit code, and with 75 be run again for ever, as if its devices had been taken away."""


class Plans:
    """The plans of a worker: trials that differ in hoisted leaves only share a compiled program.

    Args:
      devices: What they are for.
    """

    def __init__(self, devices: Sequence[jax.Device]):
        self.devices = list(devices)
        self._discoveries = Discoveries()
        self._plans: collections.OrderedDict[str, planner.Plan] = collections.OrderedDict()

    def key(
        self, graph: Graph, candidates: Sequence[str], num_devices: int = 0
    ) -> tuple[str, tuple[str, ...]]:
        """Return the key of a graph's program, and the leaves that are hoisted.

        Of a program that is new, this makes the plan, with all leaves hoisted that may be: where
        it can be traced, as it mostly can, nothing is traced twice.

        Args:
          graph: A valid experiment graph.
          candidates: Leaves that may be hoisted; those that cannot be stay constants.
          num_devices: For the first of the devices only; 0 means all.
        """

        def attempt(hoist: tuple[str, ...]) -> bool:
            try:
                plan = planner.make(graph, self.devices[: num_devices or None], hoist)
                # Evaluations are traced lazily elsewhere. Here a leaf counts as hoistable only if
                # they, too, can be traced with it, or the trial would fail at its first evaluation.
                trace_evaluations(plan.program)
            except Exception:  # which leaf is at fault, or that it is none of them, is found next
                return False
            self._keep(self._name(program_key(graph, hoist), num_devices), plan)
            return True

        if not candidates:
            return program_key(graph, ()), ()
        found = self._discoveries.discover(graph, candidates, attempt)
        return found.key or program_key(graph, found.paths), found.paths

    def plan(self, graph: Graph, candidates: Sequence[str], num_devices: int = 0) -> planner.Plan:
        """Return the plan of a graph, with the compiled functions of its program if there are any.

        Args:
          graph: A valid experiment graph.
          candidates: Leaves that may be hoisted; those that cannot be stay constants.
          num_devices: For the first of the devices only; 0 means all.

        Raises:
          BadInput: The graph cannot be run on the devices.
        """
        key, hoist = self.key(graph, candidates, num_devices)
        name = self._name(key, num_devices)
        if name in self._plans:
            self._plans.move_to_end(name)
            # The same compiled functions over this trial's graph: its hoisted leaves have other
            # values.
            return self._plans[name].of(graph)
        plan = planner.make(graph, self.devices[: num_devices or None], hoist)
        self._keep(name, plan)
        return plan

    def _name(self, key: str, num_devices: int) -> str:
        # The key is that of equal devices; the same trial may be planned for one of them (lanes of
        # `shard`) and for all.
        return f"{key} on {num_devices or len(self.devices)}"

    def _keep(self, name: str, plan: planner.Plan) -> None:
        self._plans[name] = plan
        # The least recently used goes first.
        while len(self._plans) > NUM_PLANS:
            self._plans.popitem(last=False)


class Execution:
    """Runs trials on the devices of one slice, all of which belong to this process.

    `luthier.launch` derives one for slices of several processes, all of which call the same methods
    in the same order; what they must do alike or only once is in `open`, `agree` and `_settle`.

    Args:
      slice: The slice's number.
      plans: The plans for its devices.
      packages: The user's modules that a graph may name.
      memory_bytes: Memory of one device; None where it has no limit of its own.
      send: Sends an event to the driver.
    """

    def __init__(
        self,
        slice: int,
        plans: Plans,
        packages: Sequence[str],
        memory_bytes: int | None,
        send: Callable[[Any], None],
    ):
        self.slice = slice
        self.plans = plans
        self.memory_bytes = memory_bytes
        self._packages = tuple(packages)
        self._send = send
        # One thread: runs are closed one after another, beside the one that trains.
        self._closer = concurrent.futures.ThreadPoolExecutor(1, "luthier-closing")
        self._closing: collections.deque[tuple[int, concurrent.futures.Future[None]]] = (
            collections.deque()
        )  # bytes of the state on one device, and the end of the closing
        self.is_broken = False  # whether a fault of the devices may have left them unusable

    def read(self, work: TrialWork) -> Graph:
        """Return the graph of a trial, which is valid.

        Raises:
          BadInput: It is not.
        """
        text = read_text(work.directory, "config.json")
        if text is None:
            raise RunError(Problem(f"{work.directory} has no config.json"))
        graph = graphs.from_json(text, packages=self._packages)
        if history := read_text(work.directory, "config.history.json"):
            graphs.restore_history(graph, json.loads(history))
        # Again, although the driver validated it: the file was read back, and user code may differ
        # between the driver and a worker elsewhere.
        graphs.validate(graph, self._packages)
        return graph

    def watcher(self, work: TrialWork, asks: bool) -> TrialWatcher:
        """Return the watcher of a trial."""
        return TrialWatcher(self.slice, work, asks, self._send)

    def mode(
        self, hoist: Sequence[str], lanes: str = "single", num_lanes: int = 1, lane: int = 0
    ) -> dict[str, Any]:
        """Return how a trial is run, as its result records it."""
        devices = self.plans.devices
        return {
            "lanes": lanes,
            "num_lanes": num_lanes,
            "lane": lane,
            "hoisted": list(hoist),
            "slice": {"devices": len(devices), "kind": devices[0].device_kind},
        }

    def open(
        self, plan: planner.Plan, step: TrainStep, work: TrialWork, watcher: Watcher
    ) -> contextlib.AbstractContextManager[Session]:
        """Return the session of a trial, to be entered."""
        watcher.bounds_last = work.is_to_rung
        directory = local_folder(work.directory) / RUN
        request = Request(packages=self._packages, directory=directory)
        return open_session(plan.program.graph, plan, step, request, watcher)

    def agree(self, make: Callable[[], _T]) -> _T:
        """Return a value that all processes of the slice must have alike; JSON values.

        Args:
          make: Returns it; of several processes, the first one calls this.
        """
        return make()

    def report_end(
        self,
        trial: TrialWork,
        plan: planner.Plan,
        mode: Mapping[str, Any],
        result: Result,
        peak_bytes: int | None,
    ) -> None:
        """Write and send how a trial ended, or that it paused; nothing for an interrupted one.

        Args:
          trial: The trial.
          plan: Its plan.
          mode: How it was run.
          result: What training came to.
          peak_bytes: Bytes on one device that its compiled step needs.
        """
        self._settle(
            trial, mode, None, lambda: ended(self.slice, trial, plan, mode, result, peak_bytes)
        )

    def report_failure(
        self, trial: TrialWork, mode: Mapping[str, Any], error: BaseException
    ) -> None:
        """Send that a trial cannot run, failed, or met a fault of the machine."""
        self._settle(trial, mode, error)

    def _settle(
        self,
        trial: TrialWork,
        mode: Mapping[str, Any],
        error: BaseException | None,
        end: Callable[[], TrialEnded | Paused | Faulted | None] = lambda: None,
    ) -> None:
        """Write and send the end of a trial; called once for each lease of one that has begun.

        Args:
          trial: The trial.
          mode: How it was run.
          error: Why it has no result; None where it has one.
          end: Writes the result.
        """
        event: TrialEnded | Paused | Faulted | None = None
        if error is None:
            try:
                event = end()
            except RAISED as refused:  # its result cannot be written
                error = refused
        if error is not None:
            event = failed(self.slice, trial, mode, error)
            # After an error of a device, such as ECC, a process cannot use it any more: this one
            # ends, and the engine starts another. A full disk, or a store that is away, does not
            # matter to what is in memory.
            is_elsewhere = faults.error_number(error) is not None or any(
                isinstance(link, StoreError) for link in faults.chain(error)
            )
            if isinstance(event, Faulted) and not is_elsewhere:
                self.is_broken = True
        if event is not None:
            self._send(event)

    def run(self, work: Work, trial: TrialWork, watcher: Watcher) -> None:
        """Run one trial by itself, from where it was left to its end.

        Errors of the trial are reported to the driver; nothing is raised for them. The trial may
        still be closing when this returns (`close`).
        """
        # Filled in again once the plan is known: a failure before that must be reported, too.
        mode = self.mode(())
        try:
            plan = self.plans.plan(self.read(trial), work.hoist)
            mode = self.mode(plan.program.hoist)
            problem = memory_problem(plan, self.memory_bytes)
            if problem is not None:
                raise problem
            self.make_room(step_bytes(plan) if self.memory_bytes is not None else None)
            # A step of its own for each trial: the state of the last one is freed with it.
            step = CompiledStep(plan.program, keeps_batches=True)
            opening = self.open(plan, step, trial, watcher)
            session = opening.__enter__()
            leaving(opening, session.train)
        except RAISED as error:
            return self.report_failure(trial, mode, error)
        self.close(Closing(trial, plan, mode, opening, session, step_bytes(plan)))

    def close(self, closing: Closing) -> None:
        """Save and close the run of a trial that has trained, and report its end, in a thread.

        The last checkpoint and the records take as long as hundreds of steps of a small trial. The
        place of the trial is free meanwhile.
        """
        if closing.session.loop is None or distributed.is_several():
            # It was over before; or the processes of a device group close it together, by
            # collectives, which must come in the same order in all of them.
            return self._end(closing)
        closing.session.loop.release()
        trial = closing.trial
        self._send(TrialTrained(self.slice, trial.trial, trial.fence))
        while len(self._closing) >= MAX_CLOSING:
            self._closing.popleft()[1].result()
        self._closing.append((closing.state_bytes, self._closer.submit(self._end, closing)))

    def _end(self, closing: Closing) -> None:
        trial, plan, mode = closing.trial, closing.plan, closing.mode
        try:
            if closing.session.loop is not None:
                leaving(closing.opening, closing.session.loop.save_last)
            closing.opening.__exit__(None, None, None)
            result = closing.session.outcome
        except RAISED as error:
            return self.report_failure(trial, mode, error)
        self.report_end(trial, plan, mode, result, closing.peak_bytes)

    def make_room(self, needed_bytes: int | None) -> None:
        """Wait for trials that are closing, where memory has no room for their states as well.

        Args:
          needed_bytes: What comes next needs on one device; None where that is not known.
        """
        # A save may leave the way to the host to a thread (`DeviceCopy`): until it is durable the
        # state is on the device.
        while self._closing and self.memory_bytes is not None:
            held = sum(num_bytes for num_bytes, _ in self._closing)
            if needed_bytes is not None and held + needed_bytes <= self.memory_bytes:
                return
            self._closing.popleft()[1].result()

    def wait_until_closed(self) -> None:
        """Wait until no trial is closing any more."""
        while self._closing:
            self._closing.popleft()[1].result()


@dataclasses.dataclass(frozen=True)
class Closing:
    """A trial that has taken its last step, and whose run is still open.

    Args:
      trial: Which one.
      plan: Its plan.
      mode: How it was run.
      opening: The context manager of its session.
      session: The session.
      peak_bytes: Bytes on one device that its compiled step needs.
    """

    trial: TrialWork
    plan: planner.Plan
    mode: Mapping[str, Any]
    opening: contextlib.AbstractContextManager[Session]
    session: Session
    peak_bytes: int | None

    @property
    def state_bytes(self) -> int:
        """Bytes of its state on one device."""
        return sum(p.bytes_per_device for p in self.plan.program.placements.values())


def leaving(opening: contextlib.AbstractContextManager[Any], part: Callable[[], None]) -> None:
    """Do a part of a `with` block whose end comes elsewhere; leave the block where that raises.

    Args:
      opening: The context manager, which was entered.
      part: The part.
    """
    try:
        part()
    # `BaseException`, as a `with` statement would: the session must release its lock and its files,
    # whatever leaves the block.
    except BaseException as error:
        opening.__exit__(type(error), error, error.__traceback__)
        raise
