"""`luthier show --why PATH`: what set a value, first to last."""

from __future__ import annotations

import json
from typing import Any

from luthier.cli.tables import table


def print_why(graph: Any, path: str, as_json: bool) -> None:
    """Print the chain of what set the value at a path.

    Args:
      graph: The graph of an experiment.
      path: A path that exists.
      as_json: Whether to print JSON instead of a table.
    """
    from luthier import graph as graphs

    graphs.get(graph, path)
    entries = graphs.history(graph).get(path, [])
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    rows = [(str(entry["value"]), str(entry["origin"])) for entry in entries]
    print("\n".join(table(["value", "set by"], rows)) if rows else "left at its default")
