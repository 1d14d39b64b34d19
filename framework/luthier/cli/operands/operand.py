"""Operands: the two sides of a comparison, whatever they were read from."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class ResultOperand:
    """A result of a run or trial.

    Args:
      name: Evaluation set and metric.
      value: The value; None where there is none.
      direction: `lower` or `higher` is better; empty where that is not known.
    """

    name: str
    value: float | None
    direction: str = ""


@dataclasses.dataclass(frozen=True)
class Operand:
    """One side of a comparison.

    Args:
      title: What the user called it.
      document: The graph as a read-only document.
      load: Returns the graph, which imports what it names.
      is_recorded: Whether it was read as data, so that nothing that it names is imported so far.
      packages: The user's packages that it may name.
      metrics_path: The metrics.jsonl of the run that it is; None where it is none.
      path: Its folder or file; None where it has none.
      state: How the run or trial stands; empty where it is none.
      objectives: What the run or trial came to.
    """

    title: str
    document: Any
    load: Callable[[], Any]
    is_recorded: bool
    packages: Sequence[str] = ()
    metrics_path: Path | None = None
    path: Path | None = None
    state: str = ""
    objectives: Sequence[ResultOperand] = ()


def of_graph(
    title: str, load: Callable[[], Any], *, detail: str = "", packages: Sequence[str] = ()
) -> Operand:
    """Return the operand of a graph that is made here.

    Args:
      title: What the user called it.
      load: Makes the graph.
      detail: More about it, on one line.
      packages: The user's packages that it may name.
    """
    from luthier.graph import compare

    graph = load()
    document = compare.document(graph, title=title, detail=detail)
    return Operand(title, document, lambda: graph, False, packages)


@dataclasses.dataclass(frozen=True)
class Record:
    """A graph that was written down, with what was written beside it.

    Args:
      text: Its JSON.
      history: JSON of where each value was set; empty where that is not known.
      values: JSON of its values with the defaults of its time, as `luthier.graph.to_dict` returns
        them; empty where they are not known.
      run: The run that it is of, as its values' origins name it.
      path: Its file; None for what was read from elsewhere.
    """

    text: str
    history: str = ""
    values: str = ""
    run: str = ""
    path: Path | None = None


def of_record(
    title: str, record: Record, *, detail: str = "", packages: Sequence[str] = (), **settings: Any
) -> Operand:
    """Return the operand of a record; nothing that it names is imported.

    Args:
      title: What the user called it.
      record: What was read.
      detail: More about it, on one line.
      packages: The user's packages that it may name.
      **settings: What else an `Operand` is told.

    Raises:
      RecordError: The text is no record.
    """
    from luthier.graph import compare

    document = compare.read(record.text, title, detail, record.history, record.values)
    load = functools.partial(_load, record, title, packages)
    return Operand(title, document, load, True, packages, **settings)


def _load(record: Record, title: str, packages: Sequence[str]) -> Any:
    from luthier import graph as graphs

    if record.path is not None:
        from luthier.records import trust

        packages = trust.packages_for(record.path, record.text, packages)
    graph = graphs.from_json(record.text, packages, source=title)
    if record.history:
        graphs.restore_history(graph, json.loads(record.history), record.run)
    return graph
