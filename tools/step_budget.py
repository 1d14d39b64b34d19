"""Budgets for the cost of a step on a slice: a recorded plan against the current one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from luthier.parallel import format_bytes
from luthier.planner.report import Report

SLACK = 0.02
"""Fraction by which bytes of a kind may grow; nothing else may grow at all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepBudget:
    """Cost of a step of an experiment on a slice.

    Args:
      experiment: The experiment's name.
      slice: The slice.
      bytes_per_device: Bytes on one device by kind.
      collectives: By kind and mesh axes (`all-gather along fsdp`), `count` and `num_bytes` of a
        step.
      flops: FLOPs of a step by convention.
      work: Of the compiled step: FLOPs of products of float32, bytes that a device moves to and
        from its memory, kernels, scatters, and bytes of collectives beside which nothing is
        multiplied.
    """

    experiment: str
    slice: str
    bytes_per_device: Mapping[str, int]
    collectives: Mapping[str, Mapping[str, int]]
    flops: Mapping[str, int]
    work: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, report: Report) -> StepBudget:
        """Return the budget that a plan's costs make.

        Args:
          report: A report of level `compile`; one of level `shapes` has no collectives.
        """
        sums: dict[str, dict[str, int]] = {}
        for row in report.collectives:
            along = (
                "across slices" if row["is_across_slices"] else "along " + ", ".join(row["axes"])
            )
            total = sums.setdefault(f"{row['kind']} {along}", {"count": 0, "num_bytes": 0})
            for field in total:
                total[field] += row[field]
        return cls(
            experiment=report.subject.experiment,
            slice=report.subject.slice,
            bytes_per_device=dict(report.memory.bytes_per_device),
            collectives=sums,
            flops=dict(report.flops),
            work={
                "float32_flops": report.flops_by_dtype.get("float32", 0),
                "exposed_bytes": sum(row["exposed_bytes"] for row in report.collectives),
                **report.work,
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the budget as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StepBudget:
        """Return the budget that `to_dict` wrote.

        Args:
          values: Plain values.
        """
        return cls(**values)

    def exceeded(self, now: StepBudget, slack: float = SLACK) -> list[str]:
        """Return a line for each cost that exceeds the budget, with both values.

        Args:
          now: Costs of the current plan.
          slack: Fraction by which bytes of a kind may grow.
        """
        # Bytes may grow by a little. Collectives and FLOPs are exact: one more all-gather is what a
        # lost sharding constraint looks like.
        return [
            *self._bytes(now, slack),
            *self._collectives(now),
            *self._flops(now),
            *self._work(now, slack),
        ]

    def _bytes(self, now: StepBudget, slack: float) -> Iterator[str]:
        for kind, num in now.bytes_per_device.items():
            before = self.bytes_per_device.get(kind, 0)
            if num > before * (1 + slack):
                more = f"{format_bytes(num)} on each device, {format_bytes(before)} before"
                yield f"bytes of {kind}: {more}{_share(num, before)}"

    def _collectives(self, now: StepBudget) -> Iterator[str]:
        nothing = {"count": 0, "num_bytes": 0}
        for name, row in now.collectives.items():
            before = self.collectives.get(name, nothing)
            if row["count"] > before["count"] or row["num_bytes"] > before["num_bytes"]:
                yield f"{name}: {_moved(row)} a step, {_moved(before)} before"

    def _flops(self, now: StepBudget) -> Iterator[str]:
        for name, num in now.flops.items():
            before = self.flops.get(name, 0)
            if num > before:
                yield f"FLOPs ({name}): {num:.4g} a step, {before:.4g} before{_share(num, before)}"

    def _work(self, now: StepBudget, slack: float) -> Iterator[str]:
        for name, num in now.work.items():
            before = self.work.get(name, 0)
            if num > before * (1 + (slack if "bytes" in name else 0)):
                as_text = format_bytes if "bytes" in name else "{:,}".format
                what = _WORK.get(name, name)
                yield f"{what}: {as_text(num)}, {as_text(before)} before{_share(num, before)}"


_WORK = {
    "float32_flops": "FLOPs of products of float32",
    "exposed_bytes": "collectives without a product beside them",
    "bytes_moved": "bytes that a device moves to and from its memory",
}


def _moved(row: Mapping[str, int]) -> str:
    return f"{row['count']} of {format_bytes(row['num_bytes'])}"


def _share(now: int, before: int) -> str:
    return f" ({now / before - 1:+.1%})" if before else ""
