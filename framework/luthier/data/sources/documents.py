"""Documents that are already in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from luthier.data.sources.source import Source


@dataclasses.dataclass(frozen=True)
class Documents(Source):
    """A few documents given as they are, for notebooks and tests.

    Args:
      documents: Each a text, taken as UTF-8, or bytes.
    """

    documents: Sequence[str | bytes]

    def __repr__(self) -> str:
        return f"Documents(<{len(self.documents)}>)"

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> bytes:
        document = self.documents[index]
        return document if isinstance(document, bytes) else document.encode("utf-8")

    def name(self, index: int) -> str:
        """Return `document N`, counted from 1."""
        return f"document {index + 1}"
