"""Warm starts from checkpoints of other JAX programs, their names mapped to ours; read lazily."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from luthier.checkpoint.foreign.family import Family
from luthier.checkpoint.foreign.origins import StoredArray, StoredArrays, big_vision, maxtext, t5x
from luthier.checkpoint.restore.foreign_weights import OfFamily
from luthier.checkpoint.restore.rules import ADAPTERS, Init, Rule, Take
from luthier.checkpoint.restore.source import OpenedSource, Restore
from luthier.errors import CheckpointError, Problem


class _Origin(Restore):
    """A checkpoint of another program."""

    directory: str
    rules: Sequence[Rule]

    @property
    def claims(self) -> Sequence[Rule]:
        """The rules."""
        return self.rules

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenedSource]:
        """Find the arrays. Raises as `Restore.open`."""
        path = pathlib.Path(self.directory).expanduser()
        if not path.exists() and not pathlib.Path(str(path).partition(":")[0]).exists():
            is_remote = "://" in self.directory
            remedy = "copy it to this machine first" if is_remote else "give its path"
            raise CheckpointError(Problem(f"{self.directory} does not exist", remedy=remedy))
        arrays, family = self._find(path)
        yield OfFamily(StoredArrays(path, arrays), family)

    @abc.abstractmethod
    def _find(self, path: pathlib.Path) -> tuple[Mapping[str, StoredArray], Family]:
        """Return the arrays of a checkpoint, and the map from their names to ours."""


@dataclasses.dataclass(frozen=True)
class T5X(_Origin):
    """Starts from a checkpoint of T5X: an encoder with a decoder, as its own files or as Orbax's.

    On the command line `restore=t5x:DIR` is the same as `restore=luthier.checkpoint.T5X("DIR")`.

    Args:
      directory: The folder `checkpoint_N`, or the one that it is in.
      rules: Which parameters are taken, initialized or skipped; the first that matches has a
        parameter. By default all are taken, but for adapters.
    """

    WORD: ClassVar[str] = "t5x"

    directory: str
    rules: Sequence[Rule] = (Init(ADAPTERS), Take())

    def _find(self, path: pathlib.Path) -> tuple[Mapping[str, StoredArray], Family]:
        arrays = t5x.read(path)
        return arrays, t5x.family_of(arrays)


@dataclasses.dataclass(frozen=True)
class BigVision(_Origin):
    """Starts from a vision transformer of big_vision: an npz file, or a folder of arrays.

    On the command line `restore=big_vision:FILE` is the same as
    `restore=luthier.checkpoint.BigVision("FILE")`.

    Args:
      directory: The file or folder; behind a colon the part of a model of several, as
        `siglip.npz:img`.
      rules: Which parameters are taken, initialized or skipped; the first that matches has a
        parameter. By default all are taken, but for adapters.
    """

    WORD: ClassVar[str] = "big_vision"

    directory: str
    rules: Sequence[Rule] = (Init(ADAPTERS), Take())

    def _find(self, path: pathlib.Path) -> tuple[Mapping[str, StoredArray], Family]:
        arrays = big_vision.read(path)
        return arrays, big_vision.family_of(arrays)


@dataclasses.dataclass(frozen=True)
class MaxText(_Origin):
    """Starts from a checkpoint of MaxText: a decoder like Llama's or Mistral's, as Orbax wrote it.

    On the command line `restore=maxtext:DIR` is the same as
    `restore=luthier.checkpoint.MaxText("DIR")`.

    Args:
      directory: The folder of a step, or the one that all steps are in.
      scan_axis: The dimension of the layers where they are stacked: its `param_scan_axis`.
      interleaved: Whether the two numbers that are rotated together stand side by side: so where
        its `rope_type` is `llama3.1`.
      rules: Which parameters are taken, initialized or skipped; the first that matches has a
        parameter. By default all are taken, but for adapters.
    """

    WORD: ClassVar[str] = "maxtext"

    directory: str
    scan_axis: int = 1
    interleaved: bool = False
    rules: Sequence[Rule] = (Init(ADAPTERS), Take())

    def _find(self, path: pathlib.Path) -> tuple[Mapping[str, StoredArray], Family]:
        arrays = maxtext.read(path, self.scan_axis, self.interleaved)
        return arrays, maxtext.family_of(arrays)
