"""Warm starts from checkpoints of T5X, big_vision and MaxText."""

from luthier.contrib.importers.big_vision import BigVision
from luthier.contrib.importers.maxtext import MaxText
from luthier.contrib.importers.t5x import T5X

__all__ = ["T5X", "BigVision", "MaxText"]
