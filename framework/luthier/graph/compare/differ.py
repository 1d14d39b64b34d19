"""The differ: aligns two documents in one walk, and collects what differs as drafts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph.compare import nodes
from luthier.graph.compare.alignment import align
from luthier.graph.compare.changes import Change, Draft, Kind, Pair, Side
from luthier.graph.compare.document import Document
from luthier.graph.compare.nodes import CONSTANT, LEAF, ConfigNode, Numbers, children
from luthier.graph.paths import join


def find_moves(
    drafts: Sequence[Draft],
    number: Numbers,
    kept: Callable[[ConfigNode], ConfigNode | None],
    keep: Callable[[ConfigNode, ConfigNode], None],
) -> list[Draft]:
    """Return the drafts with each removal that matches an addition merged into one move.

    Args:
      drafts: The drafts, in the order of the graph; moved ones are changed in place.
      number: Numbers structures.
      kept: Returns the partner of a node of the first document, where it is known.
      keep: Called with a moved node and its partner in the second document.
    """
    # Only equal structures match, found by their number, so this is linear in the drafts. Plain
    # values match too easily (any `0` that goes with any `0` that comes), so they move only within
    # their own list; whatever holds a node can move anywhere.
    gone: dict[int, list[Draft]] = {}
    for draft in drafts:
        if draft.kind in ("removed", "reset") and draft.a is not None:
            gone.setdefault(number(draft.a), []).append(draft)
    moved = False
    for draft in drafts if gone else ():
        if draft.kind not in ("added", "set") or draft.b is None:
            continue
        candidates = gone.get(number(draft.b), [])
        found = next((old for old in candidates if _can_move(old, draft, kept)), None)
        if found is not None:
            candidates.remove(found)
            _merge(found, draft, keep)
            moved = True
    return [draft for draft in drafts if draft.into is None] if moved else list(drafts)


def _can_move(old: Draft, new: Draft, kept: Callable[[ConfigNode], ConfigNode | None]) -> bool:
    assert old.a is not None
    assert new.b is not None
    # A shared node whose partner is known stays at its other place: this place was only unshared.
    if old.a.is_shared and kept(old.a) not in (None, new.b):
        return False
    within = old.more.get("within")
    return (within is not None and within == new.more.get("within")) or holds_node(old.a)


def _merge(old: Draft, new: Draft, keep: Callable[[ConfigNode, ConfigNode], None]) -> None:
    assert old.a is not None
    assert new.b is not None
    keep(old.a, new.b)
    new.kind, new.path_a, new.a, new.more, old.into = "moved", old.path_a, old.a, {}, new


def holds_node(node: ConfigNode) -> bool:
    """Return whether this is a config or template (not a shared value), or holds one."""
    if node.is_value_node:
        return False
    return node.is_node or any(holds_node(child) for child in children(node))


# The walk over two documents at once.
#
# There is one differ, over documents that are read from records without importing anything; live
# graphs are encoded into documents first. So a run of an old version, whose classes may be gone,
# and the graph of today are compared by the same code.
#
# Elements of lists are aligned by their structure, so that an insertion is one change; a swapped
# class is one change that lists the arguments that were carried over; sharing has changes of its
# own. The time grows with the number of places, and n log n with the length of lists.


class Differ:
    """Compares one pair of documents.

    Args:
      a: The first document.
      b: The second document.
    """

    def __init__(self, a: Document, b: Document):
        self.a, self.b = a, b
        self.drafts: list[Draft] = []
        self.number = Numbers()
        # The identity of nodes across both documents, each node at most once: its partner, by its
        # id. Edits change a kept node in place, and refer to it elsewhere by a variable or alias.
        self.kept_a: dict[int, ConfigNode] = {}
        self.kept_b: dict[int, ConfigNode] = {}
        # Pairs of shared nodes that were compared: a shared node is compared once per partner, not
        # once per path, or sharing at every level would take exponential time.
        self._pairs: set[tuple[int, int]] = set()
        # The first partner of each shared node, and the path at which they met.
        self._met_a: dict[int, tuple[ConfigNode, str]] = {}
        self._met_b: dict[int, tuple[ConfigNode, str]] = {}
        # Arithmetic is looked at last, when it is known which of its constants changed elsewhere.
        self._deferred: list[tuple[ConfigNode, ConfigNode, Pair]] = []
        # Nodes that were swapped for a list, or lists for a node; they are opened last.
        self._swaps: list[tuple[Pair, Draft]] = []
        self._both_live = a.is_live and b.is_live

    def run(self) -> Pair:
        """Compare the two documents; return the aligned tree. `drafts` then holds what differs."""
        root = Pair(self.a.root, self.b.root, "", "")
        try:
            self._compare(root, False)
            self._finish()
        except RecursionError:
            raise RecordError(Problem("the graph is nested too deeply")) from None
        return root

    def _finish(self) -> None:
        """Report what can only be decided when everything has been compared."""
        self._compare_deferred()
        self.drafts = find_moves(
            self.drafts, self.number, lambda a: self.kept_a.get(id(a)), self._keep_all
        )
        for pair, draft in self._swaps:
            # By another differ, since the inside of a swap is only described: its edit writes the
            # new value as a whole, so nothing in it is a node that is kept and edited in place.
            # It knows the pairs of this one, and does not report a shared node again.
            inside = Differ(self.a, self.b)
            inside.number, inside._pairs = self.number, self._pairs
            inside._compare_swapped(pair)
            inside._finish()
            if pair.below:
                draft.kind = "class"
                place = self.drafts.index(draft) + 1
                self.drafts[place:place] = inside.drafts

    def same_default(self, a: ConfigNode, b: ConfigNode) -> bool:
        """Return whether a value and a default, or two defaults, are the same.

        Args:
          a: A value or default of either document.
          b: The same.
        """
        if self._both_live:
            a, b = self.a.as_node(a, b), self.b.as_node(b, a)
        if self.number(a) == self.number(b):
            return True
        if self._both_live:
            return False
        # Defaults of a record are plain JSON: a tuple has become a list there, and a dtype its
        # name. So where a record is involved, both are compared as plain JSON.
        return _dumped(a) == _dumped(b)

    def _add(
        self, kind: Kind, pair: Pair, a: ConfigNode | None, b: ConfigNode | None, **more: Any
    ) -> None:
        draft = Draft(kind, pair.path_a, pair.path_b, a, b, more)
        self.drafts.append(draft)
        pair.changes.append(draft)

    def _compare(self, pair: Pair, apart: bool) -> None:
        """Compare two nodes at the same place.

        Args:
          pair: The two.
          apart: Whether it is reported already that a node around them is shared differently:
            then the nodes inside are too, and are not reported one by one.
        """
        # In this order: shared values, which are compared by what they compute; nodes that may be
        # shared, where identity counts; then nodes by class, leaves and sets as a whole, lists by
        # alignment, and dicts and dataclasses by key.
        a, b = pair.a, pair.b
        assert a is not None
        assert b is not None
        if a.is_value_node or b.is_value_node:
            self._compare_values(a, b, pair)
            return
        # A node stays the same node when its kind changes (a config becomes a template, say); a
        # list and a dict are different values.
        if a.is_shared and b.is_shared and (a.kind == b.kind or (a.is_node and b.is_node)):
            if (id(a), id(b)) in self._pairs:
                return
            self._pairs.add((id(a), id(b)))
            self._keep(a, b)
            apart = self._compare_sharing(a, b, pair, apart)
        if a.is_node and b.is_node:
            self._compare_nodes(a, b, pair, apart)
        elif a.kind != b.kind or a.name != b.name or a.is_whole:
            if self.number(a) != self.number(b):
                self._add("changed", pair, a, b)
                if {a.kind, b.kind} & {"list", "tuple"} and (a.is_node or b.is_node):
                    self._swaps.append((pair, self.drafts[-1]))
        elif a.kind in ("list", "tuple"):
            self._compare_lists(a, b, pair, apart)
        else:
            self._compare_keyed(a.by_part, b.by_part, pair, apart)

    def _keep(self, a: ConfigNode, b: ConfigNode) -> bool:
        """Note that two nodes are partners, unless one of them has another partner already."""
        if id(a) in self.kept_a or id(b) in self.kept_b or a.content != b.content:
            return False
        self.kept_a[id(a)], self.kept_b[id(b)] = b, a
        return True

    def _keep_all(self, a: ConfigNode, b: ConfigNode) -> None:
        """Note that two nodes of equal content are partners, and so are all nodes in them."""
        if a.is_shared and not self._keep(a, b):
            return
        if a.kind in ("set", "frozenset", LEAF):
            return
        for part, child in a.parts:
            self._keep_all(child, b.by_part[part])

    def _compare_sharing(self, a: ConfigNode, b: ConfigNode, pair: Pair, apart: bool) -> bool:
        """Report that a node has met another partner before; return whether it has."""
        # If a node of the second document has met another partner, two nodes have become one:
        # "shared". If a node of the first has, one node has become two: "unshared".
        old, new = self._met_a.get(id(a)), self._met_b.get(id(b))
        self._met_a.setdefault(id(a), (b, pair.path_a))
        self._met_b.setdefault(id(b), (a, pair.path_b))
        if old is None and new is None:
            return False
        if not apart:
            if new is not None:
                self._add("shared", pair, a, b, same_as=new[1])
            elif old is not None:
                self._add("unshared", pair, a, b, same_as=old[1])
        return True

    def _compare_values(self, a: ConfigNode, b: ConfigNode, pair: Pair) -> None:
        """Compare two values of which at least one is a value node.

        A changed constant is one change, at its first place: `_pairs` skips all its other users.
        """
        if (id(a), id(b)) in self._pairs:
            return
        # A plain value that became shared, or the other way round: where the value is the same,
        # only the sharing changed.
        # Not noted in `_pairs`: on the plain side each user has its own value, so each changed.
        if not (a.is_value_node and b.is_value_node):
            kind: Kind = "unshared" if a.is_value_node else "shared"
            same = self.number(nodes.value_of(a) or a) == self.number(nodes.value_of(b) or b)
            self._add(kind if same else "changed", pair, a, b)
            return
        self._pairs.add((id(a), id(b)))
        self._keep(a, b)
        # Not `apart`: two nodes that are no longer shared may still use one constant.
        self._compare_sharing(a, b, pair, False)
        is_arithmetic = a.name != CONSTANT and b.name != CONSTANT
        if is_arithmetic and _constants(a, b, self.number) is not None:
            self._deferred.append((a, b, pair))
        elif self.number(a) == self.number(b):
            return
        elif a.name == b.name == CONSTANT and nodes.shared_name(a) == nodes.shared_name(b):
            old, new = a.by_part.get("value"), b.by_part.get("value")
            if old is None or new is None or self.number(old) != self.number(new):
                name = nodes.shared_name(b)
                self._add("changed", pair, old, new, shared_as=name)
            self._compare_tags(a, b, pair)
        else:
            self._add("changed", pair, a, b)

    def _compare_deferred(self) -> None:
        """Report arithmetic that differs only in constants which have no place of their own.

        `dim * 4` differs when the constant `dim` does. Where `dim` is an argument elsewhere, the
        walk has reported it there, and the arithmetic follows from it; else it is reported here.
        """
        for a, b, pair in self._deferred:
            is_reported = True
            for left, right in _constants(a, b, self.number) or ():
                same = self.number(left) == self.number(right)
                is_reported = is_reported and (same or (id(left), id(right)) in self._pairs)
            is_shared_alike = self._keep_operands(a, b)
            if not is_reported:
                self._add("changed", pair, a, b)
            elif not is_shared_alike:
                self._add("unshared", pair, a, b)

    def _keep_operands(self, a: ConfigNode, b: ConfigNode) -> bool:
        """Make the operands of arithmetic partners; return whether they are shared alike."""
        alike = True
        for part, child in a.parts:
            other = b.by_part[part]
            if not child.is_value_node:
                continue
            if self._keep(child, other):
                alike = (child.name == CONSTANT or self._keep_operands(child, other)) and alike
            elif self.kept_a.get(id(child)) is not other:
                alike = False
        return alike

    def _compare_nodes(self, a: ConfigNode, b: ConfigNode, pair: Pair, apart: bool) -> None:
        given_a, given_b = a.by_part, b.by_part
        if a.content != b.content and self._compare_wrapped(a, b, pair):
            return
        if a.content != b.content:
            carried = tuple(str(part) for part in given_a if part in given_b)
            dropped = tuple(str(part) for part in given_a if part not in given_b)
            gained = tuple(str(part) for part in given_b if part not in given_a)
            self._add("class", pair, a, b, carried=carried, dropped=dropped, gained=gained)
            given_a = {part: child for part, child in given_a.items() if part in given_b}
            given_b = {part: child for part, child in given_b.items() if part in given_a}
            self._compare_tags(a, b, pair)
            self._compare_keyed(given_a, given_b, pair, apart)
            self._add_swapped(a, b, pair)
            return
        self._compare_tags(a, b, pair)
        self._compare_keyed(given_a, given_b, pair, apart, a, b)

    def _compare_wrapped(self, a: ConfigNode, b: ConfigNode, pair: Pair) -> bool:
        """Report a node that was wrapped in a new one, or unwrapped; return whether it was.

        `f -> g(f)` is one change of class and one move, not a change of every argument.
        """
        # `b` wraps `a` if one of its arguments equals `a` as a whole; then everything in there is
        # kept, and the other arguments of `b` are gained.
        # Tags need no comparison: equal numbers include those of the inner node, and the outer node
        # comes or goes with its own.
        inner, inside = _place_in(b, a, self.number), _place_in(a, b, self.number)
        if inner is None and inside is None:
            return False
        gained = tuple(str(part) for part, _ in b.parts if part != inner)
        dropped = tuple(str(part) for part, _ in a.parts if part != inside)
        gained, dropped = gained if inner is not None else (), dropped if inside is not None else ()
        self._add("class", pair, a, b, gained=gained, dropped=dropped)
        moved = Draft("moved", pair.path_a, pair.path_b, a, b)
        if inner is not None:
            moved.path_b, moved.b = join(pair.path_b, inner), b.by_part[inner]
        elif inside is not None:
            moved.path_a, moved.a = join(pair.path_a, inside), a.by_part[inside]
        assert moved.a is not None
        assert moved.b is not None
        self._keep_all(moved.a, moved.b)
        self.drafts.append(moved)
        self._add_swapped(a, b, pair)
        # The row of the inner node shows the move, and not the change of class around it.
        for at in pair.below:
            if at.part in (inner, inside):
                at.changes = [moved]
        return True

    def _add_swapped(self, a: ConfigNode, b: ConfigNode, pair: Pair) -> None:
        """Add rows to the tree for the arguments that exist on one side of a class swap only.

        They are no changes of their own: the change of class lists them as dropped or gained.
        """
        swap = [draft for draft in pair.changes if draft.kind == "class"]
        for part, child in a.parts:
            if part not in b.by_part:
                path = join(pair.path_a, part)  # type: ignore[arg-type]
                pair.below.append(Pair(child, None, path, "", part, changes=swap))
        for part, child in b.parts:
            if part not in a.by_part:
                path = join(pair.path_b, part)  # type: ignore[arg-type]
                pair.below.append(Pair(None, child, "", path, part, changes=swap))

    def _compare_tags(self, a: ConfigNode, b: ConfigNode, pair: Pair) -> None:
        if a.tags == b.tags:
            return
        for part in dict.fromkeys(part for part, _ in (*a.tags, *b.tags)):
            old, new = a.tags_of(part), b.tags_of(part)
            if old != new:
                at = Pair(None, None, join(pair.path_a, part), join(pair.path_b, part), part)
                pair.below.append(at)
                self._add("tags", at, None, None, tags=(old, new))

    def _compare_keyed(
        self,
        a: Mapping[Any, ConfigNode],
        b: Mapping[Any, ConfigNode],
        pair: Pair,
        apart: bool,
        node_a: ConfigNode | None = None,
        node_b: ConfigNode | None = None,
    ) -> None:
        # The nodes themselves are given only where their classes agree: then an argument that one
        # side lacks is at its default there, and the change is `set` or `reset`. With different
        # classes, or in a dict, it is `added` or `removed`.
        for key, child in a.items():
            at = Pair(child, b.get(key), join(pair.path_a, key), join(pair.path_b, key), key)
            pair.below.append(at)
            if at.b is not None:
                self._compare(at, apart)
            else:
                at.default_b = _default(self.b, node_b, key)
                if self._compare_with_default(at, child, at.default_b):
                    continue
                kind: Kind = "removed" if at.default_b is None else "reset"
                self._add(kind, at, child, at.default_b)
        for key, child in b.items():
            if key not in a:
                at = Pair(None, child, join(pair.path_a, key), join(pair.path_b, key), key)
                pair.below.append(at)
                at.default_a = _default(self.a, node_a, key)
                if self._compare_with_default(at, at.default_a, child):
                    continue
                kind = "added" if at.default_a is None else "set"
                self._add(kind, at, at.default_a, child)
        if node_a is not None and node_b is not None and not self._both_live:
            self._compare_defaults(node_a, node_b, pair)

    def _compare_with_default(self, at: Pair, a: ConfigNode | None, b: ConfigNode | None) -> bool:
        """Report what differs between a node and the default instance of its class, part by part.

        `parallelism.mesh.fsdp=2` makes nodes of the defaults on the way: the size is what changed.

        Returns:
          Whether anything was reported; not where a node only repeats the default.
        """
        if not self._both_live or a is None or b is None:
            return False
        a, b = self.a.as_node(a, b), self.b.as_node(b, a)
        if a.content != b.content or a.kind not in ("config", "dict"):
            return False
        # The default is no part of its graph: edits must neither keep nor refer to what is in it.
        kept = self.kept_a.copy(), self.kept_b.copy()
        met = self._met_a.copy(), self._met_b.copy()
        pairs, start = self._pairs.copy(), len(self.drafts)
        pair = Pair(a, b, at.path_a, at.path_b, at.part)
        self._compare(pair, True)
        (self.kept_a, self.kept_b), (self._met_a, self._met_b), self._pairs = kept, met, pairs
        if len(self.drafts) == start:
            return False
        at.a, at.b, at.below, at.changes = a, b, pair.below, pair.changes
        return True

    def _compare_defaults(self, a: ConfigNode, b: ConfigNode, pair: Pair) -> None:
        """Report arguments that are set in neither document and have different defaults.

        A default can differ only between versions of the code, so this is for records alone: two
        live graphs have one signature.
        """
        # The usual case, two runs of one version, without making nodes of all defaults.
        if a.known is not None and repr(a.known) == repr(b.known):
            return
        known_a, known_b = self.a.defaults(a), self.b.defaults(b)
        if known_a is None or known_b is None:
            return
        for part in dict.fromkeys((*known_a, *known_b)):
            if part in a.by_part or part in b.by_part:
                continue
            old, new = known_a.get(part), known_b.get(part)
            if old is None or new is None or not self.same_default(old, new):
                at = Pair(None, None, join(pair.path_a, part), join(pair.path_b, part), part)
                at.default_a, at.default_b = old, new
                pair.below.append(at)
                self._add("default", at, old, new)

    def _compare_lists(self, a: ConfigNode, b: ConfigNode, pair: Pair, apart: bool) -> None:
        in_a, in_b = children(a), children(b)
        numbers = [[self.number(child) for child in inside] for inside in (in_a, in_b)]
        alike = [[_alike(child) for child in inside] for inside in (in_a, in_b)]
        for i, j in align(*numbers, *alike):
            path_a = "" if i is None else join(pair.path_a, i)
            path_b = "" if j is None else join(pair.path_b, j)
            old = None if i is None else in_a[i]
            new = None if j is None else in_b[j]
            at = Pair(old, new, path_a, path_b, i if j is None else j)
            pair.below.append(at)
            if old is not None and new is not None:
                self._compare(at, apart)
            else:
                self._add("added" if old is None else "removed", at, old, new, within=id(pair))

    def _compare_swapped(self, pair: Pair) -> None:
        """Compare a node with the element most like it of a list; the others came or went.

        `block: Block -> [Block, OtherBlock]` is one change at `block`, those between `block` and
        `block[0]`, and an addition of `block[1]`. Nothing is done for a list without nodes.
        """
        a, b = pair.a, pair.b
        assert a is not None
        assert b is not None
        node, inside = (a, children(b)) if a.is_node else (b, children(a))
        places = [
            place for place, child in enumerate(inside) if child.is_node and not child.is_value_node
        ]
        # `min` takes the first where several elements, or none, are of the class of the node.
        like = min(places, key=lambda place: inside[place].content != node.content, default=None)
        for place, child in enumerate(inside if like is not None else ()):
            other = node if place == like else None
            if a.is_node:
                path = pair.path_a if other is not None else ""
                at = Pair(other, child, path, join(pair.path_b, place), place)
            else:
                path = pair.path_b if other is not None else ""
                at = Pair(child, other, join(pair.path_a, place), path, place)
            pair.below.append(at)
            if other is not None:
                self._compare(at, False)
            else:
                self._add("added" if a.is_node else "removed", at, at.a, at.b)


def _default(document: Document, node: ConfigNode | None, part: Any) -> ConfigNode | None:
    known = None if node is None else document.defaults(node)
    return None if known is None else known.get(part)


def _alike(node: ConfigNode) -> Any:
    return node.content if node.is_node else (node.kind, node.name, type(node.data))


def _place_in(outer: ConfigNode, inner: ConfigNode, number: Numbers) -> Any:
    """Return the argument of `outer` that holds a node equal to `inner`; None where none does."""
    for part, child in outer.parts:
        # An argument that both have is carried over, and compared as such.
        if child.is_node and part not in inner.by_part and number(child) == number(inner):
            return part
    return None


def _dumped(node: ConfigNode) -> str:
    return json.dumps(nodes.plain(node), sort_keys=True)


def _constants(
    a: ConfigNode, b: ConfigNode, number: Numbers
) -> list[tuple[ConfigNode, ConfigNode]] | None:
    """Return the constants of two value nodes in pairs; None where more than values differs."""
    # Constants are paired whatever their values and tags, which the callers compare by number; a
    # constant of another name is another constant. Both are walked in step. Pairs that were seen
    # are skipped: an expression is a graph, and `y = x + x` nested n times has 2**n paths.
    found, pending, seen = [], [(a, b)], set()
    while pending:
        left, right = pending.pop()
        if (id(left), id(right)) in seen:
            continue
        seen.add((id(left), id(right)))
        if not (left.is_value_node and right.is_value_node):
            if number(left) != number(right):
                return None
        elif left.name != right.name or left.by_part.keys() != right.by_part.keys():
            return None
        elif left.name == CONSTANT:
            if nodes.shared_name(left) != nodes.shared_name(right):
                return None
            found.append((left, right))
        elif left.tags != right.tags:
            return None
        else:
            pending += [(child, right.by_part[part]) for part, child in left.parts]
    return found


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare`: everything that differs between two documents.

    Args:
      a: The first document.
      b: The second document.
      changes: The changes that turn the first into the second, in the order of the graph.
      root: The aligned tree of both.
      differ: The differ that compared them.
    """

    a: Document
    b: Document
    changes: Sequence[Change]
    root: Pair
    differ: Differ

    @property
    def sides(self) -> tuple[Side, Side]:
        """The titles and fingerprints of both."""
        return self.a.side, self.b.side
