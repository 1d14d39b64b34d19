"""`luthier show --why [PATH]`: what set a value, first to last; or what set every value last."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from luthier.cli.tables import table
from luthier.terminal import cell

WIDEST = 48


def print_why(graph: Any, path: str, as_json: bool) -> None:
    """Print the chain of what set the value at a path.

    Args:
      graph: The graph of an experiment.
      path: A path that exists; empty for every value that is set, with what set it last.
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


def _print_all(graph: Any, as_json: bool) -> None:
    from luthier import graph as graphs

    found = list(graphs.last_causes(graph))
    if as_json:
        told = {path: dataclasses.asdict(cause) for path, _, cause in found}
        print(json.dumps(told, indent=1))
        return
    rows = [(path, _short(value), _by(cause)) for path, value, cause in found]
    print("\n".join(table(["path", "value", "set by"], rows)))


def _chain(causes: Any) -> list[str]:
    rows = [(cause.path, _short(cause.value), _by(cause)) for cause in causes]
    return table(["set", "to", "by"], rows)


def _by(cause: Any) -> str:
    """Return what set something, with what called it and the run in which it was."""
    callers = "".join(f", called from {line}" for line in cause.callers)
    run = f" (in run {cause.run})" if cause.run else ""
    return f"{cause.origin}{callers}{run}"


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
