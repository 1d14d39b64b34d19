"""How many trials share a slice, and how: found by a few steps of each, where that can pay."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from luthier.plan import Plan
from luthier.sweep.lanes.pack import Pack, compile_lanes
from luthier.sweep.protocol import Lanes
from luthier.train.loop import OwnSlot

SHARE = 0.04
"""Of the time that the trials would take one after another, so much may be spent on finding out."""

WORTH = 0.95
"""Lanes are taken where a step takes less than this part of the time that it takes alone."""

COMPILE_FACTOR = 2.0
"""Compiling lanes is taken to be so much slower than compiling a step."""

NUM_TIMED = 5

NUM_DEVICES: Mapping[Lanes, int] = {"shard": 1}
"""Devices of one trial's program, by the kind of lanes; all of the slice where it is not named."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """How trials share a slice.

    Args:
      lanes: The kind of lanes; `single` runs one trial after another.
      num_lanes: How many there are.
      num_devices: Devices of one trial's program; 0 means all of the slice.
    """

    lanes: Lanes
    num_lanes: int = 1
    num_devices: int = 0


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one way to run trials costs.

    Args:
      seconds: Of a step of one trial.
      compile_seconds: That it took to compile.
    """

    seconds: float
    compile_seconds: float


def choose(
    plan_for: Callable[[int], Plan],
    devices: Sequence[jax.Device],
    num_trials: int,
    memory_bytes: int | None,
) -> Choice:
    """Choose the lanes of a program by measuring 1, 2, 4, ... of each kind.

    A kind is followed while it gets faster and fits the memory, and only as long as finding out
    costs a small part of the trials themselves.

    Args:
      plan_for: Returns the plan of a trial for so many devices; 0 means the whole slice.
      devices: The slice.
      num_trials: Trials that there are for it; the most lanes.
      memory_bytes: Memory of one device; None where it has no limit of its own.
    """
    plan = plan_for(0)
    alone = measure_alone(plan)
    steps = plan.program.experiment.training.steps

    def measure(lanes: Lanes, num_lanes: int) -> Measured | None:
        shared = plan_for(NUM_DEVICES.get(lanes, 0))
        return measure_lanes(shared, lanes, num_lanes, devices, memory_bytes)

    counts: dict[Lanes, Sequence[int]] = dict.fromkeys(("vmap", "map"), powers(num_trials))
    if len(devices) > 1:  # each lane on one device, instead of all lanes on all of them
        each = powers(num_trials // len(devices))
        counts["shard"] = [len(devices) * number for number in (1, *each)]
    return best(alone, counts, num_trials, steps, measure)


def best(
    alone: Measured,
    counts: Mapping[Lanes, Sequence[int]],
    num_trials: int,
    steps: int,
    measure: Callable[[Lanes, int], Measured | None],
) -> Choice:
    """Return the fastest choice among those that could be looked at within the allowance.

    Args:
      alone: What a trial by itself costs.
      counts: The kinds of lanes in the order in which they are tried, and numbers of lanes of each,
        rising.
      num_trials: Trials that there are.
      steps: Steps of a trial.
      measure: Measures one kind with a number of lanes; None where it does not fit the memory.
    """
    allowance = SHARE * num_trials * steps * alone.seconds
    found, fastest = Choice("single"), WORTH * alone.seconds
    expected = COMPILE_FACTOR * alone.compile_seconds
    for lanes, numbers in counts.items():
        before = alone.seconds
        for num_lanes in numbers:
            if (
                num_lanes > num_trials
                or expected + (NUM_TIMED + 1) * num_lanes * alone.seconds > allowance
            ):
                break
            start = time.perf_counter()
            measured = measure(lanes, num_lanes)
            allowance -= time.perf_counter() - start
            if measured is None or measured.seconds >= before:
                break
            expected = max(expected, measured.compile_seconds)
            before = measured.seconds
            if measured.seconds < fastest:
                found = Choice(lanes, num_lanes, NUM_DEVICES.get(lanes, 0))
                fastest = measured.seconds
    return found


def measure_alone(plan: Plan) -> Measured:
    """Measure steps of one trial that has the slice to itself."""
    program = plan.program
    start = time.perf_counter()
    slot = OwnSlot(program)
    slot.prepare()
    compiled = time.perf_counter() - start
    values = program.values()
    slot.load(values, program.init(values))
    batch = _blank(program)
    return Measured(_median_seconds(lambda: slot.step(batch)), compiled)


def measure_lanes(
    plan: Plan,
    lanes: Lanes,
    num_lanes: int,
    devices: Sequence[jax.Device],
    memory_bytes: int | None,
) -> Measured | None:
    """Measure steps of trials in lanes; None where they do not fit the memory.

    Args:
      plan: The plan of a trial.
      lanes: The kind of lanes.
      num_lanes: How many.
      devices: The slice.
      memory_bytes: Memory of one device; None where it has no limit of its own.
    """
    program, start = plan.program, time.perf_counter()
    packed = compile_lanes(program, lanes, num_lanes, devices)
    compiled = time.perf_counter() - start
    if memory_bytes is not None and (packed.step_bytes or 0) > memory_bytes:
        return None
    pack, values = Pack(packed), program.values()
    for lane in range(num_lanes):
        pack.load(lane, values, program.init(values))
    batches = dict.fromkeys(range(num_lanes), _blank(program))
    return Measured(_median_seconds(lambda: pack.step(batches)) / num_lanes, compiled)


def _blank(program: Any) -> dict[str, jax.Array]:
    return {
        name: jax.device_put(jnp.zeros(entry.shape, entry.dtype), entry.sharding)
        for name, entry in program.batch.items()
    }


def _median_seconds(step: Callable[[], jax.Array]) -> float:
    times = []
    for _ in range(NUM_TIMED + 1):
        start = time.perf_counter()
        jax.block_until_ready(step())
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def powers(most: int) -> list[int]:
    """Return 2, 4, 8 and so on, up to `most`."""
    return [2**exponent for exponent in range(1, max(most, 1).bit_length())]
