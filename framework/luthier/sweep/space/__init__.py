"""The space of a study: what may be chosen at which paths of an experiment's graph."""

from luthier.sweep.space.dimensions import (
    Choice,
    Dimension,
    Int,
    Log,
    Option,
    Ordinal,
    Pow2,
    Uniform,
    Zipped,
)
from luthier.sweep.space.space import Assignment, Space

__all__ = [
    "Assignment",
    "Choice",
    "Dimension",
    "Int",
    "Log",
    "Option",
    "Ordinal",
    "Pow2",
    "Space",
    "Uniform",
    "Zipped",
]
