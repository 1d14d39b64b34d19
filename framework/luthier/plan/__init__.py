"""Plans: what an experiment would cost, known before it runs.

`luthier.plan(graph, devices)` is this room called as a function (`luthier.plan.make`), and
`luthier.plan(graph, slice="v5e-16")` plans for a slice that need not be here (`plan_apart`).
"""

from __future__ import annotations

import sys
import types
from typing import Any

from luthier.plan import targets
from luthier.plan.compiled.process import plan_apart
from luthier.plan.device_facts import DeviceFacts, device_facts
from luthier.plan.flops import ModelFlops, model_flops
from luthier.plan.plan import Plan, make
from luthier.plan.planning import plan_here
from luthier.plan.prediction import Measured, Prediction, comparison, predict, require_fit, sharing
from luthier.plan.report import Report
from luthier.plan.targets import Chip, CpuSlice, GpuChip, GpuSlice, TpuChip, TpuSlice
from luthier.tasks.flops import Flops, count

__all__ = [
    "Chip",
    "CpuSlice",
    "DeviceFacts",
    "Flops",
    "GpuChip",
    "GpuSlice",
    "Measured",
    "ModelFlops",
    "Plan",
    "Prediction",
    "Report",
    "TpuChip",
    "TpuSlice",
    "comparison",
    "count",
    "device_facts",
    "make",
    "model_flops",
    "plan_apart",
    "plan_here",
    "predict",
    "require_fit",
    "sharing",
    "targets",
]


class _CallableRoom(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Plan | Report:
        return plan_apart(*args, **kwargs) if "slice" in kwargs else make(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableRoom
