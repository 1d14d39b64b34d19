"""Predictions for a run on local devices, and the measurements to compare them with."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import jax

from luthier.errors import Problem, ValidationError
from luthier.parallel import format_bytes
from luthier.planner.compiled.memory import CompiledMemory, memory_of
from luthier.planner.device_facts import cpu_chip
from luthier.planner.plan import Plan
from luthier.planner.roofline import Roofline, flops_by_dtype, roofline
from luthier.planner.targets import CHIPS, Chip, TpuChip
from luthier.program import Program
from luthier.records.events import MEMORY_BYTES, STEP_SECONDS, Step

NUM_FIRST = 2
"""Number of first steps that are not measured: they wait for threads that start beside them."""

NUM_LAST = 10_000
"""Number of last steps whose median is reported; bounds the list that a long run keeps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """Memory and time of a run on local devices, predicted from shapes.

    Args:
      held_bytes: Bytes that one device holds permanently: the state, and a batch.
      gradient_bytes: Bytes of the gradients on one device.
      limit_bytes: Memory of one device; None where unknown.
      step_seconds: Roofline lower bound of a step; None for an unknown device, and where it is
        too small to estimate.
      binding: The term of the roofline that decides.
      reason: Reason for which a known device has no `step_seconds`.
    """

    held_bytes: int
    gradient_bytes: int
    limit_bytes: int | None
    step_seconds: float | None = None
    binding: str = ""
    reason: str = ""

    def __str__(self) -> str:
        held = f"{format_bytes(self.held_bytes)} held on each device"
        of = "" if self.limit_bytes is None else f" of {format_bytes(self.limit_bytes)}"
        text = f"{held}{of}, and {format_bytes(self.gradient_bytes)} of gradients"
        if self.step_seconds is None:
            return f"{text}; the time of a step is {self.reason}" if self.reason else text
        return f"{text}; a step takes at least {_time(self.step_seconds)} ({self.binding})"

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as plain values, as in `plan.json`.

        Returns:
          JSON values by name.
        """
        return dataclasses.asdict(self)


def predict(plan: Plan) -> Prediction:
    """Predict memory and time of a plan on its devices, from shapes; nothing is compiled.

    Args:
      plan: A plan for local devices.

    Returns:
      Bytes on each device, and a lower bound of the step's time in seconds; None where the device
      is not known.
    """
    return plan.program.once("prediction", lambda: _predict(plan))


def require_fit(plan: Plan) -> None:
    """Reject a plan whose state and batch alone need more memory than a device has.

    Args:
      plan: A plan for local devices.

    Raises:
      ValidationError: It cannot fit.
    """
    # A lower bound: activations are unknown until the step is compiled. What is refused here cannot
    # fit by any means.
    prediction = predict(plan)
    if prediction.limit_bytes is None or prediction.held_bytes <= prediction.limit_bytes:
        return
    kinds = {kind: size for kind, size in plan.bytes_per_device.items() if kind != "gradients"}
    largest = max(kinds, key=lambda kind: kinds[kind])
    what = f"state and batch need {format_bytes(prediction.held_bytes)} on each device, "
    what += f"which has {format_bytes(prediction.limit_bytes)}"
    what += f"; most of it is {largest}, {format_bytes(kinds[largest])}"
    devices = list(plan.program.mesh.devices.flat)
    remedy = f"luthier plan REF --slice {_slice(devices)} looks for changes that fit"
    raise ValidationError(Problem(what, "parallelism.mesh", remedy=remedy))


class Measurement:
    """Collects the times and memory of a run, to be compared with its prediction."""

    def __init__(self) -> None:
        # For the median, which single slow steps do not change.
        self._seconds: collections.deque[float] = collections.deque(maxlen=NUM_LAST)
        self._num_steps = 0
        self._peak = 0

    def watching(self, emit: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a callback that passes events on to another, and records the times of steps.

        Args:
          emit: Takes the events of a run.

        Returns:
          The callback.
        """

        def take(event: Any) -> None:
            if isinstance(event, Step):
                self._num_steps += 1
                if self._num_steps > NUM_FIRST:
                    self._seconds.append(event.values[STEP_SECONDS])
                self._peak = max(self._peak, int(event.values[MEMORY_BYTES]))
            emit(event)

        return take

    def to_dict(self, memory: CompiledMemory | None) -> dict[str, Any]:
        """Return the measurements as plain values; empty where too few steps were taken.

        Args:
          memory: The memory of the compiled step; None where this run did not compile one.

        Returns:
          JSON values by name.
        """
        if not self._seconds:
            return {}
        return {
            "num_steps": len(self._seconds),
            "step_seconds": statistics.median(self._seconds),
            "memory_bytes": self._peak,
            "compiled_bytes_per_device": None if memory is None else memory.needed,
        }


def step_memory(program: Program) -> CompiledMemory | None:
    """Return the memory of the compiled training step; None where the compiler gives none.

    Args:
      program: A program whose step is compiled, or is compiled here.

    Returns:
      Its bytes on one device.
    """
    # Once for each program: XLA takes 20 ms to answer, and every trial of a study would ask.
    return program.once("memory of the step", lambda: memory_of(program.compile_step()))


def sharing(devices: list[Any]) -> int | None:
    """Return how many devices share the memory of this process; None where each has its own.

    Args:
      devices: The devices of the run.

    Returns:
      The number of local devices for a CPU; None otherwise.

    Example:
      >>> import jax
      >>> from luthier import planner
      >>> planner.sharing(jax.devices("cpu")) == jax.local_device_count("cpu")
      True
    """
    local = [d for d in devices if d.process_index == jax.process_index()]
    return len(local) if devices[0].platform == "cpu" else None


def _predict(plan: Plan) -> Prediction:
    program = plan.program
    devices = list(program.mesh.devices.flat)
    chip, bound = _chip(devices), None
    if chip is not None:
        bound = _lower_bound(plan, chip, len(devices))
    return Prediction(
        held_bytes=sum(n for kind, n in plan.bytes_per_device.items() if kind != "gradients"),
        gradient_bytes=plan.bytes_per_device.get("gradients", 0),
        limit_bytes=_limit(devices, chip),
        step_seconds=None if bound is None or bound.too_small else bound.step_seconds,
        binding="" if bound is None else bound.binding,
        reason="" if bound is None else bound.too_small,
    )


def _lower_bound(plan: Plan, chip: Chip, num_devices: int) -> Roofline:
    # Of products alone: without compiling, neither traffic nor collectives are known.
    program = plan.program
    flops = flops_by_dtype(program.traced_step.jaxpr)
    bubble = max((p.bubble_fraction for p in plan.pipelines), default=0.0)
    precision = program.experiment.precision.matmul.value
    return roofline(chip, num_devices, flops, precision=precision, bubble_fraction=bubble)


def _chip(devices: list[Any]) -> Chip | None:
    if devices[0].platform == "cpu":
        return cpu_chip(len(devices))
    kinds = {chip.device_kind: chip for chip in CHIPS.values()}
    return kinds.get(devices[0].device_kind)


def _limit(devices: list[Any], chip: Chip | None) -> int | None:
    """Return the memory that a device reports itself, else that of its data sheet."""
    if (num_sharing := sharing(devices)) is not None:
        return cpu_chip(num_sharing).limit_bytes
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    return limit or (None if chip is None else chip.limit_bytes)


def _slice(devices: list[Any]) -> str:
    """Return the name by which `luthier plan --slice` knows local devices."""
    chip, number = _chip(devices), len(devices)
    if isinstance(chip, TpuChip):
        return f"{chip.name}-{number // chip.devices_per_chip * chip.cores_in_name}"
    return f"{devices[0].platform if chip is None else chip.name}:{number}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
