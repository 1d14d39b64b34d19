"""Rows of more documents than a kernel of attention has room for: it gives NaN for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from luthier import graph as graphs
from luthier.errors import DataError, Problem, ValidationError

_SEGMENTS = "segments"


@dataclasses.dataclass(frozen=True)
class DocumentLimit:
    """The most documents that rows may have: of the attention that has room for the fewest.

    Args:
      most: How many.
      path: The setting that says so.
      origin: Where that was set.
    """

    most: int
    path: str
    origin: str

    @classmethod
    def of(cls, graph: Any) -> DocumentLimit | None:
        """Return the limit of an experiment; None where its attention takes any number.

        Args:
          graph: A valid experiment graph.
        """
        found = []
        for place in graphs.walk(graph, defaults=False, once=True):
            if "max_documents" in getattr(
                getattr(place.value, "__fn_or_cls__", None), "RANGES", {}
            ):
                path = f"{place.path}.max_documents"
                most = graphs.build(place.value).max_documents
                found.append(cls(most, path, graphs.origin_of(graph, path)))
        return min(found, key=lambda limit: limit.most, default=None)

    def check(self, rows: Mapping[str, Any], data: str) -> None:
        """Refuse a batch that attention would make NaN of.

        Args:
          rows: Host arrays by name; those of documents are int [B, L], 0 for padding.
          data: Where the data is set, for the message.

        Raises:
          DataError: A row has more documents.
        """
        for name, segments in rows.items():
            if name.endswith(_SEGMENTS):
                number = most_documents(np.asarray(segments))
                if number > self.most:
                    raise DataError(self._problem(data, number))

    def _problem(self, data: str, number: int) -> Problem:
        what = f"{data} has rows of {number} documents, and attention has room for {self.most}"
        remedy = f"set {self.path}={number}, use FusedAttention, or make rows shorter"
        return Problem(what, self.path, self.origin, remedy)


def most_documents(segments_BL: np.ndarray) -> int:
    """Return the most documents of a row.

    Args:
      segments_BL: The document of every token, 0 for padding; int [B, L].
    """
    before_BL = np.pad(segments_BL[:, :-1], ((0, 0), (1, 0)))
    starts_BL = (segments_BL > 0) & (segments_BL != before_BL)
    return int(starts_BL.sum(1).max(initial=0))


def require_documents(graph: Any, experiment: Any) -> None:
    """Refuse data whose rows have more documents than attention has room for.

    Data that does not know this beforehand is checked batch by batch, by `DocumentLimit.check`.

    Args:
      graph: The experiment graph.
      experiment: What it builds; its data is read.

    Raises:
      ValidationError: All data with such rows.
    """
    limit = DocumentLimit.of(graph)
    if limit is None:
        return
    problems = list(_problems(limit, experiment))
    if problems:
        raise ValidationError(problems)


def _problems(limit: DocumentLimit, experiment: Any) -> Iterator[Problem]:
    sets = {f"evaluations.{name}.data": e.data for name, e in experiment.evaluations.items()}
    for path, data in {"data": experiment.data, **sets}.items():
        number = getattr(getattr(data, "rows", None), "most_documents", None)
        if number is not None and number > limit.most:
            yield limit._problem(path, number)
