"""Decisions about single documents."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

Keep = Callable[[Sequence[bytes]], np.ndarray]


class Filter(abc.ABC):
    """Keeps some documents of a source.

    A filter of your own subclasses this. It is asked once for every document, in their order.
    """

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """What the filter is called in counts; different for every filter of a source."""

    @abc.abstractmethod
    def start(self) -> Keep:
        """Return what decides, for one pass over the source.

        Returns:
          A function from documents to a mask, bool [documents]: True keeps.
        """


@dataclasses.dataclass(frozen=True)
class Length(Filter):
    """Keeps documents whose length in bytes lies in a range.

    Args:
      min_bytes: The least length that is kept.
      max_bytes: The greatest length that is kept; None keeps all above.
    """

    RANGES: ClassVar[dict[str, str]] = {"min_bytes": "0 <= x", "max_bytes": "0 <= x"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("min_bytes <= max_bytes",)

    min_bytes: int = 0
    max_bytes: int | None = None

    @property
    def label(self) -> str:
        """`length`."""
        return "length"

    def start(self) -> Keep:
        """Return what decides."""

        def keep(documents: Sequence[bytes]) -> np.ndarray:
            lengths = np.fromiter(map(len, documents), np.int64, len(documents))
            fits = lengths >= self.min_bytes
            return fits if self.max_bytes is None else fits & (lengths <= self.max_bytes)

        return keep


@dataclasses.dataclass(frozen=True)
class Deduplicate(Filter):
    """Keeps the first of equal documents: equal after `normalize`, by a hash of 128 bits.

    Args:
      normalize: From a document to the bytes that are compared, as `fold`; None compares the
        documents as they are.
    """

    normalize: Callable[[bytes], bytes] | None = None

    @property
    def label(self) -> str:
        """`duplicate`."""
        return "duplicate"

    def start(self) -> Keep:
        """Return what decides; it remembers 16 bytes for every document kept."""
        seen: set[bytes] = set()

        def is_new(document: bytes) -> bool:
            compared = self.normalize(document) if self.normalize else document
            digest = hashlib.blake2b(compared, digest_size=16).digest()
            if digest in seen:
                return False
            seen.add(digest)
            return True

        return lambda documents: np.array([is_new(document) for document in documents], bool)


def fold(document: bytes) -> bytes:
    """Return a document in lower case with single spaces: what nearly equal documents share.

    Args:
      document: The document, taken as UTF-8; what is not stays as it is.
    """
    text = document.decode("utf-8", "surrogateescape")
    return " ".join(text.casefold().split()).encode("utf-8", "surrogateescape")


@dataclasses.dataclass(frozen=True)
class Predicate(Filter):
    """Keeps documents of which a function of the user's own says so: language, quality.

    Args:
      name: What the filter is called in counts.
      function: From a document to whether it is kept.
    """

    name: str
    function: Callable[[bytes], bool]

    @property
    def label(self) -> str:
        """The name."""
        return self.name

    def start(self) -> Keep:
        """Return what decides."""
        function = self.function
        return lambda documents: np.array([bool(function(d)) for d in documents], bool)
