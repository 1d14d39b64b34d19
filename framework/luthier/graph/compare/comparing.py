"""Comparison of two documents: changes with their texts and origins, and JSON for pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from luthier.errors import RecordError
from luthier.graph.compare import nodes
from luthier.graph.compare.changes import Change, Draft, Swap, flat
from luthier.graph.compare.differ import Comparison, Differ
from luthier.graph.compare.document import Document
from luthier.graph.compare.nodes import ConfigNode
from luthier.graph.compare.overrides import overrides_of
from luthier.graph.compare.patch import patch_of
from luthier.graph.compare.rows import rows_of
from luthier.graph.render import tie_text

# From the differ's drafts to changes: formatted values, plain values, and origins.


def change_of(draft: Draft, differ: Differ) -> Change:
    """Return the change that a draft describes.

    Args:
      draft: One of the differ's drafts.
      differ: The differ that found it; it has run.
    """
    # Drafts become changes only after the differ has run: a removal that turned out to be half of
    # a move has been merged by then, and a text that was written earlier would be wrong.
    # A change is named by its path in the second document, unless the value is not set there.
    path = draft.path_a if draft.kind in ("removed", "reset") else draft.path_b
    more = {key: draft.more[key] for key in (*_SWAP, *_SHARING) if key in draft.more}
    # Only for new values: the drafts of `shared` and `unshared` have their own `same_as`.
    if draft.kind in ("added", "set", "changed") and draft.b is not None:
        more |= _same_as(draft, differ)
    # `added` and `removed` have both paths, too. On the side that lacks the value there is nothing
    # at its path, so this is neither listed as the old path nor asked for an origin.
    a, b = draft.a, draft.b
    tags = draft.more.get("tags")
    text = nodes.heading if _is_swap_with_list(draft) else _text
    return Change(
        draft.kind,
        path,
        draft.path_a if draft.path_a != path and draft.kind != "added" else "",
        _tags(tags[0]) if tags else text(a),
        _tags(tags[1]) if tags else text(b),
        (list(tags[0]), list(tags[1])) if tags else (_plain(a), _plain(b)),
        (
            "" if draft.kind == "added" else differ.a.origin(draft.path_a),
            "" if draft.kind == "removed" else differ.b.origin(draft.path_b),
        ),
        swap=Swap(**{key: draft.more[key] for key in _SWAP if key in draft.more}),
        effective=_is_effective(draft, differ),
        summary=_summary(draft, more),
        **{key: more[key] for key in _SHARING if key in more},
    )


_SWAP = ("carried", "dropped", "gained")
_SHARING = ("same_as", "shared_as")


def _is_swap_with_list(draft: Draft) -> bool:
    """Return whether a node was swapped for a list, or a list for a node, element by element."""
    sides = (draft.a, draft.b)
    return draft.kind == "class" and any(side is not None and not side.is_node for side in sides)


def _is_effective(draft: Draft, differ: Differ) -> bool:
    # A config node that two places share is built once, so sharing it changes the object graph. A
    # shared value or template changes only how later overrides move it, not what is built now.
    if draft.kind in ("set", "reset") and draft.a is not None and draft.b is not None:
        return not differ.same_default(draft.a, draft.b)
    if draft.kind in ("shared", "unshared"):
        return draft.b is not None and draft.b.kind == "config" and not draft.b.is_value_node
    return draft.kind != "tags"


def _same_as(draft: Draft, differ: Differ) -> dict[str, Any]:
    """Return the other place of the second document that holds the same node."""
    if draft.b is None or not draft.b.is_shared:
        return {}
    first = differ.b.first_paths.get(id(draft.b), draft.path_b)
    return {} if first == draft.path_b else {"same_as": first}


def _text(node: ConfigNode | None) -> str | None:
    return None if node is None else nodes.text_of(node)


def _plain(node: ConfigNode | None) -> Any:
    """Return a value as plain JSON; None for what holds nodes."""
    if node is None or (node.is_node and not node.is_value_node):
        return None
    return nodes.plain(node)


def _tags(tags: tuple[str, ...]) -> str:
    """Return the tags of an argument on one line."""
    return ", ".join(f"#{tag}" for tag in tags) or "none"


def _summary(draft: Draft, more: dict[str, Any]) -> str:
    # `changed`, `set` and `reset` come last and share the arrow. A side of `changed` is None for a
    # constant without a value; the sides of tags are always None.
    a, b = draft.a, draft.b
    if draft.kind == "tags":
        old, new = draft.more["tags"]
        return f"tags {_tags(old)} -> {_tags(new)}"
    if draft.kind in ("shared", "unshared"):
        return _sharing_summary(draft, more)
    if draft.kind == "added":
        return _new(b, more) if b is not None else ""
    if draft.kind == "removed":
        return nodes.full(a) if a is not None else ""
    # Both sides of a move are equal, so the class is enough where `removed` writes the arguments.
    if draft.kind == "moved":
        return nodes.text_of(b) if b is not None else ""
    if draft.kind == "class":
        return _class_summary(draft, more)
    if draft.kind == "default":
        return f"{_default(a)} -> {_default(b)} (the default moved; set in neither)"
    before = "" if a is None else nodes.full(a) + _ties(a)
    after = "" if b is None else _new(b, more)
    arrow = f"{before or 'not set'} -> {after or 'not set'}"
    if draft.kind == "set":
        return f"{arrow} (was left at its default)"
    if draft.kind == "reset":
        return f"{arrow} (the default)"
    shared_as = more.get("shared_as")
    return f"{arrow} (shared as {shared_as})" if shared_as else arrow


def _new(node: ConfigNode, more: dict[str, Any]) -> str:
    if more.get("same_as") and not node.is_value_node:
        return f"the same as {more['same_as']}"
    return nodes.full(node) + _ties(node)


def _default(node: ConfigNode | None) -> str:
    return "no default" if node is None else nodes.full(node)


def _sharing_summary(draft: Draft, more: dict[str, Any]) -> str:
    assert draft.a is not None
    assert draft.b is not None
    other = more.get("same_as")
    if other:
        when = "now" if draft.kind == "shared" else "no longer"
        if draft.b.kind == "partial":
            return f"{when} shares its settings with {other}"
        return f"is {when} the same as {other}"
    before, after = nodes.text_of(draft.a), nodes.text_of(draft.b)
    if before == after:
        return f"{after} (of a constant that others share in another way)"
    return f"{before} -> {after}"


def _class_summary(draft: Draft, more: dict[str, Any]) -> str:
    assert draft.a is not None
    assert draft.b is not None
    if _is_swap_with_list(draft):  # the elements have changes of their own
        return f"{nodes.heading(draft.a)} -> {nodes.heading(draft.b)}"
    arrow = " -> ".join(nodes.text_of(side) + _ties(side) for side in (draft.a, draft.b))
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
    return name if child is None else f"{name} = {nodes.text_of(child)}"


def _ties(node: ConfigNode) -> str:
    """Return the owner of the weights that a tied node uses; empty for a node with its own.

    A component that uses the weights of another names it in `TIES`; that distinguishes tied weights
    from shared settings, which look the same in a graph. For records, which import no class, it is
    not known.
    """
    return "" if node.live is None else tie_text(node.live)


VERSION = 1
"""The version of what `to_json` returns."""


def compare(a: Document, b: Document) -> Comparison:
    """Compare two documents.

    Args:
      a: The first document.
      b: The second document.

    Returns:
      The changes that turn the first into the second, in the order of the graph.

    Raises:
      RecordError: A live graph is nested too deeply.
    """
    differ = Differ(a, b)
    root = differ.run()
    changes = [change_of(draft, differ) for draft in differ.drafts]
    return Comparison(a, b, changes, root, differ)


def to_json(comparison: Comparison, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return the comparison as JSON values, the format that pages and other programs read.

    Args:
      comparison: The result of `compare`.
      packages: The user's own packages, which overrides may name.

    Returns:
      `version`, `sides`, `changes` (each with the override that makes it, `override`, or the reason
      why there is none, `no_override`), `rows`, `patch` (see `patch_of`; None where there is none),
      `overrides` and `unsayable` (the changes that `overrides_of` omits).
    """
    patch_overrides = overrides_of(comparison, packages)
    # A patch writes all new values as Python or none, so one that cannot be named leaves the page
    # without it; overrides are omitted one by one, each with its reason.
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
            "override": patch_overrides.by_change.get(index),
            "no_override": patch_overrides.reasons.get(index),
        }
        changes.append(data)
    return {
        "version": VERSION,
        "sides": [dataclasses.asdict(side) for side in comparison.sides],
        "changes": changes,
        "rows": [dataclasses.asdict(row) for row in rows_of(comparison)],
        "patch": patch,
        "overrides": list(patch_overrides.overrides),
        "unsayable": [dataclasses.asdict(one) for one in patch_overrides.omitted],
    }
