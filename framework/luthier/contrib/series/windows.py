"""Windows of series as rows: the data node for forecasting.

Shapes: B rows, L points of context, H points to forecast, C channels, T points in all.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any, ClassVar

import numpy as np

from luthier.contrib.series.sources import SeriesSource
from luthier.data import DataNode, Spec, Visit, spec
from luthier.errors import DataError, Problem


@dataclasses.dataclass(frozen=True, eq=False)
class WindowRows:
    """One window a row.

    Args:
      values: The standardized series without gaps, float32 [T, C].
      present: Whether a value was measured, bool [T, C].
      starts: The first point to forecast of each window, int64 [windows].
      context: L.
      horizon: H.
    """

    values: np.ndarray
    present: np.ndarray
    starts: np.ndarray
    context: int
    horizon: int

    @property
    def num_rows(self) -> int:
        """The number of windows."""
        return len(self.starts)

    @property
    def num_examples(self) -> int:
        """The number of windows."""
        return len(self.starts)

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all windows."""
        hasher = hashlib.blake2b(f"{self.context} {self.horizon}".encode(), digest_size=16)
        for array in (self.values, self.present, self.starts):
            hasher.update(f"{array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Ignored: windows are the same in every epoch.

        Returns:
          inputs float32 [B, L, C], targets and weights float32 [B, H, C], examples int32 [B].
        """
        # One index array for all windows: nothing is copied until a batch needs it, and windows may
        # overlap as much as they like. Row -1 reads the last window, whose values `real` replaces
        # by zeros; so padding needs no case of its own.
        real = (rows >= 0)[:, None, None]
        starts = self.starts[rows][:, None]
        before = starts + np.arange(-self.context, 0)
        after = starts + np.arange(self.horizon)
        zero = np.float32(0)
        weights = np.where(real, self.present[after], False).astype(np.float32)
        return {
            "inputs": np.where(real, self.values[before], zero),
            "targets": np.where(weights > 0, self.values[after], zero),
            "weights": weights,
            "examples": (rows + 1).astype(np.int32),
        }


@dataclasses.dataclass(frozen=True)
class ForecastWindows(DataNode):
    """Windows of series: a context, and the points after it to forecast.

    A batch is `inputs` float32 [B, L, C], `targets` and `weights` float32 [B, H, C] and `examples`
    int32 [B] (from 1; 0 for padding). Series are standardized, each with mean and deviation of the
    first part of the data, so that nothing of later parts is known. A missing value is replaced by
    the last one before it in inputs, and has weight 0 in targets.

    Args:
      series: The numbers.
      context_length: L.
      horizon: H.
      start: Start of the points to forecast, as a fraction of the data; contexts may reach before.
      stop: Their end, as a fraction of the data.
      statistics: The first fraction of the data, for mean and deviation.
      stride: The points between the beginnings of windows.

    Raises:
      DataError: at first use, when the data is missing, damaged, or too short for one window.
    """

    RANGES: ClassVar[dict[str, str]] = {
        **DataNode.RANGES,
        "context_length": "1 <= x",
        "horizon": "1 <= x",
        "start": "0 <= x <= 1",
        "stop": "0 < x <= 1",
        "statistics": "0 < x <= 1",
        "stride": "1 <= x",
    }
    RELATIONS: ClassVar[tuple[str, ...]] = ("start < stop",)

    series: SeriesSource
    context_length: int
    horizon: int
    start: float = 0.0
    stop: float = 0.7
    statistics: float = 0.7
    stride: int = 1

    def __str__(self) -> str:
        return f"{self.series} has {self.num_rows} windows"

    @functools.cached_property
    def _statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each series, float64 [C]."""
        # Of the first part only, by default that of training: a mean over everything would leak the
        # future into the past. Evaluation nodes use the same fraction and so the same scale.
        values = self.series.values
        part = values[: max(round(self.statistics * len(values)), 1)]
        if np.isnan(part).all(axis=0).any():
            raise DataError(Problem(f"{self.series} has a series without values at its beginning"))
        deviation = np.nanstd(part, axis=0)
        # A constant series would be divided by zero.
        return np.nanmean(part, axis=0), np.where(deviation > 0, deviation, 1.0)

    @functools.cached_property
    def rows(self) -> WindowRows:
        """The windows by number."""
        values = self.series.values
        # The first window needs a whole context before it.
        first = max(round(self.start * len(values)), self.context_length)
        last = round(self.stop * len(values)) - self.horizon
        if last < first:
            what = f"{self.series} has {len(values)} points: too few for one window of "
            what += f"{self.context_length} and {self.horizon} from {self.start} to {self.stop}"
            raise DataError(Problem(what, remedy="lower the context or the horizon"))
        # Scaled once, in float64, and kept as float32; gaps are filled after scaling, so that a 0
        # in front of the first value is the mean.
        mean, deviation = self._statistics
        scaled = ((values - mean) / deviation).astype(np.float32)
        starts = np.arange(first, last + 1, self.stride)
        present = ~np.isnan(scaled)
        return WindowRows(_filled(scaled), present, starts, self.context_length, self.horizon)

    @property
    def tokens_per_row(self) -> int:
        """The points to forecast."""
        return self.horizon

    def batch_spec(self, global_batch_size: int) -> Spec:
        """Return shape and dtype of every entry of the global batch; no data is read.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Shape and dtype by entry.
        """
        channels = self.series.num_channels
        return spec(
            global_batch_size,
            inputs=((self.context_length, channels), np.float32),
            targets=((self.horizon, channels), np.float32),
            weights=((self.horizon, channels), np.float32),
            examples=((), np.int32),
        )

    def describe(self) -> dict[str, Any]:
        """Return the size of the data and what it costs without a model.

        Returns:
          `rows`, `points`, `channels`, `missing` (values), `mean` and `deviation` of each series,
          and `naive_mse`: the mean squared error, standardized, of repeating the last value.
        """
        # The error of repeating the last value is the number to beat, on the scale of the loss.
        mean, deviation = self._statistics
        whole = self.rows.gather(np.arange(self.num_rows))
        errors = (whole["targets"] - whole["inputs"][:, -1:, :]) ** 2 * whole["weights"]
        return {
            "rows": self.num_rows,
            "points": len(self.series.values),
            "channels": self.series.num_channels,
            "missing": int(np.isnan(self.series.values).sum()),
            "mean": mean.tolist(),
            "deviation": deviation.tolist(),
            "naive_mse": float(errors.sum() / max(whole["weights"].sum(), 1)),
        }


def _filled(values: np.ndarray) -> np.ndarray:
    """Return values with each gap filled by the last before it; 0 where there is none before."""
    # The index of the last value that is not missing is the running maximum of the indices of those
    # that are there; before the first one it is 0, where `nan_to_num` puts the 0.
    places = np.where(np.isnan(values), 0, np.arange(len(values))[:, None])
    latest = np.maximum.accumulate(places, axis=0)
    return np.nan_to_num(np.take_along_axis(values, latest, axis=0))
