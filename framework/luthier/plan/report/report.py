"""The report of a plan for a slice: plain values that travel between processes and into files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """What was planned.

    Args:
      experiment: Its name.
      slice: What was planned for.
      level: `shapes`, or `compile` where the step was compiled.
      devices: `count`, `kind` and `slices`.
      mesh: Size of every mesh axis that is not 1.
      parameters: `total`, `active` for each token and `trained`.
      rows: `per_step`, `per_device` at a time, and `accumulation`.
      tokens_per_step: Positions in a global batch that can be predicted.
      steps: Steps of the whole run.
      checkpoint_bytes: Bytes of a checkpoint.
    """

    experiment: str
    slice: str
    level: str
    devices: Row
    mesh: Mapping[str, int]
    parameters: Mapping[str, int]
    rows: Mapping[str, int]
    tokens_per_step: int
    steps: int
    checkpoint_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """What one device has to hold.

    Args:
      bytes_per_device: Bytes by kind.
      gradient_bytes: Bytes of the gradients; a compiler counts them among the temporaries.
      residuals: What layers keep for the backward pass, by name: `name` and `bytes_per_device`;
        among the temporaries, too.
      live: The largest arrays at the peak: `array`, `bytes_per_device`, `scope`, `opcode`.
      needed_bytes: The compiler's sum; where nothing was compiled, that of the analytic model;
        None where the compiler does not tell.
      estimated_bytes: The sum by the analytic model; None in plans of earlier versions.
      limit_bytes: Bytes that a program can have; None where there is no limit.
      refusal: What the compiler said where the step does not fit.
    """

    bytes_per_device: Mapping[str, int]
    gradient_bytes: int = 0
    residuals: Sequence[Row] = ()
    live: Sequence[Row] = ()
    needed_bytes: int | None = None
    estimated_bytes: int | None = None
    limit_bytes: int | None = None
    refusal: str = ""

    @property
    def is_estimated(self) -> bool:
        """Whether what is needed is the analytic model's sum, and not the compiler's."""
        return self.needed_bytes is not None and self.needed_bytes == self.estimated_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the step fits; None where nobody can tell."""
        if self.refusal:
            return False
        if self.limit_bytes is None or self.needed_bytes is None:
            return None
        return self.needed_bytes <= self.limit_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What an experiment would cost on a slice; holds plain values only.

    Args:
      subject: What was planned.
      memory: What one device has to hold.
      flops: FLOPs of a step over all devices: `full`, `causal`, `six_n`, and `hardware` where the
        step was traced.
      flops_by_dtype: FLOPs of a step's products over all devices, by the type of the factors.
      collectives: Each with `kind`, `axes`, `count`, `num_bytes`, `wire_bytes` and
        `is_across_slices`.
      pipelines: Stacks that are shared out over stages, by their path: `stages`, `microbatches`,
        `schedule`, `ticks` and `bubble_fraction`.
      step: The step's time by a roofline: `seconds_by_term`, `binding`, `step_seconds`,
        `serial_seconds`, `mfu`, `tokens_per_day` and `run_seconds`.
      sharding: Every parameter: `name`, `shape`, `dtype`, `spec`, `reason`, `bytes_per_device`.
      proposals: Layouts that fit, the fastest first: `overrides`, `needed_bytes`,
        `step_seconds`, and `is_compiled`.
      notes: What else a reader must know, a line each.
      timings: Seconds of each phase of the planning.
    """

    subject: Subject
    memory: MemoryUse
    flops: Mapping[str, int] = dataclasses.field(default_factory=dict)
    flops_by_dtype: Mapping[str, int] = dataclasses.field(default_factory=dict)
    collectives: Sequence[Row] = ()
    pipelines: Mapping[str, Row] = dataclasses.field(default_factory=dict)
    step: Row = dataclasses.field(default_factory=dict)
    sharding: Sequence[Row] = ()
    proposals: Sequence[Row] = ()
    notes: Sequence[str] = ()
    timings: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits the devices; None where nobody can tell."""
        return self.memory.fits

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, `fits` among them."""
        return {**dataclasses.asdict(self), "fits": self.fits}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """Return the report that `to_dict` wrote.

        Args:
          values: Plain values.
        """
        kept = {name: value for name, value in values.items() if name != "fits"}
        kept |= {"subject": Subject(**kept["subject"]), "memory": MemoryUse(**kept["memory"])}
        return cls(**kept)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Report:
        """Return a report of fields of its own, of its subject and of its memory, all in one.

        Args:
          fields: Values by the names of the fields.
        """

        def those_of(kind: type) -> dict[str, Any]:
            names = {field.name for field in dataclasses.fields(kind)}
            return {name: value for name, value in fields.items() if name in names}

        memory = MemoryUse(**those_of(MemoryUse))
        return cls(subject=Subject(**those_of(Subject)), memory=memory, **those_of(cls))
