"""Plans: memory, time and FLOPs of an experiment, before it runs.

`luthier.plan` (in `planning`) plans for local devices, by `make`, or for a slice that need not be
available, by `plan_apart`.
"""

from __future__ import annotations

from luthier.planner import targets
from luthier.planner.checks import claimed, contradiction
from luthier.planner.device_facts import DeviceFacts, cpu_chip, device_facts
from luthier.planner.flops import ModelFlops, attention_cores, model_flops
from luthier.planner.parameters import (
    Parameter,
    ParameterCounts,
    count_parameters,
    model_parameters,
)
from luthier.planner.plan import Plan, make
from luthier.planner.planning import checked_program, plan_here
from luthier.planner.prediction import (
    Measurement,
    Prediction,
    predict,
    require_fit,
    sharing,
    step_memory,
)
from luthier.planner.process import plan_apart
from luthier.planner.report import Report
from luthier.planner.roofline import Roofline, flops_by_dtype
from luthier.planner.targets import Chip, CpuSlice, GpuChip, GpuSlice, TpuChip, TpuSlice
from luthier.tasks.flops import Flops, count

__all__ = [
    "Chip",
    "CpuSlice",
    "DeviceFacts",
    "Flops",
    "GpuChip",
    "GpuSlice",
    "Measurement",
    "ModelFlops",
    "Parameter",
    "ParameterCounts",
    "Plan",
    "Prediction",
    "Report",
    "Roofline",
    "TpuChip",
    "TpuSlice",
    "attention_cores",
    "checked_program",
    "claimed",
    "contradiction",
    "count",
    "count_parameters",
    "cpu_chip",
    "device_facts",
    "flops_by_dtype",
    "make",
    "model_flops",
    "model_parameters",
    "plan_apart",
    "plan_here",
    "predict",
    "require_fit",
    "sharing",
    "step_memory",
    "targets",
]
