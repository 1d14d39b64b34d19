"""Long series of numbers, one or several side by side."""

from __future__ import annotations

import abc
import csv
import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from luthier.data.sources import package_file
from luthier.errors import DataError, Problem

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


class SeriesSource(abc.ABC):
    """C series over the same T points in time.

    A source of your own subclasses this and is cheap to construct.
    """

    @property
    @abc.abstractmethod
    def num_channels(self) -> int:
        """C; reads no data."""

    @property
    @abc.abstractmethod
    def values(self) -> np.ndarray:
        """The numbers, float64 [T, C]; a missing one is NaN."""


@dataclasses.dataclass(frozen=True)
class CsvSeries(SeriesSource):
    """Columns of a CSV file with a head line; a field that is empty is missing.

    Args:
      path: The file.
      columns: The names of the columns.

    Raises:
      DataError: at first use, when the file is unreadable, lacks a column, or a field, named by
        its line, is not a number.
    """

    path: str
    columns: Sequence[str]

    @property
    def num_channels(self) -> int:
        """The number of columns."""
        return len(self.columns)

    @functools.cached_property
    def values(self) -> np.ndarray:
        """The numbers, float64 [T, C]."""
        return _read_columns(os.path.expanduser(self.path), self.columns)


@dataclasses.dataclass(frozen=True)
class PackagedSeries(SeriesSource):
    """A series that ships inside a package, read by path.

    `co2`: weekly carbon dioxide at Mauna Loa, 1958 to 2001, 2,284 weeks, some missing (Keeling);
    `sunspots`: yearly sunspots, 1700 to 2008 (NOAA); `elnino`: monthly temperature of the sea,
    1950 to 2010 (NOAA): these from `statsmodels`. `sf-temps`: hourly temperature of San Francisco
    in 2010, 8,759 hours, from `vega_datasets`.

    Args:
      name: Name of the series.

    Raises:
      DataError: at first use, when the package that carries it is not installed.

    Source: the PyPI packages `statsmodels` (BSD-3, data in the public domain) and `vega_datasets`
      (MIT); they are never imported.
    """

    FILES: ClassVar[dict[str, tuple[str, ...]]] = {
        "co2": ("statsmodels", "datasets", "co2", "co2.csv"),
        "sunspots": ("statsmodels", "datasets", "sunspots", "sunspots.csv"),
        "elnino": ("statsmodels", "datasets", "elnino", "elnino.csv"),
        "sf-temps": ("vega_datasets", "_data", "sf-temps.csv"),
    }
    COLUMNS: ClassVar[dict[str, tuple[str, ...]]] = {
        "co2": ("co2",),
        "sunspots": ("SUNACTIVITY",),
        "elnino": _MONTHS,
        "sf-temps": ("temp",),
    }

    name: Literal["co2", "sunspots", "elnino", "sf-temps"]

    @property
    def num_channels(self) -> int:
        """One."""
        return 1

    @functools.cached_property
    def values(self) -> np.ndarray:
        """The numbers, float64 [T, 1]."""
        if self.name not in self.FILES:
            what = f"there is no packaged series {self.name!r}"
            raise DataError(Problem(what, remedy=f"there are {', '.join(self.FILES)}"))
        path = package_file(*self.FILES[self.name])
        # A year a line, its months in columns, is one series of months: rows follow one another.
        return _read_columns(os.fspath(path), self.COLUMNS[self.name]).reshape(-1, 1)


@dataclasses.dataclass(frozen=True)
class Seasons(SeriesSource):
    """A generated series: two seasons, a slow trend, and noise that remembers.

    x_t = sin(2 pi t / 24) + 0.5 sin(2 pi t / 168 + 1) + 0.3 sin(2 pi t / 2000) + 0.2 u_t, with
    u_t = 0.8 u_(t-1) + 0.6 e_t and e_t standard normal.

    Args:
      length: T.
      seed: Seed of the noise.
    """

    RANGES: ClassVar[dict[str, str]] = {"length": "1 <= x", "seed": "0 <= x"}

    length: int = 4000
    seed: int = 0

    @property
    def num_channels(self) -> int:
        """One."""
        return 1

    @functools.cached_property
    def values(self) -> np.ndarray:
        """The numbers, float64 [T, 1]."""
        # Philox by name: `default_rng` may change its generator between versions of NumPy. The
        # noise is a recurrence without a closed form in NumPy, so it is a loop, run once.
        time = np.arange(self.length)
        noise = np.random.Generator(np.random.Philox(self.seed)).standard_normal(self.length)
        state = 0.0
        for place, shock in enumerate(noise.tolist()):
            state = 0.8 * state + 0.6 * shock
            noise[place] = state
        turns = 2 * np.pi * time
        series = np.sin(turns / 24) + 0.5 * np.sin(turns / 168 + 1) + 0.3 * np.sin(turns / 2000)
        return (series + 0.2 * noise)[:, None]


def _read_columns(path: str, columns: Sequence[str]) -> np.ndarray:
    # `utf-8-sig` drops the mark that spreadsheets put in front, which would otherwise be part of
    # the first column's name.
    rows: list[list[float]] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            if missing := [column for column in columns if column not in names]:
                what = f"{path}: no column {', '.join(map(repr, missing))}"
                raise DataError(Problem(what, remedy=f"its columns: {', '.join(names)}"))
            for row in reader:
                try:
                    # An empty field is a missing value; anything else must be a number.
                    rows.append([float(row[column] or "nan") for column in columns])
                except ValueError as error:
                    raise DataError(Problem(f"{path}:{reader.line_num}: {error}")) from None
    except OSError as error:
        raise DataError(Problem(f"{path}: cannot be read: {error.strerror or error}")) from None
    if not rows:
        raise DataError(Problem(f"{path}: no rows", remedy="name another file"))
    return np.array(rows)
