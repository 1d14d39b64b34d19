"""The search for layouts: enumerate what can be divided, rank by the analytic model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from luthier.parallel import array_bytes, axis_product
from luthier.plan.search import candidates as layouts
from luthier.plan.search.candidates import Candidate, Remat
from luthier.plan.search.model import Layout, layout_of, step_time, temporary_bytes
from luthier.plan.search.tracing import Traced, trace
from luthier.plan.targets import Chip

MARGIN = 0.9
"""Share of a device's memory that an estimate may take: the model is within a tenth."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A layout with what the analytic model says of it.

    Args:
      candidate: The layout.
      needed_bytes: Bytes on one device.
      step_seconds: Least time of a step.
      serial_seconds: The same where nothing overlaps.
    """

    candidate: Candidate
    needed_bytes: int
    step_seconds: float
    serial_seconds: float

    @property
    def cost(self) -> tuple[float, int]:
        """What layouts are ranked by: time, a part of which does not overlap; then bytes."""
        seconds = self.step_seconds + 0.1 * (self.serial_seconds - self.step_seconds)
        return float(f"{seconds:.3g}"), self.needed_bytes


def estimates(
    graph: Any,
    program: Any,
    chip: Chip,
    num_devices: int,
    make: Callable[[Any], Any],
    own: Traced | None = None,
) -> list[Estimate]:
    """Return all layouts that can be divided, the fastest first.

    Args:
      graph: The experiment graph.
      program: Its program on any devices.
      chip: What is known of one device.
      num_devices: Devices in all.
      make: Makes the program of a changed graph.
      own: The gradient of the experiment as it is, if it is traced already.
    """
    found = []
    precision = program.experiment.precision.matmul.value
    policies = [p for p in layouts.remats(graph) if layouts.can_change(graph, p)]
    traces = {policy: _trace(graph, program, policy, make, own) for policy in policies}
    now = layout_of(program)
    for candidate in layouts.candidates(graph, program, num_devices, policies):
        traced = traces[candidate.remat]
        layout = dataclasses.replace(
            now, sizes=candidate.sizes, accumulation=candidate.accumulation
        )
        needed = state_bytes(program, layout) + batch_bytes(program, layout)
        needed += temporary_bytes(traced.activity, layout, chip.platform)
        time = step_time(traced.activity, layout, chip, traced.flops, precision)
        found.append(Estimate(candidate, needed, time.step_seconds, time.serial_seconds))
    return sorted(found, key=lambda estimate: estimate.cost)


def _trace(
    graph: Any, program: Any, policy: Remat, make: Callable[[Any], Any], own: Traced | None
) -> Traced:
    if not policy.overrides:
        return own or trace(program)
    return trace(make(layouts.changed(graph, Candidate({}, policy, 1, policy.overrides))))


def state_bytes(program: Any, layout: Layout) -> int:
    """Return the bytes of the state on one device.

    Args:
      program: The experiment's program on any devices.
      layout: How it is shared out.
    """
    total = 0
    for placement in program.placements.values():
        axes = layout.axes_of(placement.axes or (), False)
        shards = axis_product(axes, layout.sizes)
        total += array_bytes(placement.shape, placement.dtype) // shards
    return total


def batch_bytes(program: Any, layout: Layout) -> int:
    """Return the bytes of a batch on one device.

    Args:
      program: The experiment's program on any devices.
      layout: How it is shared out.
    """
    total, axes = 0, program.experiment.task.batch_axes
    for name, entry in program.batch.items():
        shards = axis_product(layout.axes_of(axes[name], True), layout.sizes)
        total += array_bytes(entry.shape, entry.dtype) // shards
    return total


def proposals(found: Sequence[Estimate], limit: int | None, count: int = 3) -> list[dict[str, Any]]:
    """Return the fastest layouts that fit and change something, as rows of a report.

    Args:
      found: Layouts, the fastest first.
      limit: Bytes of one device; None where there is no limit.
      count: How many at most.
    """
    rows = []
    for estimate in found:
        if limit is not None and estimate.needed_bytes > MARGIN * limit:
            continue
        if estimate.candidate.overrides:
            rows.append(
                {
                    "overrides": list(estimate.candidate.overrides),
                    "needed_bytes": estimate.needed_bytes,
                    "step_seconds": estimate.step_seconds,
                    "is_compiled": False,
                }
            )
        if len(rows) == count:
            break
    return rows
