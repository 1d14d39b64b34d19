"""Effects of a graph, and of the difference of two: parameters, bytes, FLOPs, curves."""

from luthier.view.effects.effects import EffectSubject, effects
from luthier.view.effects.facts import Facts, facts_of, is_experiment, known_facts

__all__ = ["EffectSubject", "Facts", "effects", "facts_of", "is_experiment", "known_facts"]
