"""Time series: where they are read, their classification, and forecasting."""

from luthier.contrib.series.classifier import SeriesClassifier
from luthier.contrib.series.forecasting import Forecasting, naive_error
from luthier.contrib.series.patch_transformer import PatchTransformer
from luthier.contrib.series.recipes import patch_tst_42, patch_tst_64, patch_tst_small
from luthier.contrib.series.sources import CsvSeries, PackagedSeries, Seasons, SeriesSource
from luthier.contrib.series.windows import ForecastWindows

__all__ = [
    "CsvSeries",
    "ForecastWindows",
    "Forecasting",
    "PackagedSeries",
    "PatchTransformer",
    "Seasons",
    "SeriesClassifier",
    "SeriesSource",
    "naive_error",
    "patch_tst_42",
    "patch_tst_64",
    "patch_tst_small",
]
