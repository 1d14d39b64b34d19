"""Sweeps: a study edits paths of an experiment's graph and drives trials over slices of devices.

What is exported is imported at its first use: looking at a study needs no array library.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "AnotherSeed": "study",
    "Best": "objectives",
    "Budget": "study",
    "Choice": "space",
    "CopyResult": "study",
    "DeviceHours": "objectives",
    "Gate": "study",
    "Grid": "space",
    "Int": "space",
    "Last": "objectives",
    "Local": "engines.local",
    "Log": "space",
    "MeanOfLast": "objectives",
    "Measured": "objectives",
    "Option": "space",
    "Ordinal": "space",
    "Packed": "study",
    "Packing": "study",
    "Parameters": "objectives",
    "PeakBytes": "objectives",
    "PlanGate": "gate",
    "Planned": "engines.planned",
    "Pow2": "space",
    "ShapeGate": "gate",
    "SharedPrograms": "packing",
    "Space": "space",
    "StepTime": "objectives",
    "Study": "study",
    "Uniform": "space",
    "Zipped": "space",
    "build": "study",
    "rerun": "reruns",
    "resume": "start",
    "run": "start",
    "trial_graph": "driver.directory",
}

__all__ = [
    "AnotherSeed",
    "Best",
    "Budget",
    "Choice",
    "CopyResult",
    "DeviceHours",
    "Gate",
    "Grid",
    "Int",
    "Last",
    "Local",
    "Log",
    "MeanOfLast",
    "Measured",
    "Option",
    "Ordinal",
    "Packed",
    "Packing",
    "Parameters",
    "PeakBytes",
    "PlanGate",
    "Planned",
    "Pow2",
    "ShapeGate",
    "SharedPrograms",
    "Space",
    "StepTime",
    "Study",
    "Uniform",
    "Zipped",
    "build",
    "rerun",
    "resume",
    "run",
    "trial_graph",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'luthier.study' has no attribute {name!r}")
    return getattr(importlib.import_module(f"luthier.study.{_HOMES[name]}"), name)
