"""What differs between two documents, as data: changes, rows, and pairs of places."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from luthier.graph.compare.things import ConfigNode

# What differs between two documents, as data: changes, and the aligned tree of both sides.

# fmt: off
Kind = Literal[
    "changed", "added", "removed", "set", "reset", "default",
    "class", "moved", "shared", "unshared", "tags",
]
# fmt: on
_MARKS = {"added": "+", "removed": "-", "shared": "=", "unshared": "=", "moved": ">"}


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two things that are compared.

    Args:
      title: What it is called (`configs.lm.quickstart`, a run's id).
      detail: More about it on one line; empty for nothing.
      fingerprint: A hash of its content; documents with equal content have equal ones.
    """

    title: str
    detail: str = ""
    fingerprint: str = ""


@dataclasses.dataclass(frozen=True)
class Swap:
    """What a change of class does to the arguments.

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
        kind of node. `moved`: the same thing in another place. `shared`, `unshared`: is now, or is
        no longer, one and the same thing as another place. `tags`: other tags.
      path: Where it is in the second; for `removed` and `reset`, in the first.
      path_before: Where it was in the first, if the path is another; else empty.
      before: What it was, on one line; None where there was nothing.
      after: What it is, on one line; None where there is nothing.
      values: What it was and is as plain JSON values; None where there is none, and for nodes.
      origins: What set it in the first and in the second (`file:line`, an argument); empty where
        that is not known.
      swap: For `class`, what becomes of the arguments.
      same_as: For `shared` and `unshared`, the other place; for what is new, the place of the
        second that it is the same thing as.
      shared_as: For a constant that is shared, what people call it.
      effective: Whether what is built can differ: not for a value that is set to its default, tags,
        or the sharing of plain values.
      told: What changed, on one line, without the path and the origins.
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
    told: str = ""

    def __str__(self) -> str:
        return line_of(self.kind, self.path, self.path_before, self.told, self.origin_after)

    @property
    def value_before(self) -> Any:
        """What it was as a plain JSON value."""
        return self.values[0]

    @property
    def value_after(self) -> Any:
        """What it is as a plain JSON value."""
        return self.values[1]

    @property
    def origin_before(self) -> str:
        """What set it in the first."""
        return self.origins[0]

    @property
    def origin_after(self) -> str:
        """What set it in the second."""
        return self.origins[1]

    @property
    def difference(self) -> float | None:
        """How much larger a number is than before; None where it is not about two numbers."""
        before, after = _number(self.value_before), _number(self.value_after)
        return None if before is None or after is None else after - before

    @property
    def ratio(self) -> float | None:
        """How many times larger a number is than before; None where that cannot be said."""
        before, after = _number(self.value_before), _number(self.value_after)
        if before is None or after is None or before == 0:
            return None
        try:
            return after / before
        except OverflowError:
            return None


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the tree that both documents are aligned in.

    Args:
      depth: How deep it stands; the root is at 0.
      path: Where it is in the second; empty where it is not there, and for the root.
      path_before: Where it is in the first; empty where it is not there, and for the root.
      name: The last part of its path, as it is written.
      before: What it is in the first, on one line; None where it is not there.
      after: What it is in the second, on one line; None where it is not there.
      change: Which of the changes it shows; None for what is the same.
      opens: Whether rows below belong to it.
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
class Unsayable:
    """A change that no word of the override grammar makes.

    Args:
      path: Where it is.
      reason: Why not.
    """

    path: str
    reason: str


def line_of(kind: str, path: str, path_before: str, what: str, origin: str) -> str:
    """Return a change on one line.

    Args:
      kind: The kind of the change.
      path: Where it is.
      path_before: Where it was, if the path is another.
      what: What changed.
      origin: What set it; empty to leave it out.
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
    for name in ("value", "origin"):
        before, after = data.pop(f"{name}s")
        data |= {f"{name}_before": before, f"{name}_after": after}
    return data | data.pop("swap")


def _number(value: Any) -> Any:
    """Return a value if it is a number, and not a truth value."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


# Which parts of two documents belong together, as a tree, and what differs.


@dataclasses.dataclass
class Pair:
    """A place of two documents.

    Args:
      a: What is there in the first; None where nothing is.
      b: What is there in the second; None where nothing is.
      path_a: Where it is in the first.
      path_b: Where it is in the second.
      part: The last part of its path.
      below: What is inside, where it was looked at: of what is met again, nothing.
      changes: Which of the changes are told here.
      default_a: What an argument that is not set has for a default in the first, where known.
      default_b: The same of the second.
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
    """A difference as it was found; `telling` makes a change of it.

    Args:
      kind: See `Change`.
      path_a: Where it is in the first document.
      path_b: Where it is in the second document.
      a: What is there in the first; a default where the argument is not set.
      b: What is there in the second; a default where the argument is not set.
      more: The further fields of the change.
      into: The change that this one became a part of.
    """

    kind: Kind
    path_a: str
    path_b: str
    a: ConfigNode | None
    b: ConfigNode | None
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    into: Draft | None = None
