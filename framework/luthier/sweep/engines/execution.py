"""What a worker does with work: plans are made once for each program, trials are run one by one."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax

from luthier import faults
from luthier import graph as graphs
from luthier import plan as plans
from luthier.program import Program
from luthier.records.files import read_json
from luthier.sweep.engines.trial import RUN, TrialWatcher, ended, failed
from luthier.sweep.gate import memory_problem, step_bytes
from luthier.sweep.hoisting import Discoveries, program_key
from luthier.sweep.protocol import Ended, Faulted, TrialWork, Work
from luthier.train.evaluate import Evaluator
from luthier.train.feed import Fed
from luthier.train.loop import OwnSlot, Slot
from luthier.train.opening import Request
from luthier.train.results import Result
from luthier.train.run import drive, session

NUM_PLANS = 8
"""Programs that a worker keeps compiled."""


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
        self._plans: collections.OrderedDict[str, plans.Plan] = collections.OrderedDict()

    def key(
        self, graph: Any, candidates: Sequence[str], num_devices: int = 0
    ) -> tuple[str, tuple[str, ...]]:
        """Return what is equal for all graphs of one program, and the leaves that are hoisted.

        Of a program that is new, this makes the plan, with all leaves hoisted that may be: where
        it can be traced, as it mostly can, nothing is traced twice.

        Args:
          graph: A valid experiment graph.
          candidates: Leaves that may be hoisted; those that cannot be stay constants.
          num_devices: For the first of the devices only; 0 means all.
        """

        def attempt(hoist: tuple[str, ...]) -> bool:
            try:
                plan = plans.make(graph, self.devices[: num_devices or None], hoist)
                trace_evaluations(plan.program)
            except Exception:  # which leaf is at fault, or that it is none of them, is found next
                return False
            self._keep(self._name(program_key(graph, hoist), num_devices), plan)
            return True

        hoist: tuple[str, ...] = ()
        if candidates:
            hoist = self._discoveries.discover(graph, candidates, attempt).paths
        return program_key(graph, hoist), hoist

    def plan(self, graph: Any, candidates: Sequence[str], num_devices: int = 0) -> plans.Plan:
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
            return self._plans[name].of(graph)
        plan = plans.make(graph, self.devices[: num_devices or None], hoist)
        self._keep(name, plan)
        return plan

    def _name(self, key: str, num_devices: int) -> str:
        return f"{key} on {num_devices or len(self.devices)}"

    def _keep(self, name: str, plan: plans.Plan) -> None:
        self._plans[name] = plan
        while len(self._plans) > NUM_PLANS:
            self._plans.popitem(last=False)


class Execution:
    """Runs trials on the devices of one slice.

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
        self.is_broken = False  # whether a fault of the devices may have left them unusable

    def read(self, work: TrialWork) -> Any:
        """Return the graph of a trial, which is valid.

        Raises:
          BadInput: It is not.
        """
        path = pathlib.Path(work.directory, "config.json")
        graph = graphs.from_json(path.read_text("utf-8"), packages=self._packages)
        history = read_json(path.with_name("config.history.json"))
        if history:
            graphs.restore_history(graph, history)
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

    def begin(
        self, plan: plans.Plan, slot: Slot, work: TrialWork, watcher: TrialWatcher
    ) -> Generator[Fed, Any, Result]:
        """Return the training of a trial, whose steps the caller takes."""
        request = Request(packages=self._packages, directory=pathlib.Path(work.directory, RUN))
        return session(plan.program.graph, plan, slot, request, watcher)

    def tell(self, event: Ended | Faulted | None) -> None:
        """Send how a trial ended, if it did."""
        if event is not None:
            self._send(event)

    def tell_failed(self, trial: TrialWork, mode: Mapping[str, Any], error: BaseException) -> None:
        """Send that a trial cannot run, went wrong, or met a fault of the machine."""
        event = failed(self.slice, trial, mode, error)
        # After an error of a device, such as ECC, a process cannot use it any more: this one ends,
        # and the engine starts another. A full disk does not matter to what is in memory.
        if isinstance(event, Faulted) and faults.error_number(error) is None:
            self.is_broken = True
        self.tell(event)

    def run(self, work: Work, trial: TrialWork, watcher: TrialWatcher) -> None:
        """Run one trial by itself, from where it was left to its end.

        What is wrong with the trial is told to the driver; nothing is raised for it.
        """
        mode = self.mode(())
        try:
            plan = self.plans.plan(self.read(trial), work.hoist)
            mode = self.mode(plan.program.hoist)
            problem = memory_problem(plan, self.memory_bytes)
            if problem is not None:
                raise problem
            slot = OwnSlot(plan.program)
            result = drive(self.begin(plan, slot, trial, watcher), slot.step)
            self.tell(ended(self.slice, trial, plan, mode, result, step_bytes(plan)))
        except RAISED as error:
            self.tell_failed(trial, mode, error)


def trace_evaluations(program: Program) -> None:
    """Trace every evaluation of a program, as its first use does.

    Args:
      program: What they are evaluations of.
    """
    for name, evaluation in program.experiment.evaluations.items():
        Evaluator(program, evaluation, f"evaluations.{name}").trace()
