"""Roofline of a step: a bound or an estimate of its time from FLOPs, bytes and messages.

Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance
  model for multicore architectures".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
from jax.extend import core as jex_core

from luthier.layers.declared import share_of
from luthier.planner.targets import PUBLISHED, Chip
from luthier.tasks.flops import declared, declared_bytes, inside, of_equation, times

COMPUTE, MEMORY, LINKS, NETWORK = "compute", "memory", "links", "network"

LAUNCH_SECONDS = 1e-4
"""Time to start a compiled step from Python; a roofline below it is no bound that means anything.

Python, JAX and the runtime take 50 to 100 microseconds to pass a hundred arrays to a program, on
every platform, and a step has tens of kernels, each of a few microseconds.
"""


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The time of a step, and the term that decides it.

    Args:
      seconds_by_term: Seconds of each term: `compute`, `memory`, `links` and `network`; only
        those that are known.
      bubble_fraction: Fraction of the step in which a pipeline's stages wait.
      kernel_seconds: Seconds of a device's kernels one after the other; 0 where the terms of a
        device are taken to overlap.
      ceilings: The rates that products and memory are charged at: `of` (a dtype, or `memory`),
        `runs_as` and `per_second`, in FLOPs or bytes.
      grade: Grade of these rates: `published`, `measured` or `derived`.
      is_bound: Whether a step cannot take less: then its products alone decide, at the peak rate.
    """

    seconds_by_term: Mapping[str, float]
    bubble_fraction: float = 0.0
    kernel_seconds: float = 0.0
    ceilings: tuple[Mapping[str, Any], ...] = ()
    grade: str = PUBLISHED
    is_bound: bool = False

    @property
    def binding(self) -> str:
        """The term that takes the longest."""
        return max(self.seconds_by_term, key=lambda term: self.seconds_by_term[term])

    @property
    def step_seconds(self) -> float:
        """Seconds of a step in which all terms run at the same time, but for kernels of a GPU."""
        return max(*self.seconds_by_term.values(), self.kernel_seconds)

    @property
    def too_small(self) -> str:
        """The reason for which no time is estimated; empty where the time of a step is one."""
        if self.step_seconds >= LAUNCH_SECONDS:
            return ""
        return f"too small to estimate: starting a step takes about {LAUNCH_SECONDS * 1e6:.0f} µs"

    @property
    def serial_seconds(self) -> float:
        """Seconds of a step in which nothing overlaps."""
        return sum(self.seconds_by_term.values())


def roofline(
    chip: Chip,
    num_devices: int,
    flops: Mapping[str, int],
    *,
    precision: str = "default",
    traffic: int | None = None,
    product_traffic: int | None = None,
    link_bytes: int | None = None,
    network_bytes: int | None = None,
    bubble_fraction: float = 0.0,
) -> Roofline:
    """Compute the roofline of a step.

    Args:
      chip: Facts about one device.
      num_devices: Devices in all.
      flops: FLOPs of the step as it is run, over all devices, by dtype of the operands; including
        those that a pipeline's stages compute in bubbles.
      precision: Precision of float32 products.
      traffic: Bytes between one device and its memory; None where unknown.
      product_traffic: Those of kernels that multiply matrices; None where unknown.
      link_bytes: Bytes that one device sends within its slice.
      network_bytes: Bytes that one device sends to other slices.
      bubble_fraction: Fraction of a pipeline's ticks in which a stage has nothing to do.
    """
    # The bubble is reported, not added: a stage computes (on zeros) in bubbles too, and these FLOPs
    # are among those of the step.
    # Where the traffic is known, the terms are charged at the rates that programs reach, if those
    # of the device are. Without it, the time is that of the products alone: a bound at their peak.
    is_estimate = traffic is not None and chip.memory_efficiency < 1
    efficiency = chip.product_efficiency if is_estimate else 1.0
    rates = {dtype: efficiency * chip.peak(dtype, precision) for dtype in flops}
    bandwidth = chip.memory_bandwidth * (chip.memory_efficiency if is_estimate else 1.0)
    terms = {COMPUTE: sum(n / rates[t] for t, n in flops.items()) / num_devices}
    bandwidths = {
        MEMORY: (traffic, bandwidth),
        LINKS: (link_bytes, chip.link_bandwidth),
        NETWORK: (network_bytes, chip.network_bandwidth),
    }
    for term, (amount, rate) in bandwidths.items():
        if amount is not None and rate:
            terms[term] = amount / rate
    kernel_seconds = 0.0
    # A GPU runs the kernels of a step one after the other: products at their rate, or at that of
    # memory where they are small, and the rest at that of memory.
    if is_estimate and product_traffic is not None and traffic is not None and bandwidth:
        products = max(terms[COMPUTE], product_traffic / bandwidth)
        kernel_seconds = products + (traffic - product_traffic) / bandwidth
    ceilings: list[Mapping[str, Any]] = [
        {"of": dtype, "runs_as": chip.multiplies_as(dtype, precision), "per_second": rate}
        for dtype, rate in rates.items()
    ]
    if traffic is not None and bandwidth:
        ceilings.append({"of": MEMORY, "runs_as": MEMORY, "per_second": bandwidth})
    is_bound = not is_estimate and terms[COMPUTE] == max(terms.values())
    grade = chip.grade if is_estimate or chip.platform == "cpu" else PUBLISHED
    return Roofline(terms, bubble_fraction, kernel_seconds, tuple(ceilings), grade, is_bound)


# Matrix products by the dtype of their operands, because peaks differ by dtype.

FLOAT8 = "float8"
_PRODUCTS = ("dot_general", "ragged_dot_general", "ragged_dot", "conv_general_dilated")


def flops_by_dtype(jaxpr: Any) -> dict[str, int]:
    """Return the FLOPs of a jaxpr's products by the wider type of the two operands.

    Products of two float8 operands, of one format or of two, count as `float8`.

    Loops count by their length, as in `luthier.planner.count`, whose total is the sum of these but
    for kernels: they count by the FLOPs that they declare, without those of pairs that a mask
    hides, which a kernel may skip, and by the dtype of their first operands.

    Args:
      jaxpr: A `Jaxpr` or `ClosedJaxpr`.

    Returns:
      FLOPs by the name of the type, as `bfloat16`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import planner
      >>> jaxpr = jax.make_jaxpr(lambda a, b: a @ b)(jnp.ones((2, 3)), jnp.ones((3, 4)))
      >>> planner.flops_by_dtype(jaxpr)
      {'float32': 48}
    """
    found: dict[str, int] = {}
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        for dtype, flops in _of(equation).items():
            found[dtype] = found.get(dtype, 0) + flops
    return found


def _of(equation: jex_core.JaxprEqn) -> dict[str, int]:
    # Products by their shapes, kernels by what they declare; of a branch the most expensive side;
    # what is called, as often as it runs.
    name = equation.primitive.name
    if name in _PRODUCTS or declared(equation) is not None:
        counted = of_equation(equation)
        # Padding is computed, but for the rows of no group, which kernels of grouped products skip.
        skipped = counted.idle if name.startswith("ragged_dot") else 0
        hidden = skipped if name in _PRODUCTS else counted.hidden
        # A hoisted value that a kernel reads, such as a scale, comes before its arrays.
        arrays = [x for x in equation.invars if getattr(x.aval, "shape", ())] or equation.invars
        return {_wider(arrays[:2]): counted.total - hidden}
    if name == "cond":
        sides = [flops_by_dtype(branch) for branch in equation.params["branches"]]
        return max(sides, key=lambda side: sum(side.values()))
    found: dict[str, int] = {}
    # A loop whose number of turns is data declares how much of a turn it computes.
    shares = share_of(str(equation.source_info.name_stack)) if name == "while" else None
    turns = Fraction(*shares) if shares is not None else Fraction(times(equation))
    for inner in inside(equation):
        for dtype, flops in flops_by_dtype(inner).items():
            found[dtype] = found.get(dtype, 0) + int(flops * turns)
    return found


def kernel_bytes(jaxpr: Any) -> int:
    """Return the bytes that the kernels of a jaxpr declare, over all devices.

    Args:
      jaxpr: A `Jaxpr` or `ClosedJaxpr`.
    """
    total = 0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        own = declared_bytes(equation)
        if own is not None:
            total += own
            continue
        inner = [kernel_bytes(one) for one in inside(equation)]
        if equation.primitive.name == "cond":
            total += max(inner)
        else:
            total += sum(inner) * times(equation)
    return total


def _wider(operands: Any) -> str:
    kinds = [jnp.dtype(operand.aval.dtype) for operand in operands]
    # JAX has no type to which both formats of float8 are promoted: devices multiply them as they
    # are. Next to a wider factor, they are widened.
    if all(kind.name.startswith(FLOAT8) for kind in kinds):
        return FLOAT8
    widest = max(kind.itemsize for kind in kinds)
    first, *others = (kind for kind in kinds if kind.itemsize == widest)
    return str(jnp.promote_types(first, others[0] if others else first))
