"""A source without the documents that filters refuse or that cannot be read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from luthier.data.filters.filter import Filter
from luthier.data.sources.corruption import Corruption, Fail
from luthier.data.sources.source import Source
from luthier.errors import DataError, Problem

UNREADABLE = "unreadable"


@dataclasses.dataclass(frozen=True, eq=False)
class Verdict:
    """What became of every document of a source.

    Args:
      masks: By the label of each filter, True for the documents that it kept, bool [documents];
        a filter is not asked about what those before it refused. `unreadable` stands first.
      problems: Of the documents that could not be read.
    """

    masks: Mapping[str, np.ndarray]
    problems: tuple[Problem, ...]

    @property
    def kept(self) -> np.ndarray:
        """The documents that all kept, in their order; int64 [kept]."""
        return np.flatnonzero(np.logical_and.reduce(list(self.masks.values())))

    @property
    def counts(self) -> dict[str, int]:
        """How many documents each filter refused, and how many are `kept`."""
        refused = {label: int(np.sum(~mask)) for label, mask in self.masks.items()}
        return {**refused, "kept": len(self.kept)}


@dataclasses.dataclass(frozen=True)
class Filtered(Source):
    """The documents of a source that every filter keeps.

    At first use the source is read once to decide, and `verdict` says who refused what.

    Args:
      source: All documents.
      filters: Asked in this order; each sees only what those before it kept.
      corrupt: What happens at a document that cannot be read: `Fail()` or `Skip()`.

    Raises:
      DataError: at first use, when a document cannot be read and `corrupt` does not tolerate it,
        when two filters have one label, or when nothing is kept.
    """

    BLOCK: ClassVar[int] = 256

    source: Source
    filters: Sequence[Filter] = ()
    corrupt: Corruption = dataclasses.field(default_factory=Fail)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """What became of every document."""
        labels = [UNREADABLE, *(filter_.label for filter_ in self.filters)]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            what = f"several filters are called {', '.join(twice)}"
            raise DataError(Problem(what, remedy="give each a name of its own"))
        total = len(self.source)
        masks = {label: np.ones(total, bool) for label in labels}
        decide = {filter_.label: filter_.start() for filter_ in self.filters}
        problems: list[Problem] = []
        for start in range(0, total, self.BLOCK):
            stop = min(start + self.BLOCK, total)
            documents = self._read(start, stop, problems)
            indices = [start + i for i, document in enumerate(documents) if document is not None]
            texts = [document for document in documents if document is not None]
            masks[UNREADABLE][start:stop] = [document is not None for document in documents]
            for label, keep in decide.items():
                mask = np.asarray(keep(texts), bool) if texts else np.zeros(0, bool)
                masks[label][np.array(indices, np.int64)[~mask]] = False
                indices = [index for index, kept in zip(indices, mask, strict=True) if kept]
                texts = [text for text, kept in zip(texts, mask, strict=True) if kept]
        verdict = Verdict(masks, tuple(problems))
        if not len(verdict.kept):
            counts = ", ".join(f"{label} {count}" for label, count in verdict.counts.items())
            what = f"{self.source}: none of {total} documents is kept ({counts})"
            raise DataError(Problem(what, remedy="loosen the filters"))
        return verdict

    def _read(self, start: int, stop: int, problems: list[Problem]) -> Sequence[bytes | None]:
        try:
            return self.source.read(start, stop)
        except DataError:
            documents: list[bytes | None] = []
            for index in range(start, stop):
                try:
                    documents.append(self.source[index])
                except DataError as error:
                    documents.append(None)
                    problems.append(error.problems[0])
                    self.corrupt.tolerate(problems)
            return documents

    @functools.cached_property
    def _kept(self) -> np.ndarray:
        return self.verdict.kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> bytes:
        return self.source[int(self._kept[index])]

    def name(self, index: int) -> str:
        """Return where document `index` is from."""
        return self.source.name(int(self._kept[index]))
