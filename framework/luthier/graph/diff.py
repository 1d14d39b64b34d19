"""The difference of two live graphs, as data and as lines of text.

The graphs are compared as documents (`luthier.graph.compare`), like records of any version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from luthier.graph.compare.changes import Draft, Kind, Swap, line_of
from luthier.graph.compare.comparing import change_of
from luthier.graph.compare.differ import Differ
from luthier.graph.compare.document import document
from luthier.graph.compare.nodes import ConfigNode
from luthier.graph.signatures import UNSET
from luthier.graph.values import Graph


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference between two graphs.

    Args:
      kind: See `luthier.graph.compare.changes.Change`.
      path: The path in the second graph; for `removed` and `reset`, in the first.
      before: The value in the first graph, `UNSET` where there is none; for `tags`, their names.
      after: The value in the second graph, `UNSET` where there is none; for `tags`, their names.
      path_before: The path in the first graph, if it is another (an element that moved).
      origin: The origin of the value of the second graph.
      shared_as: For a shared constant, its name.
      same_as: For `shared` and `unshared`, the other place; for a new value, the place that holds
        the same node.
      swap: For `class`, the arguments that are carried over, dropped and gained.
      is_effective: Whether the built objects can differ: not for a value that is set to its
        default, or tags.
      summary: The change on one line, without the path and the origin.
    """

    kind: Kind
    path: str
    before: Any
    after: Any
    path_before: str = ""
    origin: str = ""
    shared_as: str = ""
    same_as: str = ""
    swap: Swap = Swap()
    is_effective: bool = True
    summary: str = ""

    def __str__(self) -> str:
        return line_of(self.kind, self.path, self.path_before, self.summary, self.origin)


def diff(a: Graph, b: Graph) -> list[Change]:
    """Return the changes that turn `a` into `b`, in the order of the graph.

    Args:
      a: A node.
      b: A node.

    Returns:
      The changes; none if and only if `equal(a, b)` (apart from the order of keys).

    Raises:
      RecordError: A graph contains a cycle, or is nested too deeply.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=3e-4)
      >>> changed = graph.apply(config, ["learning_rate=1e-3", "b2=0.99"])
      >>> print(graph.render_diff(graph.diff(config, changed)))
      ~ learning_rate: 0.0003 -> 0.001  [argument 1: learning_rate=1e-3]
      ~ b2: 0.95 -> 0.99 (was left at its default)  [argument 2: b2=0.99]
    """
    differ = Differ(document(a), document(b))
    differ.run()
    return [_change(draft, differ) for draft in differ.drafts]


def render_diff(changes: Sequence[Change]) -> str:
    """Return changes as text, one line each.

    Args:
      changes: The output of `diff`.

    Returns:
      The lines, without colour; "no differences" for no changes.

    Example:
      >>> from luthier import graph
      >>> graph.render_diff([])
      'no differences'
    """
    return "\n".join(map(str, changes)) or "no differences"


def _change(draft: Draft, differ: Differ) -> Change:
    # A change of `compare` holds texts and JSON, since it can be of a record. Here both graphs are
    # live, and a change can hold the objects themselves.
    change = change_of(draft, differ)
    tags = draft.more.get("tags")
    return Change(
        change.kind,
        change.path,
        tags[0] if tags else _live(draft.a),
        tags[1] if tags else _live(draft.b),
        change.path_before,
        change.origin_after,
        change.shared_as,
        change.same_as,
        change.swap,
        change.effective,
        change.summary,
    )


def _live(node: ConfigNode | None) -> Any:
    return UNSET if node is None else node.live
