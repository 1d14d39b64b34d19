"""Compiled programs: their HLO text, collectives, traffic and memory."""

from luthier.planner.compiled.collectives import (
    Collective,
    Traffic,
    collectives,
    memory_traffic,
    total,
)
from luthier.planner.compiled.hlo import HloArray, Instruction, Module, arrays_of, parse
from luthier.planner.compiled.memory import (
    CompiledMemory,
    LiveTensor,
    Refusal,
    at_peak,
    memory_of,
    refusal,
)

__all__ = [
    "Collective",
    "CompiledMemory",
    "HloArray",
    "Instruction",
    "LiveTensor",
    "Module",
    "Refusal",
    "Traffic",
    "arrays_of",
    "at_peak",
    "collectives",
    "memory_of",
    "memory_traffic",
    "parse",
    "refusal",
    "total",
]
