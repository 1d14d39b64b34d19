"""Data nodes of single examples: classification, forecasting, and synthetic rows of tokens."""

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
from luthier.data.examples.forecasting import Forecasting
from luthier.data.examples.series import CsvSeries, PackagedSeries, Seasons, SeriesSource
from luthier.data.examples.synthetic import Synthetic

__all__ = [
    "Augmentation",
    "Classification",
    "CsvSeries",
    "Cutout",
    "Flip",
    "Forecasting",
    "Noise",
    "PackagedSeries",
    "Scale",
    "Seasons",
    "SeriesSource",
    "Shift",
    "Standardize",
    "Synthetic",
    "Transform",
]
