"""`luthier show --changes`: what the overrides and fiddlers of a command line change."""

from __future__ import annotations

from typing import Any


def print_changes(before: Any, after: Any) -> None:
    """Print the difference between a graph and what overrides and fiddlers made of it.

    Args:
      before: The graph of the reference.
      after: The graph after all the words of the command line.
    """
    from luthier import graph as graphs

    found = graphs.diff(before, after)
    print(graphs.render_diff(found) if found else "nothing changes")
