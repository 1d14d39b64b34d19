"""Differences between two documents, as data: changes, rows, and pairs of places."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from luthier.graph.compare.nodes import ConfigNode

# fmt: off
Kind = Literal[
    "changed", "added", "removed", "set", "reset", "default",
    "class", "moved", "shared", "unshared", "tags",
]
# fmt: on
_MARKS = {"added": "+", "removed": "-", "shared": "=", "unshared": "=", "moved": ">"}


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two documents of a comparison.

    Args:
      title: The name of the document (`configs.lm.quickstart`, a run's id).
      detail: More about it on one line; empty for nothing.
      fingerprint: A hash of its content; documents with equal content have equal ones.
    """

    title: str
    detail: str = ""
    fingerprint: str = ""


@dataclasses.dataclass(frozen=True)
class Swap:
    """The effect of a change of class on the arguments.

    Args:
      carried: Those that are set in both.
      dropped: Those that were set before only.
      gained: Those that are set now only.
    """

    carried: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    gained: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference between two documents.

    Args:
      kind: `changed`: another value. `added`, `removed`: an argument without a known default, an
        element or a key. `set`: was at its default, `reset`: is at its default again. `default`:
        at its default in both, and the default is another. `class`: another class, function or
        kind of node. `moved`: the same node in another place. `shared`, `unshared`: is now, or is
        no longer, one and the same node as another place. `tags`: other tags.
      path: Where it is in the second; for `removed` and `reset`, in the first.
      path_before: Where it was in the first, if the path is another; else empty.
      before: The old value on one line; None where there was nothing.
      after: The new value on one line; None where there is nothing.
      values: The old and the new value as plain JSON; None where there is none, and for nodes.
      origins: The origins of both values (`file:line`, an argument); empty where unknown.
      swap: For `class`, the arguments that are carried over, dropped and gained.
      same_as: For `shared` and `unshared`, the other place; for a new value, the place of the
        second document that holds the same node.
      shared_as: For a shared constant, its name.
      effective: Whether the built objects can differ: not for a value that is set to its default,
        tags, or the sharing of plain values.
      summary: The change on one line, without the path and the origins.
    """

    kind: Kind
    path: str
    path_before: str = ""
    before: str | None = None
    after: str | None = None
    values: tuple[Any, Any] = (None, None)
    origins: tuple[str, str] = ("", "")
    swap: Swap = Swap()
    same_as: str = ""
    shared_as: str = ""
    effective: bool = True
    summary: str = ""

    def __str__(self) -> str:
        return line_of(self.kind, self.path, self.path_before, self.summary, self.origin_after)

    @property
    def value_before(self) -> Any:
        """The old value as plain JSON."""
        return self.values[0]

    @property
    def value_after(self) -> Any:
        """The new value as plain JSON."""
        return self.values[1]

    @property
    def origin_before(self) -> str:
        """The origin of the old value."""
        return self.origins[0]

    @property
    def origin_after(self) -> str:
        """The origin of the new value."""
        return self.origins[1]

    @property
    def difference(self) -> float | None:
        """The new number minus the old one; None where the change is not about two numbers."""
        before, after = _number(self.value_before), _number(self.value_after)
        return None if before is None or after is None else after - before

    @property
    def ratio(self) -> float | None:
        """The new number over the old one; None where there is no such ratio."""
        before, after = _number(self.value_before), _number(self.value_after)
        if before is None or after is None or before == 0:
            return None
        try:
            return after / before
        except OverflowError:  # integers of a record may be too large for a float
            return None


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the aligned tree of both documents.

    Args:
      depth: The depth in the tree; the root is at 0.
      path: The path in the second; empty where it is not there, and for the root.
      path_before: The path in the first; empty where it is not there, and for the root.
      name: The last part of the path, as it is written.
      before: The value in the first, on one line; None where it is not there.
      after: The value in the second, on one line; None where it is not there.
      change: The number of the change that the row shows; None where nothing changed.
      opens: Whether the next rows are its children.
    """

    depth: int
    path: str
    path_before: str
    name: str
    before: str | None
    after: str | None
    change: int | None = None
    opens: bool = False


@dataclasses.dataclass(frozen=True)
class NoOverride:
    """A change that no override makes.

    Args:
      path: The path of the change.
      reason: The reason why there is no override.
    """

    path: str
    reason: str


def line_of(kind: str, path: str, path_before: str, what: str, origin: str) -> str:
    """Return a change on one line.

    Args:
      kind: The kind of the change.
      path: Where it is.
      path_before: Where it was, if the path is another.
      what: The change itself.
      origin: The origin of the new value; empty to leave it out.
    """
    where = path or "the root"
    if path_before:
        where += f" (was {path_before})"
    return f"{_MARKS.get(kind, '~')} {where}: {what}{f'  [{origin}]' if origin else ''}"


def flat(change: Change) -> dict[str, Any]:
    """Return the fields of a change as JSON has them, without groups.

    Args:
      change: A change.
    """
    data = dataclasses.asdict(change)
    # The keys of the JSON are a file format, which is older than the names of the fields.
    data = {"told" if name == "summary" else name: value for name, value in data.items()}
    for name in ("value", "origin"):
        before, after = data.pop(f"{name}s")
        data |= {f"{name}_before": before, f"{name}_after": after}
    return data | data.pop("swap")


def _number(value: Any) -> Any:
    """Return a value if it is a number, and not a truth value."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


# The aligned tree of two documents, and the differences as the differ finds them.


@dataclasses.dataclass
class Pair:
    """A place of the aligned tree: a node of the first document with its partner in the second.

    Args:
      a: The node in the first document; None where there is none.
      b: The node in the second document; None where there is none.
      path_a: The path in the first document.
      path_b: The path in the second document.
      part: The last part of the path.
      below: The pairs below. A shared node that is met again has none: it was compared before.
      changes: The drafts that are shown at this place.
      default_a: The default of an argument that is not set in the first, where it is known.
      default_b: The same for the second.
    """

    a: ConfigNode | None
    b: ConfigNode | None
    path_a: str
    path_b: str
    part: Any = None
    below: list[Pair] = dataclasses.field(default_factory=list)
    changes: list[Any] = dataclasses.field(default_factory=list)
    default_a: ConfigNode | None = None
    default_b: ConfigNode | None = None


@dataclasses.dataclass(eq=False)
class Draft:
    """A difference as the differ finds it; `change_of` turns it into a `Change`.

    Args:
      kind: See `Change`.
      path_a: The path in the first document.
      path_b: The path in the second document.
      a: The node in the first document; a default where the argument is not set.
      b: The node in the second document; a default where the argument is not set.
      more: Further fields of the change.
      into: The draft that this one was merged into, as one half of a move.
    """

    kind: Kind
    path_a: str
    path_b: str
    a: ConfigNode | None
    b: ConfigNode | None
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    into: Draft | None = None
