"""Data nodes of single examples: classification, any other arrays, and synthetic rows of tokens."""

from luthier.data.examples.augmentations import (
    Augmentation,
    Cutout,
    Flip,
    Noise,
    Scale,
    Shift,
    Standardize,
    Transform,
)
from luthier.data.examples.classification import Classification
from luthier.data.examples.synthetic import Synthetic
from luthier.data.examples.table import Table

__all__ = [
    "Augmentation",
    "Classification",
    "Cutout",
    "Flip",
    "Noise",
    "Scale",
    "Shift",
    "Standardize",
    "Synthetic",
    "Table",
    "Transform",
]
