"""A run of the documents of another source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from luthier.data.sources.source import Source


@dataclasses.dataclass(frozen=True)
class Part(Source):
    """The documents start..stop - 1 of a source, as for a held-out set.

    Args:
      source: All documents.
      start: The first document, from 0.
      stop: The one after the last; None goes to the end.
    """

    RANGES: ClassVar[dict[str, str]] = {"start": "0 <= x", "stop": "0 <= x"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("start < stop",)

    source: Source
    start: int = 0
    stop: int | None = None

    def __len__(self) -> int:
        total = len(self.source)
        return max((total if self.stop is None else min(self.stop, total)) - self.start, 0)

    def __getitem__(self, index: int) -> bytes:
        return self.source[self.start + self._checked(index)]

    def name(self, index: int) -> str:
        """Return where document `index` is from."""
        return self.source.name(self.start + self._checked(index))

    def read(self, start: int, stop: int) -> Sequence[bytes]:
        """Return the documents start..stop - 1 of the part."""
        return self.source.read(self.start + start, self.start + min(stop, len(self)))

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return index
