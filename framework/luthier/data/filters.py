"""Filters, which keep or drop single documents of a source."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from luthier.data.sources.source import Corruption, Fail, Source
from luthier.errors import DataError, Problem

Keep = Callable[[Sequence[bytes]], np.ndarray]


class Filter(abc.ABC):
    """Keeps some documents of a source.

    A filter of your own subclasses this. It sees every document once, in order.
    """

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The filter's name in counts; different for every filter of a source."""

    @abc.abstractmethod
    def start(self) -> Keep:
        """Return the decision function for one pass over the source.

        Returns:
          A function from documents to a mask, bool [documents]: True keeps.
        """


@dataclasses.dataclass(frozen=True)
class Length(Filter):
    """Keeps documents whose length in bytes lies in a range.

    Args:
      min_bytes: The least length that is kept.
      max_bytes: The greatest length that is kept; None keeps all above.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be", b"a longer document"])
      >>> len(data.Filtered(source, [data.Length(max_bytes=10)]))
      1
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
        """Return the decision function.

        Returns:
          A function from a document to whether it is kept.
        """

        # `fromiter` with `len`: one pass without a list of Python integers.
        def keep(documents: Sequence[bytes]) -> np.ndarray:
            lengths = np.fromiter(map(len, documents), np.int64, len(documents))
            fits = lengths >= self.min_bytes
            return fits if self.max_bytes is None else fits & (lengths <= self.max_bytes)

        return keep


@dataclasses.dataclass(frozen=True)
class Deduplicate(Filter):
    """Keeps the first of equal documents: equal after `normalize`, by a hash of 128 bits.

    Args:
      normalize: Function from a document to the bytes that are compared, such as `fold`; None
        compares the documents as they are.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be", b"to be"])
      >>> len(data.Filtered(source, [data.Deduplicate()]))
      1
    """

    normalize: Callable[[bytes], bytes] | None = None

    @property
    def label(self) -> str:
        """`duplicate`."""
        return "duplicate"

    def start(self) -> Keep:
        """Return the decision function; it remembers 16 bytes for every document kept.

        Returns:
          A function from a document to whether it is kept.
        """
        # The state of a pass is here and not in the filter, which is a frozen node of the config
        # and may serve several sources. 128 bits: among 10**12 documents, a collision has a chance
        # of about 1e-15 (n**2 / 2**129), and hashes of this size need 16 bytes and not a document.
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
    """Return a document in lower case with single spaces, for comparing nearly equal documents.

    Args:
      document: The document, taken as UTF-8; other bytes stay as they are.

    Returns:
      The folded document, as UTF-8.

    Example:
      >>> from luthier import data
      >>> data.fold(b"To be,  or NOT to be")
      b'to be, or not to be'
    """
    # `surrogateescape` carries bytes that are not UTF-8 through text and back unchanged. `casefold`
    # and not `lower`, which leaves pairs such as German sharp s and "ss" different.
    text = document.decode("utf-8", "surrogateescape")
    return " ".join(text.casefold().split()).encode("utf-8", "surrogateescape")


@dataclasses.dataclass(frozen=True)
class Predicate(Filter):
    """Keeps the documents that a user-defined function accepts, by language or quality, say.

    Args:
      name: The name of the filter in counts.
      function: Function from a document to True if the document is kept.

    Example:
      >>> from luthier import data
      >>> keep = data.Predicate("has_to", lambda document: b"to" in document)
      >>> len(data.Filtered(data.Documents([b"to be", b"or not"]), [keep]))
      1
    """

    name: str
    function: Callable[[bytes], bool]

    @property
    def label(self) -> str:
        """The name."""
        return self.name

    def start(self) -> Keep:
        """Return the decision function.

        Returns:
          A function from a document to whether it is kept.
        """
        function = self.function
        return lambda documents: np.array([bool(function(d)) for d in documents], bool)


# A source without the documents that filters refuse or that cannot be read.

UNREADABLE = "unreadable"


@dataclasses.dataclass(frozen=True, eq=False)
class Verdict:
    """The decisions of all filters about every document of a source.

    Args:
      masks: By the label of each filter, True for the documents that it kept, bool [documents];
        a filter does not see documents that an earlier one dropped. `unreadable` comes first.
      problems: The problems of the documents that could not be read.
    """

    masks: Mapping[str, np.ndarray]
    problems: tuple[Problem, ...]

    @property
    def kept(self) -> np.ndarray:
        """The documents that all filters kept, in order; int64 [kept]."""
        return np.flatnonzero(np.logical_and.reduce(list(self.masks.values())))

    @property
    def counts(self) -> dict[str, int]:
        """The number of documents that each filter dropped, and of those `kept`."""
        refused = {label: int(np.sum(~mask)) for label, mask in self.masks.items()}
        return {**refused, "kept": len(self.kept)}


@dataclasses.dataclass(frozen=True)
class Filtered(Source):
    """The documents of a source that every filter keeps.

    At first use the source is read once to decide; `verdict` holds the decision of each filter.

    Args:
      source: All documents.
      filters: The filters, applied in this order; each sees only the documents that those before it
        kept.
      corrupt: The treatment of documents that cannot be read: `Fail()` or `Skip()`.

    Raises:
      DataError: at first use, when a document cannot be read and `corrupt` does not tolerate it,
        when two filters have one label, or when nothing is kept.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be", b"a longer document", b"to be"])
      >>> len(data.Filtered(source, [data.Deduplicate()]))
      2
    """

    BLOCK: ClassVar[int] = 256

    source: Source
    filters: Sequence[Filter] = ()
    corrupt: Corruption = dataclasses.field(default_factory=Fail)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """The decisions about every document."""
        # Masks are kept by label: of two filters with one label, the second would replace the mask
        # of the first. `UNREADABLE` is a label, too, so no filter may have it.
        labels = [UNREADABLE, *(filter_.label for filter_ in self.filters)]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            what = f"several filters are called {', '.join(twice)}"
            raise DataError(Problem(what, remedy="give each a name of its own"))
        # One pass in blocks, so that memory does not grow with the corpus: a filter sees the
        # documents of a block that are left, as a list, and keeps its own state from block to
        # block.
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
                # Not asked about nothing: a user's `keep` need not take an empty list.
                mask = np.asarray(keep(texts), bool) if texts else np.zeros(0, bool)
                # `indices` shrinks with each filter: the next one is asked only about what is left.
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
        # The common case first: sources read a block much faster than one document at a time.
        try:
            return self.source.read(start, stop)
        except DataError:
            # The block could not be read as a whole; one by one, to find which documents are at
            # fault.
            documents: list[bytes | None] = []
            for index in range(start, stop):
                try:
                    documents.append(self.source[index])
                except DataError as error:
                    documents.append(None)
                    problems.append(error.problems[0])
                    self.corrupt.tolerate(problems)
            return documents

    # `Verdict.kept` combines the masks again at each call; here it is asked for every document.
    @functools.cached_property
    def _kept(self) -> np.ndarray:
        return self.verdict.kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> bytes:
        return self.source[int(self._kept[index])]

    def name(self, index: int) -> str:
        """Return the origin of document `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return self.source.name(int(self._kept[index]))


# Reports of corrupt documents that were left out of data, for the user of a run.

_Node = TypeVar("_Node")


def left_out(data: Any) -> list[str]:
    """Return one line for each source that lacks documents which could not be read.

    Args:
      data: A node of data, or anything that is built of sources.

    Returns:
      The lines; none if every document could be read.

    Example:
      >>> from luthier import data
      >>> data.left_out(data.Shakespeare(split="train"))
      []
    """
    lines = []
    # Computed here and not logged where it happens: a source does not know whose run it serves, and
    # worker processes read the same source. `verdict` is cached by the first batch.
    for source in nodes_of(data, Filtered):
        if problems := source.verdict.problems:
            count, total = len(problems), len(source.source)
            documents = "document" if count == 1 else "documents"
            first = "" if count == 1 else "the first: "
            lines.append(
                f"{count} {documents} of {total} cannot be used, left out: {first}{problems[0]}"
            )
    return lines


def nodes_of(node: Any, kind: type[_Node]) -> Iterator[_Node]:
    """Yield the nodes of one kind in data, itself and what it is built of.

    Args:
      node: A node of data, or anything that is built of them.
      kind: The class of the nodes to find.
    """
    # Along the fields of dataclasses, and through containers: the same structure that the config
    # has, without a registry of children that a user's own node could forget to fill.
    if isinstance(node, kind):
        yield node
    if isinstance(node, Mapping):
        parts: Sequence[Any] = list(node.values())
    elif isinstance(node, list | tuple):
        parts = node
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        parts = [getattr(node, field.name) for field in dataclasses.fields(node)]
    else:
        parts = ()
    for part in parts:
        yield from nodes_of(part, kind)
