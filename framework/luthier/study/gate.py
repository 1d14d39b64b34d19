"""Feasibility check: trials that cannot run on a device group are rejected before it is occupied.

Shapes and divisibility, then bytes of the state, are worked out in a process of its own, on
virtual CPU devices of the slice's number. The compiled program's memory is looked at by the slice's
own worker, which only compiles before it knows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, ClassVar

from luthier import environment
from luthier import graph as graphs
from luthier.errors import BadInput, LuthierError, Problem, RunError, ValidationError
from luthier.graph import Graph
from luthier.study.protocol import SliceInfo

if TYPE_CHECKING:  # the planner imports JAX, which a gate in the driver needs not
    from luthier.planner import Plan, Report

MEBIBYTE = 2**20
LEVELS = ("shapes", "compile")


class ShapeGate:
    """Rejects trials whose arrays cannot be split over a device group, or whose state does not fit.

    Args:
      packages: The user's modules that a graph may name.
      level: `shapes`, or `compile`, which also compiles the training step where the group has CPUs
        and a limit of memory: what the step needs beside the state depends on rematerialization
        and on the mesh. On other devices only their own compiler knows (`PlanGate`).
    """

    by_program: ClassVar[bool] = True  # trials of one program get one answer: it is asked once

    def __init__(self, packages: Sequence[str] = (), level: str = "shapes"):
        if level not in LEVELS:
            what, remedy = f"there is no level {level!r}", f"write {' or '.join(LEVELS)}"
            raise BadInput(Problem(what, "gate.level", remedy=remedy))
        self._packages = tuple(packages)
        self._level = level
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._spare: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start a process before the first question, while device groups start, too."""
        if not self._processes and self._spare is None:
            self._spare = self._start()

    def __call__(self, graph: Graph, slice: SliceInfo) -> str:
        """Return why the trial with `graph` cannot run on a slice; nothing where it can.

        Args:
          graph: The trial's graph.
          slice: The device group.

        Returns:
          A reason, or an empty string.

        Raises:
          RunError: The process that works it out died.
        """
        # One process for each number of devices, because the number of virtual devices is fixed
        # when JAX starts; kept, because importing takes seconds and a trial milliseconds.
        process = self._process(slice.num_devices)
        asked = {
            "graph": graphs.to_json(graph),
            "devices": slice.num_devices,
            "memory_bytes": slice.memory_bytes,
            "compiles": self._level == "compile" and slice.device_kind == "cpu",
        }
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            del self._processes[slice.num_devices]
            with contextlib.suppress(OSError), process:
                process.kill()
            raise RunError(Problem(f"the gate's process ended ({process.returncode})", "gate"))
        return json.loads(line)

    def close(self) -> None:
        """End the processes."""
        if self._spare is not None:
            with self._spare as process:
                process.kill()  # it may still import, and would notice its end only after that
            self._spare = None
        while self._processes:
            with self._processes.popitem()[1] as process:
                assert process.stdin is not None
                process.stdin.close()

    def _process(self, num_devices: int) -> subprocess.Popen[str]:
        if num_devices not in self._processes:
            self._processes[num_devices] = self._spare or self._start()
            self._spare = None
        return self._processes[num_devices]

    def _start(self) -> subprocess.Popen[str]:
        paths = [os.getcwd(), os.environ.get("PYTHONPATH")]
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            # The parent's flags may be of an accelerator, which XLA on the CPU does not know.
            "XLA_FLAGS": "",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        return subprocess.Popen(
            [
                sys.executable,
                # As for workers: the working directory comes by PYTHONPATH, in its place among the
                # others.
                "-P",
                "-m",
                "luthier.study.gate",
                str(os.getpid()),
                *self._packages,
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the driver alone. The process ends with it by the id that it is given
            # (`environment.end_with`), also where the driver is killed.
            start_new_session=True,
        )


@dataclasses.dataclass(frozen=True)
class PlanGate:
    """Rejects trials that do not fit a device group that need not be here, as planned.

    Args:
      slice: Target of the plan, whatever a trial runs on: `v5e-16`, `h100:8`.
      level: `shapes` takes seconds for each trial and estimates activations; `compile` asks the
        compiler.
      packages: The user's modules that a graph may name.
    """

    by_program: ClassVar[bool] = True

    slice: str
    level: str = "shapes"
    packages: Sequence[str] = ()

    def __call__(self, graph: Graph, slice: SliceInfo) -> str:
        """Return why the trial with `graph` cannot run there; `slice` does not matter.

        Args:
          graph: The trial's graph.
          slice: The device group.

        Returns:
          A reason, or an empty string.
        """
        del slice
        from luthier.planner import plan_apart

        try:
            report = plan_apart(graph, self.slice, level=self.level, packages=self.packages)
        except BadInput as error:
            return " ".join(str(error).split())
        reason = why_too_large(report)
        return reason and f"{self.slice}: {reason}"


def why_too_large(report: Report) -> str:
    """Return why a plan does not fit its slice; empty where it fits or that is unknown.

    Args:
      report: A `luthier.planner.Report`.
    """
    if report.fits is not False:
        return ""
    needed, limit = report.memory.needed_bytes, report.memory.limit_bytes
    if needed is None or limit is None:
        return f"the compiler reports: {report.memory.refusal}"
    about = "an estimated " if report.memory.is_estimated else ""
    return f"needs {about}{_mebibytes(needed)} on each device, which has {_mebibytes(limit)}"


def shape_problem(
    graph: Graph,
    devices: Sequence[Any],
    memory_bytes: int | None,
    packages: Sequence[str] = (),
    compiles: bool = False,
) -> str:
    """Return why a graph cannot run on devices, judged by shapes; empty where it can.

    No array is made.

    Args:
      graph: An experiment graph.
      devices: As many as the slice has, of any kind.
      memory_bytes: Memory of one device; None where it has no limit of its own.
      packages: The user's modules that a graph may name.
      compiles: Whether the memory of the compiled step counts, too; `devices` are of the slice's
        kind then.
    """
    from luthier import planner
    from luthier import program as programs
    from luthier.planner.checks import check

    try:
        graphs.validate(graph, packages)
        # Makes the program abstractly: shapes and shardings of the state are known without an
        # array.
        program = programs.make(graph, devices)
        problems = check(graph, program)
        if problems:
            raise ValidationError(problems)
        # The state alone is a lower bound of what the step needs, so a refusal by it is certain;
        # activations are judged by the worker, after compiling.
        held = sum(p.bytes_per_device for p in program.placements.values())
        problem = too_large("the state", held, memory_bytes)
        if problem is None and compiles:
            problem = memory_problem(planner.make(graph, devices), memory_bytes)
        if problem is not None:
            raise problem
    except BadInput as error:
        return " ".join(str(error).split())
    return ""


def too_large(what: str, needed: int, memory_bytes: int | None) -> ValidationError | None:
    """Return the error if something does not fit the memory of a device, else None."""
    if memory_bytes is None or needed <= memory_bytes:
        return None
    what = f"{what} needs {_mebibytes(needed)} on each device, which has {_mebibytes(memory_bytes)}"
    return ValidationError(Problem(what))


def memory_problem(plan: Plan, memory_bytes: int | None) -> ValidationError | None:
    """Return why a plan's compiled step does not fit its devices; None where it fits.

    It compiles, where the state alone fits; nothing is run.

    Args:
      plan: The plan.
      memory_bytes: Memory of one device; None where it has no limit of its own.
    """
    if memory_bytes is None:
        return None
    # The cheap bound first: it needs no compiler.
    held = sum(p.bytes_per_device for p in plan.program.placements.values())
    problem = too_large("the state", held, memory_bytes)
    return problem or too_large("the compiled step", step_bytes(plan) or 0, memory_bytes)


def step_bytes(plan: Plan) -> int | None:
    """Return the bytes on one device that a plan's compiled step needs, if that is known."""
    from luthier import planner

    memory = planner.step_memory(plan.program)
    return None if memory is None else memory.needed


def _mebibytes(number: int) -> str:
    return f"{number / MEBIBYTE:,.1f} MiB"


def serve(questions: IO[str], answers: IO[str], packages: Sequence[str]) -> None:
    """Answer questions, a line each, until there are no more.

    Args:
      questions: Objects with `graph`, `devices`, `memory_bytes` and `compiles`.
      answers: Where the reasons go; an empty one where the trial can run.
      packages: The user's modules that a graph may name.
    """
    # Imported before the first question, which may be a while after the start (`begin`).
    import jax

    from luthier import parallel, planner, program  # noqa: F401

    for line in questions:
        asked: Mapping[str, Any] = json.loads(line)
        try:
            # The number is the same in all questions: JAX makes its devices once.
            parallel.configure(f"cpu:{asked['devices']}")
            graph = graphs.from_json(asked["graph"], packages=packages)
            limit, compiles = asked["memory_bytes"], asked["compiles"]
            reason = shape_problem(graph, jax.devices(), limit, packages, compiles)
        except LuthierError as error:
            reason = " ".join(str(error).split())
        answers.write(json.dumps(reason) + "\n")
        answers.flush()


def main() -> None:
    """Serve on the standard streams; other output goes to standard error.

    It is called with the id of the process that asks, and the packages.
    """
    environment.end_with(int(sys.argv[1]))
    environment.collect_rarely()
    # User code that prints must not write into the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers, sys.argv[2:])


if __name__ == "__main__":
    main()
