"""Mixtures of data nodes by weight, in stages."""

from luthier.data.mixtures.mixture import Mixture
from luthier.data.mixtures.schedule import Stage

__all__ = ["Mixture", "Stage"]
