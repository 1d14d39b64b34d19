"""A warm start: finds and checks where each parameter comes from, before anything is written."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from luthier.checkpoint.foreign.safetensors_folder import copy_tokenizer
from luthier.checkpoint.restore.rules import Init, Resize, Skip, Take, claim
from luthier.checkpoint.restore.source import (
    Found,
    ModelDescription,
    OpenedSource,
    Pieces,
    Restore,
    SourcePiece,
    Target,
    Wanted,
    tensors_of,
)
from luthier.errors import CheckpointError

if TYPE_CHECKING:
    import jax

_NUMBER = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The provenance of one parameter.

    Args:
      parameter: Its name.
      source: The tensor or tensors that it was read from; `init` where the model made it, and
        `+ init` where it made the rest.
      shape: Its shape.
      dtype: Its dtype, after the one that it has in the source where they differ.
      rule: The number and kind of the rule that claimed it.
    """

    parameter: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    rule: str


class Restoration:
    """A warm start whose names and shapes fit; a context manager that keeps its files open.

    Args:
      restore: Where parameters come from.
      targets: The parameters that wait for values, by name.
      limits: For logical dimensions that are padded in ours, their size without: `{"vocab": 258}`.

    Raises:
      CheckpointError: The source does not exist or is damaged; parameters are not matched by any
        rule; tensors are missing, left over or misshapen: all are listed.
    """

    def __init__(self, restore: Restore, targets: Mapping[str, Target], limits: Mapping[str, int]):
        self._targets = targets
        self._claims = claim(restore.claims, targets)
        self._open = contextlib.ExitStack()
        self._more: dict[str, str] = {}
        try:
            # Opened and matched in the constructor, read later (`read`): a source that does not fit
            # must be refused before the run's directory exists.
            self._source: OpenedSource = self._open.enter_context(restore.open())
            self._found = self._find(restore, limits)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Restoration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    @property
    def table(self) -> list[Provenance]:
        """The provenance of each parameter, in the order of the names."""
        return [self._provenance(name) for name in sorted(self._targets)]

    @property
    def summary(self) -> str:
        """The whole in one line."""
        counts = {
            kind: sum(isinstance(claimed.rule, kind) for claimed in self._claims.values())
            for kind in (Take, Init, Skip)
        }
        parts = [f"{counts[Take]} parameters from {self._source.title}"]
        parts += [f"{len(self.partial)} of them in part"] if self.partial else []
        parts += [f"{counts[Init]} initialized"] if counts[Init] else []
        parts += [f"{counts[Skip]} skipped"] if counts[Skip] else []
        return ", ".join(parts)

    @property
    def notes(self) -> Mapping[str, str]:
        """Notes about the source, by label."""
        return {**self._source.notes, **self._more}

    @property
    def described(self) -> ModelDescription | None:
        """The source's description of its model beside names and shapes; None where it has none."""
        return self._source.described

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """The files of settings that belong to the weights, by name."""
        return self._source.settings

    @property
    def taken(self) -> frozenset[str]:
        """The parameters that come from the source."""
        return frozenset(self._found.pieces)

    def note(self, notes: Mapping[str, str]) -> None:
        """Add what was found out about the source, by label.

        Args:
          notes: Texts by label.
        """
        self._more.update(notes)

    def render(self) -> str:
        """Return the table and the summary as text, for `restored.txt`.

        Returns:
          Lines of text.
        """
        head = ("parameter", "from", "shape", "dtype", "rule")
        rows = [
            (row.parameter, row.source, str(list(row.shape)), row.dtype, row.rule)
            for row in self.table
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (head, *rows)
        ]
        about = [f"# {self.summary}", *(f"# {k}: {v}" for k, v in self.notes.items())]
        return "\n".join([*about, *lines]) + "\n"

    @property
    def tokenizer(self) -> pathlib.Path | None:
        """The folder with the files of the tokenizer that belongs to the weights, if any."""
        return self._source.tokenizer

    def copy_tokenizer(self, folder: pathlib.Path) -> list[str]:
        """Copy the files of the tokenizer that belongs to the weights.

        Args:
          folder: Where the files go.

        Returns:
          Names of the files.
        """
        source = self.tokenizer
        return [] if source is None or not source.exists() else copy_tokenizer(source, folder)

    def read(self) -> dict[str, jax.Array]:
        """Return the parameters that are taken, by name; the others are for the model to make.

        Returns:
          Arrays by name, on their devices.
        """
        return self._source.read(self._found, self._targets)

    @property
    def partial(self) -> dict[str, tuple[int, int]]:
        """For parameters that the source holds in part: the dimension, and how many entries."""
        return {
            name: pieces.held
            for name, pieces in self._found.pieces.items()
            if isinstance(pieces, SourcePiece) and pieces.held is not None
        }

    def _find(self, restore: Restore, limits: Mapping[str, int]) -> Found:
        # Everything that the rules decide is handed to the source as one request, since only the
        # source knows its own names: it finds the pieces, and reports what is missing or left over
        # on either side. All problems of all parameters are raised at once.
        def of(kind: type) -> dict[str, tuple[str, Target]]:
            return {
                name: (claimed.source, self._targets[name])
                for name, claimed in self._claims.items()
                if isinstance(claimed.rule, kind)
            }

        # All Skip rules, and not only those that claimed a parameter: their patterns are for names
        # of the source that nothing here corresponds to, as well.
        skips = [rule for rule in restore.claims if isinstance(rule, Skip)]

        def is_skipped(name: str) -> bool:
            return any(rule.claims(name) for rule in skips)

        resized = {
            name: claimed.rule
            for name, claimed in self._claims.items()
            if isinstance(claimed.rule, Resize)
        }
        # `of(Take)` has the resized ones as well, since `Resize` is a `Take`; `resized` adds their
        # rules.
        wanted = Wanted(of(Take), of(Init), of(Skip), is_skipped, limits, resized)
        found = self._source.find(wanted)
        if found.problems:
            raise CheckpointError(
                dataclasses.replace(problem, path=problem.path or "restore")
                for problem in found.problems
            )
        return found

    def _provenance(self, name: str) -> Provenance:
        target, claimed = self._targets[name], self._claims[name]
        # Shown with its conversion, if any: weights that are read as another type are rounded, and
        # a record should say so.
        dtype = str(np.dtype(target.dtype))
        if name not in self._found.pieces:
            return Provenance(name, "init", target.shape, dtype, str(claimed))
        pieces = self._found.pieces[name]
        kinds = {piece.dtype for piece in tensors_of(pieces)} - {dtype}
        shown = f"{'/'.join(sorted(kinds))} -> {dtype}" if kinds else dtype
        source = _sources(pieces) + (" + init" if name in self.partial else "")
        return Provenance(name, source, target.shape, shown, str(claimed))


def _sources(pieces: Pieces) -> str:
    """Return the names of the tensors, those that differ in a number only as one."""
    # A stack of 80 layers comes from 80 tensors that differ in one number:
    # `layers.{0..79}.mlp.weight`. The pattern is the name with its numbers taken out; each column
    # of numbers becomes itself or a range.
    names = list(dict.fromkeys(piece.tensor for piece in tensors_of(pieces)))
    patterns = {_NUMBER.sub("#", name) for name in names}
    if len(names) < 2 or len(patterns) > 1:
        return ", ".join(names)
    numbers = [_NUMBER.findall(name) for name in names]
    parts = [
        column[0] if len(set(column)) == 1 else f"{{{','.join(_ranges([*map(int, column)]))}}}"
        for column in zip(*numbers, strict=True)
    ]
    filled = iter(parts)
    return re.sub("#", lambda _: next(filled), patterns.pop())


def _ranges(numbers: Sequence[int]) -> list[str]:
    # `0..22:2` as in a slice, with a step, is what a stack of two alternating kinds gives.
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if len(numbers) > 2 and len(steps) == 1:
        step = steps.pop()
        every = "" if step == 1 else f":{step}"
        return [f"{numbers[0]}..{numbers[-1]}{every}"]
    return [str(number) for number in numbers]
