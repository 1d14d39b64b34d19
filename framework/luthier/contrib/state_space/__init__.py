"""Layers that carry a linear state along the length, in place of attention."""

from luthier.contrib.state_space.recurrence import diagonal_recurrence
from luthier.contrib.state_space.s4d import S4D
from luthier.contrib.state_space.s5 import S5
from luthier.contrib.state_space.spectra import (
    HippoNormal,
    InverseSpectrum,
    LinearSpectrum,
    LogUniform,
    Spectrum,
)

__all__ = [
    "S4D",
    "S5",
    "HippoNormal",
    "InverseSpectrum",
    "LinearSpectrum",
    "LogUniform",
    "Spectrum",
    "diagonal_recurrence",
]
