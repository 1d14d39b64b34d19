"""Effects of a graph, and of the difference of two: parameters, bytes, FLOPs, curves."""

from luthier.view.effects.effects import (
    EffectSubject,
    checkpoint,
    effects,
    quantities,
    recompile_verdict,
)
from luthier.view.effects.facts import Facts, facts_of, is_experiment, known_facts

__all__ = [
    "EffectSubject",
    "Facts",
    "checkpoint",
    "effects",
    "facts_of",
    "is_experiment",
    "known_facts",
    "quantities",
    "recompile_verdict",
]
