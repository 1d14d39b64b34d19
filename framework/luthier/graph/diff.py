"""What differs between two graphs, as data and as lines of text.

Elements of lists are aligned by their structure, so that an insertion is one change; a swapped
class is one change that says which arguments were carried over; sharing has changes of its own. The
time grows with the number of nodes (Fiddle's own `build_diff` is quadratic).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import fiddle as fdl

from luthier.errors import UnknownReference
from luthier.graph import signatures, values
from luthier.graph.compare.alignment import align
from luthier.graph.compare.structures import Structures
from luthier.graph.edits.origins import origin_of
from luthier.graph.paths import join
from luthier.graph.record.structure import entries, is_node, is_shared_node
from luthier.graph.render import head_text, text_of, tie_text
from luthier.graph.signatures import UNSET

Kind = Literal["changed", "added", "removed", "set", "reset", "class", "shared", "unshared", "tags"]


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference between two graphs.

    Args:
      kind: `changed`: another value. `added`, `removed`: an argument without a default, an element
        or a key. `set`: was at its default, `reset`: is at its default again. `class`: another
        class, function or kind of node. `shared`, `unshared`: is now, or is no longer, one and the
        same thing as another place. `tags`: other tags.
      path: Where it is in the second graph; for `removed` and `reset`, in the first.
      before: The value in the first graph, `UNSET` where there is none; for `tags`, their names.
      after: The value in the second graph, `UNSET` where there is none; for `tags`, their names.
      path_before: Where it was in the first graph, if the path is another (an element that moved).
      origin: Where the value of the second graph was set.
      shared_as: For a constant that is shared, what people call it.
      same_as: For `shared` and `unshared`, the other place.
      carried: For `class`, the arguments that are set in both.
      dropped: For `class`, the arguments that were set before only.
      gained: For `class`, the arguments that are set now only.
    """

    kind: Kind
    path: str
    before: Any
    after: Any
    path_before: str = ""
    origin: str = ""
    shared_as: str = ""
    same_as: str = ""
    carried: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    gained: tuple[str, ...] = ()

    @property
    def is_effective(self) -> bool:
        """Whether what is built can differ: not for a value that is set to its default, or tags."""
        if self.kind in ("set", "reset"):
            structures = Structures()
            return structures.number(self.before) != structures.number(self.after)
        if self.kind in ("shared", "unshared"):
            return type(self.after) is fdl.Config and not values.is_value_node(self.after)
        return self.kind != "tags"

    def __str__(self) -> str:
        return _line(self)


def diff(a: Any, b: Any) -> list[Change]:
    """Return what one has to change in `a` to get `b`, in the order of the graph.

    Args:
      a: A node.
      b: A node.

    Returns:
      The changes; none if and only if `equal(a, b)` (apart from the order of keys).
    """
    differ = _Differ(b)
    differ.compare(a, b, "", "", False)
    differ.compare_deferred()
    return differ.changes


def render_diff(changes: Sequence[Change]) -> str:
    """Return changes as text, one line each.

    Args:
      changes: What `diff` returned.
    """
    return "\n".join(_line(change) for change in changes) or "no differences"


class _Differ:
    """Compares one pair of graphs: what was met with what, and what differs so far."""

    def __init__(self, b: Any):
        self.b = b
        self.changes: list[Change] = []
        self.structures = Structures()
        self.pairs: set[tuple[int, int]] = set()
        self.met_a: dict[int, tuple[Any, str]] = {}
        self.met_b: dict[int, tuple[Any, str]] = {}
        self.deferred: list[tuple[Any, Any, str, str]] = []

    def compare(self, a: Any, b: Any, path_a: str, path_b: str, apart: bool) -> None:
        """Compare two things that stand at the same place.

        Args:
          a: The first.
          b: The second.
          path_a: Where the first is.
          path_b: Where the second is.
          apart: Whether it is told already that what they are part of is shared differently.
        """
        if values.is_value_node(a) or values.is_value_node(b):
            self._compare_values(a, b, path_a, path_b)
            return
        if is_shared_node(a) and is_shared_node(b) and type(a) is type(b):
            if (id(a), id(b)) in self.pairs:
                return
            self.pairs.add((id(a), id(b)))
            apart = self._compare_sharing(a, b, path_a, path_b, apart)
        if is_node(a) and is_node(b):
            self._compare_nodes(a, b, path_a, path_b, apart)
            return
        inside_a, inside_b = entries(a), entries(b)
        if type(a) is not type(b) or inside_a is None or inside_b is None or _is_plain_tuple(a):
            if self.structures.number(a) != self.structures.number(b):
                self._add("changed", path_a, path_b, a, b)
        elif isinstance(a, list | tuple) and not hasattr(a, "_fields"):
            self._compare_lists(a, b, path_a, path_b, apart)
        else:
            self._compare_keyed(dict(inside_a), dict(inside_b), path_a, path_b, apart)

    def compare_deferred(self) -> None:
        """Report arithmetic that differs only in constants which have no place of their own."""
        for a, b, path_a, path_b in self.deferred:
            told = True
            for left, right in zip(_constants(a), _constants(b), strict=True):
                same = self.structures.number(left) == self.structures.number(right)
                told = told and (same or (id(left), id(right)) in self.pairs)
            if not told:
                self._add("changed", path_a, path_b, a, b)

    def _add(self, kind: Kind, path_a: str, path_b: str, a: Any, b: Any, **more: Any) -> None:
        path = path_a if kind in ("removed", "reset") else path_b
        moved = path_a if path_a != path and kind != "added" else ""
        try:
            origin = origin_of(self.b, path) if path and kind != "removed" else ""
        except (UnknownReference, KeyError):
            origin = ""
        self.changes.append(Change(kind, path, a, b, moved, origin, **more))

    def _compare_sharing(self, a: Any, b: Any, path_a: str, path_b: str, apart: bool) -> bool:
        """Report that one of two partners has met another partner before; say if that is told."""
        old, new = self.met_a.get(id(a)), self.met_b.get(id(b))
        self.met_a.setdefault(id(a), (b, path_a))
        self.met_b.setdefault(id(b), (a, path_b))
        if old is None and new is None:
            return False
        if not apart:
            if new is not None:
                self._add("shared", path_a, path_b, a, b, same_as=new[1])
            else:
                assert old is not None
                self._add("unshared", path_a, path_b, a, b, same_as=old[1])
        return True

    def _compare_values(self, a: Any, b: Any, path_a: str, path_b: str) -> None:
        """Compare where at least one is a value node."""
        if (id(a), id(b)) in self.pairs:
            return
        if not (values.is_value_node(a) and values.is_value_node(b)):
            kind: Kind = "unshared" if values.is_value_node(a) else "shared"
            same = self.structures.number(_known(a)) == self.structures.number(_known(b))
            self._add(kind if same else "changed", path_a, path_b, a, b)
            return
        self.pairs.add((id(a), id(b)))
        self._compare_sharing(a, b, path_a, path_b, False)
        if self.structures.number(a) == self.structures.number(b):
            return
        if values.is_operation(a) and values.is_operation(b) and _shape(a) == _shape(b):
            self.deferred.append((a, b, path_a, path_b))
        elif values.is_constant(a) and values.is_constant(b) and _named(a) == _named(b):
            old, new = a.__arguments__.get("value", UNSET), b.__arguments__.get("value", UNSET)
            if self.structures.number(old) != self.structures.number(new):
                self._add("changed", path_a, path_b, old, new, shared_as=_named(b))
            else:
                self._compare_tags(a, b, path_a, path_b)
        else:
            self._add("changed", path_a, path_b, a, b)

    def _compare_nodes(self, a: Any, b: Any, path_a: str, path_b: str, apart: bool) -> None:
        given_a, given_b = dict(entries(a) or ()), dict(entries(b) or ())
        if type(a) is not type(b) or a.__fn_or_cls__ is not b.__fn_or_cls__:
            carried = tuple(str(part) for part in given_a if part in given_b)
            dropped = tuple(str(part) for part in given_a if part not in given_b)
            gained = tuple(str(part) for part in given_b if part not in given_a)
            told = {"carried": carried, "dropped": dropped, "gained": gained}
            self._add("class", path_a, path_b, a, b, **told)
            given_a = {part: child for part, child in given_a.items() if part in given_b}
            given_b = {part: child for part, child in given_b.items() if part in given_a}
        self._compare_tags(a, b, path_a, path_b)
        defaults = signatures.arguments(b.__fn_or_cls__).defaults
        self._compare_keyed(given_a, given_b, path_a, path_b, apart, defaults)

    def _compare_tags(self, a: Any, b: Any, path_a: str, path_b: str) -> None:
        if not (a.__argument_tags__ or b.__argument_tags__):
            return
        for part in dict.fromkeys((*a.__argument_tags__, *b.__argument_tags__)):
            old, new = (tuple(sorted(map(str, _tags(node, part)))) for node in (a, b))
            if old != new:
                self._add("tags", join(path_a, part), join(path_b, part), old, new)

    def _compare_keyed(
        self, a: Any, b: Any, path_a: str, path_b: str, apart: bool, defaults: Any = None
    ) -> None:
        for key, child in a.items():
            at_a, at_b = join(path_a, key), join(path_b, key)
            if key in b:
                self.compare(child, b[key], at_a, at_b, apart)
            elif defaults and key in defaults:
                self._add("reset", at_a, at_b, child, defaults[key])
            else:
                self._add("removed", at_a, at_b, child, UNSET)
        for key, child in b.items():
            if key not in a:
                default = (defaults or {}).get(key, UNSET)
                kind: Kind = "added" if default is UNSET else "set"
                self._add(kind, join(path_a, key), join(path_b, key), default, child)

    def _compare_lists(self, a: Any, b: Any, path_a: str, path_b: str, apart: bool) -> None:
        number = self.structures.number
        pairs = align(
            [number(child) for child in a],
            [number(child) for child in b],
            [_alike(child) for child in a],
            [_alike(child) for child in b],
        )
        for i, j in pairs:
            at_a, at_b = join(path_a, i or 0), join(path_b, j or 0)
            if j is None:
                self._add("removed", at_a, "", a[i], UNSET)
            elif i is None:
                self._add("added", "", at_b, UNSET, b[j])
            else:
                self.compare(a[i], b[j], at_a, at_b, apart)


def _is_plain_tuple(value: Any) -> bool:
    """Say whether `value` is a tuple of leaves, which changes as a whole."""
    return type(value) is tuple and all(entries(child) is None for child in value)


def _alike(value: Any) -> Any:
    return (type(value), id(value.__fn_or_cls__)) if is_node(value) else type(value)


def _known(value: Any) -> Any:
    try:
        return values.evaluate(value)
    except Exception:  # an operand is missing or wrong, which validate tells
        return value


def _named(node: Any) -> str:
    return node.__arguments__.get("name", "")


def _tags(node: Any, part: Any) -> Any:
    return node.__argument_tags__.get(part, ())


def _shape(node: Any) -> Any:
    """Return arithmetic without the values of its constants."""
    if values.is_constant(node):
        return ("constant", _named(node))
    if values.is_operation(node):
        return (id(node.__fn_or_cls__), *[_shape(operand) for operand in values.operands(node)])
    return (type(node), repr(node))


def _constants(node: Any) -> list[Any]:
    if values.is_constant(node):
        return [node]
    if not values.is_operation(node):
        return []
    return [found for operand in values.operands(node) for found in _constants(operand)]


def _line(change: Change) -> str:
    where = change.path or "the root"
    if change.path_before:
        where += f" (was {change.path_before})"
    mark = {"added": "+", "removed": "-", "shared": "=", "unshared": "="}.get(change.kind, "~")
    origin = f"  [{change.origin}]" if change.origin else ""
    return f"{mark} {where}: {_told(change)}{origin}"


def _told(change: Change) -> str:
    before, after = change.before, change.after
    if change.kind == "tags":
        old, new = (", ".join(tags) or "none" for tags in (before, after))
        return f"tags {old} -> {new}"
    if change.same_as:
        when = "now" if change.kind == "shared" else "no longer"
        if isinstance(after, fdl.Partial):
            return f"{when} shares its settings with {change.same_as}"
        return f"is {when} the same as {change.same_as}"
    if change.kind == "added":
        return _full(after)
    if change.kind == "removed":
        return _full(before)
    tell = text_of if change.kind == "class" else _full
    arrow = f"{tell(before)}{tie_text(before)} -> {tell(after)}{tie_text(after)}"
    if change.kind == "class":
        given = [("kept", change.carried, None), ("dropped", change.dropped, before)]
        return arrow + "".join(
            f"; {word} {', '.join(_given(name, node) for name in names)}"
            for word, names, node in [*given, ("new", change.gained, after)]
            if names
        )
    if change.kind == "set":
        return f"{arrow} (was left at its default)"
    if change.kind == "reset":
        return f"{arrow} (the default)"
    return f"{arrow} (shared as {change.shared_as})" if change.shared_as else arrow


def _given(name: str, node: Any) -> str:
    if node is None or name not in node.__arguments__:
        return name
    return f"{name} = {text_of(node.__arguments__[name])}"


def _full(value: Any) -> str:
    """Return a value that has no other side; a node with its plain arguments."""
    if not isinstance(value, fdl.Buildable) or values.is_value_node(value):
        return text_of(value)
    given = ", ".join(f"{part}={text_of(child)}" for part, child in entries(value) or ())
    return f"{head_text(value)}({given})"
