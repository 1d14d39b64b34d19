"""Two documents in, everything that differs between them out: as data, and as JSON for pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from luthier.errors import RecordError
from luthier.graph.compare import things
from luthier.graph.compare.changes import Change, Draft, Swap, flat
from luthier.graph.compare.differ import Comparison, Differ
from luthier.graph.compare.document import Document
from luthier.graph.compare.overrides import overrides_of
from luthier.graph.compare.patch import patch_of
from luthier.graph.compare.rows import rows_of
from luthier.graph.compare.things import ConfigNode
from luthier.graph.render import tie_text

# Differences in words: what was found as a change with its texts, values and origins.


def change_of(draft: Draft, differ: Differ) -> Change:
    """Return a difference as a change.

    Args:
      draft: One of the differ's drafts.
      differ: What found it; it has run.
    """
    path = draft.path_a if draft.kind in ("removed", "reset") else draft.path_b
    more = {key: draft.more[key] for key in (*_SWAP, *_SHARING) if key in draft.more}
    if draft.kind in ("added", "set", "changed") and draft.b is not None:
        more |= _same_as(draft, differ)
    a, b = draft.a, draft.b
    tags = draft.more.get("tags")
    return Change(
        draft.kind,
        path,
        draft.path_a if draft.path_a != path and draft.kind != "added" else "",
        _tags(tags[0]) if tags else _text(a),
        _tags(tags[1]) if tags else _text(b),
        (list(tags[0]), list(tags[1])) if tags else (_plain(a), _plain(b)),
        (
            "" if draft.kind == "added" else differ.a.origin(draft.path_a),
            "" if draft.kind == "removed" else differ.b.origin(draft.path_b),
        ),
        swap=Swap(**{key: draft.more[key] for key in _SWAP if key in draft.more}),
        effective=_is_effective(draft, differ),
        told=_told(draft, more),
        **{key: more[key] for key in _SHARING if key in more},
    )


_SWAP = ("carried", "dropped", "gained")
_SHARING = ("same_as", "shared_as")


def _is_effective(draft: Draft, differ: Differ) -> bool:
    if draft.kind in ("set", "reset") and draft.a is not None and draft.b is not None:
        return not differ.same_default(draft.a, draft.b)
    if draft.kind in ("shared", "unshared"):
        return draft.b is not None and draft.b.kind == "config" and not draft.b.is_value_node
    return draft.kind != "tags"


def _same_as(draft: Draft, differ: Differ) -> dict[str, Any]:
    """Return which other place of the second document is the same thing."""
    if draft.b is None or not draft.b.is_shared:
        return {}
    first = differ.b.first_paths.get(id(draft.b), draft.path_b)
    return {} if first == draft.path_b else {"same_as": first}


def _text(thing: ConfigNode | None) -> str | None:
    return None if thing is None else things.text_of(thing)


def _plain(thing: ConfigNode | None) -> Any:
    """Return a value as plain JSON; None for what holds nodes."""
    if thing is None or (thing.is_node and not thing.is_value_node):
        return None
    return things.plain(thing)


def _tags(tags: tuple[str, ...]) -> str:
    """Return the tags of an argument on one line."""
    return ", ".join(f"#{tag}" for tag in tags) or "none"


def _told(draft: Draft, more: dict[str, Any]) -> str:
    a, b = draft.a, draft.b
    if draft.kind == "tags":
        old, new = draft.more["tags"]
        return f"tags {_tags(old)} -> {_tags(new)}"
    if draft.kind in ("shared", "unshared"):
        return _sharing_told(draft, more)
    if draft.kind == "added":
        return _new(b, more) if b is not None else ""
    if draft.kind == "removed":
        return things.full(a) if a is not None else ""
    if draft.kind == "moved":
        return things.text_of(b) if b is not None else ""
    if draft.kind == "class":
        return _class_told(draft, more)
    if draft.kind == "default":
        return f"{_default(a)} -> {_default(b)} (the default moved; set in neither)"
    before = "" if a is None else things.full(a) + _ties(a)
    after = "" if b is None else _new(b, more)
    arrow = f"{before or 'not set'} -> {after or 'not set'}"
    if draft.kind == "set":
        return f"{arrow} (was left at its default)"
    if draft.kind == "reset":
        return f"{arrow} (the default)"
    shared_as = more.get("shared_as")
    return f"{arrow} (shared as {shared_as})" if shared_as else arrow


def _new(thing: ConfigNode, more: dict[str, Any]) -> str:
    if more.get("same_as") and not thing.is_value_node:
        return f"the same as {more['same_as']}"
    return things.full(thing) + _ties(thing)


def _default(thing: ConfigNode | None) -> str:
    return "no default" if thing is None else things.full(thing)


def _sharing_told(draft: Draft, more: dict[str, Any]) -> str:
    assert draft.a is not None
    assert draft.b is not None
    other = more.get("same_as")
    if other:
        when = "now" if draft.kind == "shared" else "no longer"
        if draft.b.kind == "partial":
            return f"{when} shares its settings with {other}"
        return f"is {when} the same as {other}"
    before, after = things.text_of(draft.a), things.text_of(draft.b)
    if before == after:
        return f"{after} (of a constant that others share in another way)"
    return f"{before} -> {after}"


def _class_told(draft: Draft, more: dict[str, Any]) -> str:
    assert draft.a is not None
    assert draft.b is not None
    arrow = " -> ".join(things.text_of(side) + _ties(side) for side in (draft.a, draft.b))
    given = [("kept", "carried", None), ("dropped", "dropped", draft.a), ("new", "gained", draft.b)]
    return arrow + "".join(
        f"; {word} {', '.join(_given(name, node) for name in more[key])}"
        for word, key, node in given
        if more.get(key)
    )


def _given(name: str, node: ConfigNode | None) -> str:
    if node is None:
        return name
    child = next((child for part, child in node.parts if str(part) == name), None)
    return name if child is None else f"{name} = {things.text_of(child)}"


def _ties(thing: ConfigNode) -> str:
    """Return whose weights a node or class uses; empty for one with its own, and of a record."""
    return "" if thing.live is None else tie_text(thing.live)


VERSION = 1
"""The version of what `to_json` returns."""


def compare(a: Document, b: Document) -> Comparison:
    """Return what differs between two documents.

    Args:
      a: The first document.
      b: The second document.

    Raises:
      RecordError: A live graph is nested too deeply.
    """
    differ = Differ(a, b)
    root = differ.run()
    changes = [change_of(draft, differ) for draft in differ.drafts]
    return Comparison(a, b, changes, root, differ)


def to_json(comparison: Comparison, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return the comparison as JSON values: what pages and other programs read.

    Args:
      comparison: What `compare` returned.
      packages: The user's own packages, which words may name.

    Returns:
      `version`, `sides`, `changes` (with the word that makes each, `override`, or why there is
      none, `no_override`), `rows`, `patch` (see `patch_of`; None where there is none),
      `overrides` and `unsayable` (see `overrides_of`).
    """
    said = overrides_of(comparison, packages)
    try:
        patch = patch_of(comparison)
    except RecordError:
        patch = None
    changes = []
    for index, change in enumerate(comparison.changes):
        data = {
            **flat(change),
            "ratio": change.ratio,
            "difference": change.difference,
            "override": said.words.get(index),
            "no_override": said.reasons.get(index),
        }
        changes.append(data)
    return {
        "version": VERSION,
        "sides": [dataclasses.asdict(side) for side in comparison.sides],
        "changes": changes,
        "rows": [dataclasses.asdict(row) for row in rows_of(comparison)],
        "patch": patch,
        "overrides": list(said.all_words),
        "unsayable": [dataclasses.asdict(one) for one in said.unsayable],
    }
