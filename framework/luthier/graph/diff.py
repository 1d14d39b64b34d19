"""What differs between two live graphs, as data and as lines of text.

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


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference between two graphs.

    Args:
      kind: See `luthier.graph.compare.changes.Change`.
      path: Where it is in the second graph; for `removed` and `reset`, in the first.
      before: The value in the first graph, `UNSET` where there is none; for `tags`, their names.
      after: The value in the second graph, `UNSET` where there is none; for `tags`, their names.
      path_before: Where it was in the first graph, if the path is another (an element that moved).
      origin: Where the value of the second graph was set.
      shared_as: For a constant that is shared, what people call it.
      same_as: For `shared` and `unshared`, the other place; for what is new, the place that it is
        the same thing as.
      swap: For `class`, what becomes of the arguments.
      is_effective: Whether what is built can differ: not for a value that is set to its default, or
        tags.
      summary: What changed, on one line, without the path and the origin.
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


def diff(a: Any, b: Any) -> list[Change]:
    """Return what one has to change in `a` to get `b`, in the order of the graph.

    Args:
      a: A node.
      b: A node.

    Returns:
      The changes; none if and only if `equal(a, b)` (apart from the order of keys).

    Raises:
      RecordError: A graph goes round in a circle, or is nested too deeply.
    """
    differ = Differ(document(a), document(b))
    differ.run()
    return [_change(draft, differ) for draft in differ.drafts]


def render_diff(changes: Sequence[Change]) -> str:
    """Return changes as text, one line each.

    Args:
      changes: What `diff` returned.
    """
    return "\n".join(map(str, changes)) or "no differences"


def _change(draft: Draft, differ: Differ) -> Change:
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
