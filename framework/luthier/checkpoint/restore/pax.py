"""Warm starts from checkpoints of Pax, their names and layouts mapped to ours; read lazily."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from luthier.checkpoint.foreign import pax, pax_family
from luthier.checkpoint.foreign.family import Family
from luthier.checkpoint.foreign.stored import StoredArrays
from luthier.checkpoint.restore.foreign_weights import OfFamily
from luthier.checkpoint.restore.rules import ADAPTERS, Init, Rule, Take
from luthier.checkpoint.restore.source import (
    Found,
    OpenedSource,
    Pieces,
    Restore,
    SourcePiece,
    Wanted,
)
from luthier.errors import CheckpointError, Problem


@dataclasses.dataclass(frozen=True)
class Pax(Restore):
    """Starts from a language model of Pax: a checkpoint of Paxml, or a file of its weights.

    On the command line `restore=pax:DIR` is the same as `restore=luthier.checkpoint.Pax("DIR")`.

    Args:
      directory: The folder of a job or of its checkpoints, of which the last is read; that of one
        checkpoint; or the file that `dump_pax.py --weights` wrote.
      averages: Whether to read the moving averages instead of the parameters.
      interleaved: Whether the two numbers of a rotated pair are adjacent, as with
        `LLaMARotaryEmbedding`.
      heads_first: Whether heads are the first dimension of the output projection of attention
        (`output_proj_use_nhd_shape`); None infers it from the shapes.
      rules: Rules that take, initialize or skip parameters; the first match decides. By default all
        are taken except adapters.
    """

    WORD: ClassVar[str] = "pax"

    directory: str
    averages: bool = False
    interleaved: bool = False
    heads_first: bool | None = None
    rules: Sequence[Rule] = (Init(ADAPTERS), Take())

    @property
    def claims(self) -> Sequence[Rule]:
        """The rules."""
        return self.rules

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenedSource]:
        """Find the arrays. Raises as `Restore.open`.

        Yields:
          The arrays by name, not read yet.

        Raises:
          CheckpointError: It does not exist, or is damaged.
        """
        path = pathlib.Path(self.directory).expanduser()
        if not path.exists():
            raise CheckpointError(Problem(f"{path} does not exist", remedy="give its path"))
        found = pax.read(path, self.averages, self.interleaved)
        family = pax_family.family_of(found, self.heads_first)
        yield _Labelled(StoredArrays(path, found.arrays), family, found.labels)


class _Labelled(OfFamily):
    """Weights whose provenance shows the tensor names of the checkpoint, not of its layers."""

    def __init__(self, arrays: StoredArrays, family: Family, labels: Mapping[str, str]):
        super().__init__(arrays, family)
        self._labels = labels

    def find(self, wanted: Wanted) -> Found:
        # The arrays were cut into layers under made-up names (`of_layer`); the record of the run
        # names those that the checkpoint has.
        found = super().find(wanted)
        pieces = {name: self._relabelled(own) for name, own in found.pieces.items()}
        return Found(found.problems, pieces)

    def _relabelled(self, pieces: Pieces) -> Pieces:
        if isinstance(pieces, SourcePiece):
            return dataclasses.replace(pieces, tensor=self._labels[pieces.tensor])
        return [self._relabelled(one) for one in pieces]
