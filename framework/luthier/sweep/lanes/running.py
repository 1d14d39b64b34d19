"""Trials in lanes: each is an ordinary run, whose steps are taken together with its neighbours'."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any, Protocol

from luthier.plan import Plan
from luthier.sweep.engines.execution import RAISED, Execution
from luthier.sweep.engines.inbox import Task
from luthier.sweep.engines.trial import ended
from luthier.sweep.gate import too_large
from luthier.sweep.lanes.pack import LaneVector, Pack, PackedProgram, compile_lanes
from luthier.sweep.lanes.probe import NUM_DEVICES, Choice, choose
from luthier.train.feed import Fed
from luthier.train.results import Result


class Source(Protocol):
    """Where further trials come from."""

    def take(self, fits: Callable[[Task], bool]) -> Task | None:
        """Return a trial that fits; None where there is none now."""


@dataclasses.dataclass
class _Running:
    """A trial in a lane.

    Args:
      task: The trial.
      plan: Its plan.
      mode: How it is run.
      training: Its session, which waits for the vector of a step.
      fed: The batch of that step.
    """

    task: Task
    plan: Plan
    mode: dict[str, Any]
    training: Generator[Fed, Any, Result]
    fed: Fed


class LaneRunner:
    """Runs trials side by side on the devices of one slice.

    Args:
      execution: Reads, plans and ends trials.
      inbox: Where further trials come from.
    """

    def __init__(self, execution: Execution, inbox: Source):
        self._execution = execution
        self._inbox = inbox
        self._choices: dict[str, Choice] = {}

    def run(self, task: Task, choice: Choice | None = None, lane: int = 0) -> None:
        """Run a trial, with all that wait or come and are served by the same program.

        What is wrong with a trial is told to the driver; nothing is raised for it.

        Args:
          task: The trial.
          choice: How trials share the slice; None goes by the work.
          lane: Where the trial goes.
        """
        execution, work = self._execution, task.work
        try:
            graph = execution.read(task.trial)
            key, _ = execution.plans.key(graph, work.hoist)
            choice = choice or self._choice(key, graph, task)
            if choice.lanes == "single":
                return execution.run(work, task.trial, task.watcher)
            plan = execution.plans.plan(graph, work.hoist, choice.num_devices)
            devices = execution.plans.devices
            packed = compile_lanes(plan.program, choice.lanes, choice.num_lanes, devices)
            limit = execution.memory_bytes
            problem = too_large("the compiled step of all lanes", packed.step_bytes or 0, limit)
            if problem is not None:
                raise problem
        except Exception as error:
            mode = execution.mode((), work.lanes)
            return execution.tell_failed(task.trial, mode, error)
        _Lanes(execution, self._inbox, packed, key, choice).run(task, lane)

    def _choice(self, key: str, graph: Any, task: Task) -> Choice:
        """Return how the trials of a program share the slice; measured once for each program."""
        work, plans = task.work, self._execution.plans
        num_lanes = len(work.trials) + work.spare_lanes
        if work.lanes != "auto":
            return Choice(work.lanes, num_lanes, NUM_DEVICES.get(work.lanes, 0))
        if key not in self._choices:
            self._choices[key] = choose(
                lambda num_devices: plans.plan(graph, work.hoist, num_devices),
                plans.devices,
                num_lanes,
                self._execution.memory_bytes,
            )
        return self._choices[key]


class _Lanes:
    """The lanes of one program, and the trials in them."""

    def __init__(
        self,
        execution: Execution,
        inbox: Source,
        packed: PackedProgram,
        key: str,
        choice: Choice,
    ):
        self._execution = execution
        self._inbox = inbox
        self._pack = Pack(packed)
        self._key = key
        self._choice = choice
        self._running: dict[int, _Running] = {}
        self._others: set[tuple[int, int]] = set()  # trials of other programs, which wait

    def run(self, task: Task, lane: int) -> None:
        """Run a trial and all that fit, until no lane has one."""
        self._begin(lane, task)
        self._fill()
        while self._running:
            batches = {lane: running.fed.arrays for lane, running in self._running.items()}
            try:
                vectors = self._pack.step(batches)
            except Exception as error:  # all lanes go down with their program
                for lane in list(self._running):
                    self._advance(lane, error=error)
                return
            for lane in list(self._running):
                self._advance(lane, vector=LaneVector(vectors, lane))
            self._fill()

    def _fill(self) -> None:
        for lane in range(self._choice.num_lanes):
            while lane not in self._running:
                task = self._inbox.take(self._fits)
                if task is None:
                    return
                self._begin(lane, task)

    def _fits(self, task: Task) -> bool:
        identity = (task.trial.trial, task.trial.fence)
        if identity in self._others or task.work.lanes == "single":
            return False
        try:
            graph = self._execution.read(task.trial)
            fits = self._execution.plans.key(graph, task.work.hoist)[0] == self._key
        except Exception:  # told when its turn comes
            fits = False
        if not fits:
            self._others.add(identity)
        return fits

    def _begin(self, lane: int, task: Task) -> None:
        execution, choice = self._execution, self._choice
        mode = execution.mode((), choice.lanes, choice.num_lanes, lane)
        try:
            graph = execution.read(task.trial)
            plan = execution.plans.plan(graph, task.work.hoist, choice.num_devices)
            mode["hoisted"] = list(plan.program.hoist)
            training = execution.begin(plan, self._pack.slot(lane), task.trial, task.watcher)
            fed = next(training)
        except StopIteration as end:  # it was over before, and only its result was missing
            self._tell(task, plan, mode, end.value)
        except RAISED as error:
            execution.tell_failed(task.trial, mode, error)
        else:
            self._running[lane] = _Running(task, plan, mode, training, fed)

    def _advance(self, lane: int, vector: Any = None, error: Exception | None = None) -> None:
        """Go on with a trial after a step, or after what kept the step from being taken."""
        running, execution = self._running[lane], self._execution
        try:
            if error is not None:
                running.training.throw(error)
            running.fed = running.training.send(vector)
            return
        except StopIteration as end:
            self._tell(running.task, running.plan, running.mode, end.value)
        except RAISED as raised:
            execution.tell_failed(running.task.trial, running.mode, raised)
        del self._running[lane]

    def _tell(self, task: Task, plan: Plan, mode: dict[str, Any], result: Result) -> None:
        execution, step_bytes = self._execution, self._pack.packed.step_bytes
        try:
            event = ended(execution.slice, task.trial, plan, mode, result, step_bytes)
        except Exception as error:  # its result cannot be written
            return execution.tell_failed(task.trial, mode, error)
        execution.tell(event)
