"""The formats in which `luthier show` writes a graph, and `--why`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luthier.cli.printing import table
from luthier.errors import BadInput, Problem
from luthier.terminal import cell

if TYPE_CHECKING:
    from luthier.graph import Graph

SUFFIXES = {
    ".py": "py",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".svg": "svg",
    ".gin": "gin",
}
"""The format of a file, by its suffix."""
_WIDEST = 72


def tree(graph: Graph, defaults: bool) -> str:
    """Return a graph as an indented tree."""
    from luthier import graph as graphs

    return graphs.render(graph, defaults=defaults) + "\n"


def value_table(graph: Graph, defaults: bool) -> str:
    """Return a graph as a table with one line for each value: its path, itself, and its tags."""
    # A node that is in several places is written out at the first one; the others refer to it, or
    # the table would look as if they could be set separately.
    from luthier import graph as graphs
    from luthier.graph.record.structure import is_shared_node
    from luthier.graph.render import sharing_text, text_of

    rows = []
    first: dict[int, str] = {}
    for place in graphs.walk(graph, defaults=defaults, once=True):
        # The parts of a default, such as the numbers of a tuple, are in its own text already.
        if place.is_default and not _is_of_node(place):
            continue
        own = place.owner.__argument_tags__.get(place.part, ()) if _is_of_node(place) else ()
        tags = " ".join(sorted(f"#{tag.__name__}" for tag in own))
        text = text_of(place.value)
        # The text of a shared value names it already, at all of its places.
        is_shared = is_shared_node(place.value) and not graphs.is_value_node(place.value)
        if is_shared and first.setdefault(id(place.value), place.path) != place.path:
            text = f"{sharing_text(place.value)} {first[id(place.value)]}"
        short = text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
        rows.append((place.path, short, "default" if place.is_default else "", tags))
    heads = ("path", "value", "", "tags")
    used = [i for i in range(len(heads)) if i < 2 or any(row[i] for row in rows)]
    lines = table([heads[i] for i in used], [[row[i] for i in used] for row in rows])
    return "\n".join(lines) + "\n"


def _is_of_node(place: Any) -> bool:
    """Return whether a place is an argument of a node, and not a part of a value."""
    return hasattr(place.owner, "__argument_tags__")


# Each imports `luthier.graph` when it is called: `luthier show --help` must not wait for Fiddle.


def _json(graph: Graph) -> str:
    from luthier import graph as graphs

    return graphs.to_json(graph)


def _python(graph: Graph) -> str:
    from luthier import graph as graphs

    return graphs.to_python(graph)


def _yaml(graph: Graph) -> str:
    from luthier import graph as graphs

    return graphs.to_yaml(graph)


def _gin(graph: Graph) -> str:
    from luthier import graph as graphs

    return graphs.to_gin(graph)


def _svg(graph: Graph) -> str:
    from luthier import graph as graphs

    return graphs.to_svg(graph)


LISTED: Mapping[str, Callable[[Any, bool], str]] = {"tree": tree, "table": value_table}
"""Formats that can show default values, too."""
WHOLE: Mapping[str, Callable[[Any], str]] = {
    "json": _json,
    "py": _python,
    "yaml": _yaml,
    "gin": _gin,
    "svg": _svg,
}
"""Formats of a whole file, with the values that are set only."""
FORMS = (*LISTED, *WHOLE)


def written(graph: Graph, form: str, defaults: bool = False) -> str:
    """Return a graph in a format.

    Args:
      graph: A node or value.
      form: One of `FORMS`.
      defaults: Whether to show default values, too.

    Raises:
      RecordError: A value of the graph cannot be written in this format.
    """
    return LISTED[form](graph, defaults) if form in LISTED else WHOLE[form](graph)


def save(text: str, path: str) -> None:
    """Write text to a file.

    Args:
      text: The text to write.
      path: The file; one that exists is replaced.

    Raises:
      BadInput: It cannot be written.
    """
    # Names of files that are not UTF-8 are in the graph as surrogates; they come out as they were.
    try:
        Path(path).write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(Problem(f"cannot write {path}: {reason}", origin="--output")) from error


# `luthier show --why [PATH]`: the history of a value, or the last cause of every value.

WIDEST = 48


def print_why(graph: Graph, path: str, as_json: bool) -> None:
    """Print the history of the value at a path.

    Args:
      graph: The graph of an experiment.
      path: An existing path; empty for every value that is set, with its last cause.
      as_json: Whether to print JSON instead of a table.

    Raises:
      UnknownReference: There is no such path.
    """
    if not path:
        _print_all(graph, as_json)
        return
    from luthier import graph as graphs

    found = graphs.explain(graph, path)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=1))
        return
    lines = [cell(f"{found.path} = {found.value}"), "", *_chain(found.causes)]
    for name, causes in found.follows:
        lines += ["", f"it follows {cell(name)}:", *_chain(causes)]
    if found.same_as:
        lines += ["", cell(f"the same value: {', '.join(found.same_as)}")]
    print("\n".join(lines))


def _print_all(graph: Graph, as_json: bool) -> None:
    from luthier import graph as graphs

    found = list(graphs.last_causes(graph))
    if as_json:
        by_path = {path: dataclasses.asdict(cause) for path, _, cause in found}
        print(json.dumps(by_path, indent=1))
        return
    rows = [(path, _short(value), _by(cause)) for path, value, cause in found]
    print("\n".join(table(["path", "value", "set by"], rows)))


def _chain(causes: Any) -> list[str]:
    rows = [(cause.path, _short(cause.value), _by(cause)) for cause in causes]
    return table(["set", "to", "by"], rows)


def _by(cause: Any) -> str:
    """Return the origin of a value, with its callers and the run that recorded it."""
    callers = "".join(f", called from {line}" for line in cause.callers)
    run = f" (in run {cause.run})" if cause.run else ""
    return f"{cause.origin}{callers}{run}"


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
