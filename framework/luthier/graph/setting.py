"""Sets, replaces and resets values by path, in place, with their origin in Fiddle's history."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
from fiddle import history

from luthier.errors import Problem, UnknownReference
from luthier.graph import copies, origins, values
from luthier.graph.paths import (
    Part,
    Path,
    Place,
    child_of,
    find,
    format_path,
    is_dataclass_instance,
    is_node,
    parse_path,
)
from luthier.graph.signatures import arguments
from luthier.graph.values import Graph


def set_value(graph: Graph, path: str, value: Any, origin: str = "") -> None:
    """Set the value at `path`, in place; a constant changes for all its users.

    Args:
      graph: A node.
      path: A path that exists (an argument that is not set counts as existing).
      value: A value or node; its type is not checked (`apply` and `validate` do that).
      origin: Who sets it; without one, the caller's file and line is recorded.

    Raises:
      UnknownReference: There is no such path.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=0.1)
      >>> graph.set_value(config, "momentum", 0.8, "my_fiddler")
      >>> config.momentum, graph.origin_of(config, "momentum")
      (0.8, 'my_fiddler')
    """
    # Another value node replaces the constant at this path, since a constant that holds a node
    # would make all its users follow it.
    place = find(graph, path)
    if values.is_constant(place.value) and not values.is_value_node(value):
        replace(place.value, "value", value, origin)
    else:
        replace(graph, path, value, origin)


def replace(graph: Graph, path: str, value: Any, origin: str = "", new_key: bool = False) -> None:
    """Replace the value at `path`, in place, by `value`, whatever it is now.

    Args:
      graph: A node.
      path: A path that exists.
      value: A value or node.
      origin: Who sets it; without one, the caller's file and line is recorded.
      new_key: Whether the last part may be a new key of a dict.

    Raises:
      UnknownReference: There is no such path.
    """
    parts = parse_path(path)
    if not parts:
        raise UnknownReference(Problem("the graph itself cannot be replaced"))
    if not (new_key and is_new_key(graph, parts)):
        find(graph, parts)
    with history.suspend_tracking():
        _put(graph, parts, value, False)
    node, key = recorded_under(graph, parts)
    origins.stamp(node, key, value, origin)


def replace_at(graph: Graph, place: Place, value: Any, origin: str = "") -> None:
    """Replace the value at a place that was just found; like `replace`, but without a search.

    Args:
      graph: A node.
      place: The place, or a new key of a dict.
      value: A value or node.
      origin: Who sets it.
    """
    # The quick way is open for an argument of a node that is part of the graph itself. Below a
    # default the owner has to be copied first, and tuples are replaced as a whole.
    is_own = not place.is_default or place.part not in getattr(place.owner, "__arguments__", ())
    if not (is_node(place.owner) and isinstance(place.part, str) and is_own):
        replace(graph, place.path, value, origin, new_key=True)
        return
    with history.suspend_tracking():
        setattr(place.owner, place.part, value)
    origins.stamp(place.owner, place.part, value, origin)


def is_new_key(graph: Graph, parts: Path) -> bool:
    """Return whether `parts` is a string key that does not exist of a dict that does."""
    try:
        inside = find(graph, parts[:-1]).value if len(parts) > 1 else graph
    except UnknownReference:
        return False
    return isinstance(inside, dict) and isinstance(parts[-1], str) and parts[-1] not in inside


def _put(owner: Any, parts: Path, value: Any, is_default: bool) -> Any:
    """Return `owner` with `value` at `parts`: itself, or a copy where it must not be changed."""
    # Recursive copy on write. Defaults, and what lies below them, belong to the class, so they are
    # copied on the way down and the copy is set in the graph; a dataclass instance becomes a node
    # that builds it; tuples are rebuilt. All else is changed in place, and the recursion ends early
    # where a child came back as the same object.
    if len(parts) == 1:
        child = value
    else:
        old, below_default = child_of(owner, parts[0])
        is_fixed = is_default or below_default or is_dataclass_instance(owner)
        child = _put(old, parts[1:], value, is_fixed)
        if child is old and not below_default:
            return owner
    part: Any = parts[0]
    if isinstance(owner, list | dict):
        owner = copies.copy_graph(owner) if is_default else owner
        owner[part] = child
        return owner
    if isinstance(owner, tuple):
        if isinstance(part, str):
            return owner._replace(**{part: child})  # type: ignore[attr-defined]
        listed = list(owner)
        listed[part] = child
        return tuple(listed)
    node = copies.as_node(owner)
    if isinstance(part, str):
        setattr(node, part, child)
    else:
        node[part] = child
    return node


def recorded_under(graph: Graph, parts: Path) -> tuple[fdl.Buildable, Part]:
    """Return the node that owns the place at `parts`, and the key of its history for it."""
    # Fiddle's history has one list per argument. A set inside of an argument gets a key of its own,
    # the rest of the path (`layers[0]`), which no argument can be called; `origins.entry_of` reads
    # these keys again.
    node, depth, value = graph, 0, graph
    for index, part in enumerate(parts):
        if isinstance(value, fdl.Buildable):
            node, depth = value, index
        if index < len(parts) - 1:
            value, _ = child_of(value, part)
    inside = parts[depth:]
    return node, inside[0] if len(inside) == 1 else format_path(inside)


def reset(graph: Graph, path: str, origin: str = "") -> None:
    """Reset an argument to its default, or remove a key from a dict, in place.

    Args:
      graph: A node.
      path: A path that exists.
      origin: Who resets it; without one, the caller's file and line is recorded.

    Raises:
      UnknownReference: There is no such path, or it has no default.
    """
    place = find(graph, path)
    if place.is_default:
        return
    parts = parse_path(path)
    if isinstance(place.owner, dict):
        del place.owner[place.part]
    elif isinstance(place.owner, fdl.Buildable) and isinstance(place.part, str):
        if not has_default(place):
            raise UnknownReference(Problem("has no default to reset to", path=path))
        # Not `delattr`, which would record a second entry, with this line as its location.
        del place.owner.__arguments__[place.part]
    # A positional-only argument counts as an element, too: where Fiddle itself builds the graph, it
    # passes those that are set one after the other, so the ones behind it would move up.
    else:
        what = f"an element of a {type(place.owner).__name__} has no default to reset to"
        raise UnknownReference(Problem(what, path=path, remedy="set the whole of it instead"))
    node, key = recorded_under(graph, parts)
    origins.stamp(node, key, history.DELETED, origin)


def has_default(place: Place) -> bool:
    """Return whether an argument of a node has a default, or is a free keyword."""
    known = arguments(place.owner.__fn_or_cls__)
    return place.part in known.defaults or place.part not in known.names
