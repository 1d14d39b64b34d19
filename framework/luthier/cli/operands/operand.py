"""Operands: the sides of a comparison, independent of their source."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luthier.graph import Graph


@dataclasses.dataclass(frozen=True)
class ResultOperand:
    """A result of a run or trial.

    Args:
      name: Evaluation set and metric.
      value: The value; None if there is none.
      direction: `lower` or `higher`, whichever is better; empty if unknown.
    """

    name: str
    value: float | None
    direction: str = ""


@dataclasses.dataclass(frozen=True)
class Operand:
    """One side of a comparison.

    Args:
      title: Its name on the command line.
      document: The graph as a read-only document.
      load: Returns the graph; this imports the classes and functions that it names.
      is_recorded: Whether it was read as data, so that nothing that it names is imported yet.
      packages: The user's packages that it may name.
      metrics_path: The metrics.jsonl of a run or trial; None for other operands.
      path: Its folder or file; None if it has none.
      state: The status of a run or trial; empty for other operands.
      objectives: The results of a run or trial.
    """

    title: str
    document: Any
    load: Callable[[], Graph]
    is_recorded: bool
    packages: Sequence[str] = ()
    metrics_path: Path | None = None
    path: Path | None = None
    state: str = ""
    objectives: Sequence[ResultOperand] = ()


def of_graph(
    title: str, load: Callable[[], Graph], *, detail: str = "", packages: Sequence[str] = ()
) -> Operand:
    """Return the operand of a graph that is built in this process.

    Args:
      title: Its name on the command line.
      load: Builds the graph.
      detail: A description, on one line.
      packages: The user's packages that it may name.
    """
    from luthier.graph import compare

    graph = load()
    document = compare.document(graph, title=title, detail=detail)
    return Operand(title, document, lambda: graph, False, packages)


@dataclasses.dataclass(frozen=True)
class Record:
    """A recorded graph, with the records beside it.

    Args:
      text: Its JSON.
      history: JSON of where each value was set; empty if unknown.
      values: JSON of its values with the defaults of its time, as `luthier.graph.to_dict` returns
        them; empty if unknown.
      run: The name of its run, as in the origins of its values.
      path: Its file; None if it was not read from a file.
    """

    text: str
    history: str = ""
    values: str = ""
    run: str = ""
    path: Path | None = None


def of_record(
    title: str, record: Record, *, detail: str = "", packages: Sequence[str] = (), **settings: Any
) -> Operand:
    """Return the operand of a record, without importing what it names.

    Args:
      title: Its name on the command line.
      record: The record.
      detail: A description, on one line.
      packages: The user's packages that it may name.
      **settings: Other arguments of `Operand`.

    Raises:
      RecordError: The text is not a record.
    """
    # Reading a record as a document imports nothing, so anything can be compared safely and fast.
    # The graph itself is loaded only for effects, and only then is trust asked for.
    from luthier.graph import compare

    document = compare.read(record.text, title, detail, record.history, record.values)
    load = functools.partial(_load, record, title, packages)
    return Operand(title, document, load, True, packages, **settings)


def _load(record: Record, title: str, packages: Sequence[str]) -> Graph:
    from luthier import graph as graphs

    if record.path is not None:
        from luthier.records import trust

        packages = trust.packages_for(record.path, record.text, packages)
    graph = graphs.from_json(record.text, packages, source=title)
    if record.history:
        graphs.restore_history(graph, json.loads(record.history), record.run)
    return graph
