"""Things that are gone from one place and stand in another: one change instead of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from luthier.graph.compare.documents.things import Numbers, Thing, children

if TYPE_CHECKING:
    from luthier.graph.compare.differ import Draft


def find_moves(
    drafts: Sequence[Draft],
    number: Numbers,
    kept: Callable[[Thing], Thing | None],
    keep: Callable[[Thing, Thing], None],
) -> list[Draft]:
    """Return what differs, with what is gone here and new there as one change.

    An element can move within its list, and what holds a node to any place.

    Args:
      drafts: What differs; what has moved is changed in place.
      number: Numbers structures.
      kept: Returns what a thing of the first document is in the second, where that is known.
      keep: Is told of what has moved, and what it is now.
    """
    gone: dict[int, list[Draft]] = {}
    for draft in reversed(drafts):
        if draft.kind in ("removed", "reset") and draft.a is not None:
            gone.setdefault(number(draft.a), []).append(draft)
    moved = False
    for draft in drafts if gone else ():
        if draft.kind not in ("added", "set") or draft.b is None:
            continue
        candidates = gone.get(number(draft.b), [])
        found = next((old for old in reversed(candidates) if _can_move(old, draft, kept)), None)
        if found is not None:
            candidates.remove(found)
            _merge(found, draft, keep)
            moved = True
    return [draft for draft in drafts if draft.into is None] if moved else list(drafts)


def _can_move(old: Draft, new: Draft, kept: Callable[[Thing], Thing | None]) -> bool:
    assert old.a is not None
    assert new.b is not None
    if old.a.is_shared and kept(old.a) not in (None, new.b):
        return False
    within = old.more.get("within")
    return (within is not None and within == new.more.get("within")) or holds_node(old.a)


def _merge(old: Draft, new: Draft, keep: Callable[[Thing, Thing], None]) -> None:
    assert old.a is not None
    assert new.b is not None
    keep(old.a, new.b)
    new.kind, new.path_a, new.a, new.more, old.into = "moved", old.path_a, old.a, {}, new


def holds_node(thing: Thing) -> bool:
    """Say whether a thing is a node that is no value, or holds one."""
    if thing.is_value_node:
        return False
    return thing.is_node or any(holds_node(child) for child in children(thing))
