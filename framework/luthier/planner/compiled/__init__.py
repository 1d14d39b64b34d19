"""Compiled programs: their HLO text, collectives, memory, and the work of a device."""

from luthier.planner.compiled.collectives import Collective, collectives, total
from luthier.planner.compiled.hlo import HloArray, Instruction, Module, arrays_of, parse
from luthier.planner.compiled.memory import (
    CompiledMemory,
    LiveTensor,
    Refusal,
    at_peak,
    memory_of,
    refusal,
)
from luthier.planner.compiled.work import DeviceWork, device_work

__all__ = [
    "Collective",
    "CompiledMemory",
    "DeviceWork",
    "HloArray",
    "Instruction",
    "LiveTensor",
    "Module",
    "Refusal",
    "arrays_of",
    "at_peak",
    "collectives",
    "device_work",
    "memory_of",
    "parse",
    "refusal",
    "total",
]
