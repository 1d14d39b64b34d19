"""Data nodes of pairs: sequence to sequence, and preferences."""

from luthier.data.pairs.arithmetic import Arithmetic
from luthier.data.pairs.pair_packing import OnePair, PackPairs, PairPacking
from luthier.data.pairs.preferences import Preferences
from luthier.data.pairs.sequence_pairs import SequencePairs
from luthier.data.pairs.sources import (
    PairFields,
    PairSource,
    PreferenceFields,
    PreferenceSource,
)
from luthier.data.pairs.translation import Translation
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
