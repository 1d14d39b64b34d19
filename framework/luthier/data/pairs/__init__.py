"""Data nodes of pairs: sequence to sequence, and preferences."""

from luthier.data.pairs.preferences import Preferences
from luthier.data.pairs.sequence_pairs import OnePair, PackPairs, PairPacking, SequencePairs
from luthier.data.pairs.sources import (
    Arithmetic,
    PairFields,
    PairSource,
    PreferenceFields,
    PreferenceSource,
    Translation,
)
from luthier.data.pairs.with_arrays import WithArrays

__all__ = [
    "Arithmetic",
    "OnePair",
    "PackPairs",
    "PairFields",
    "PairPacking",
    "PairSource",
    "PreferenceFields",
    "PreferenceSource",
    "Preferences",
    "SequencePairs",
    "Translation",
    "WithArrays",
]
