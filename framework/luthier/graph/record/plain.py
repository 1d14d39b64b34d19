"""Graphs as nested plain values, for displaying and filtering runs by their settings."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier.errors import RecordError
from luthier.graph import values
from luthier.graph.paths import children, is_dataclass_instance
from luthier.graph.public_names import display_name
from luthier.graph.record.leaves import encode_leaf
from luthier.graph.record.structure import entries
from luthier.graph.values import Graph

# No argument can have this name, because it is a keyword of Python.
CLASS = "class"
_LONGEST = 200


def to_dict(graph: Graph, defaults: bool = True) -> dict[str, Any]:
    """Return the values of a graph as nested dicts and lists.

    Args:
      graph: A node.
      defaults: Whether to include arguments left at their default.

    Returns:
      For each node a dict with its class or function under `"class"` and its arguments; value nodes
      are evaluated; callables, dtypes and the like are their public names. Values that a record
      could not hold are described, so that this never fails.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> graph.to_dict(fdl.Config(optim.sgd, learning_rate=0.1), defaults=False)
      {'class': 'luthier.optim.sgd', 'learning_rate': 0.1}
    """
    return _plain(graph, defaults, ())


def plain_leaf(value: Any) -> Any:
    """Return a leaf as a plain JSON value or a short text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    try:
        data = encode_leaf(value)
    except RecordError:
        return display_name(value)
    if isinstance(data, dict):
        if "partition_spec" in data:
            return data["partition_spec"]
        for key in ("name", "path", "value", "member", "dtype", "complex", "bytes"):
            if key in data:
                return data[key] if isinstance(data[key], str) else plain_leaf(data[key])
    return str(value)[:_LONGEST]


def _plain(value: Any, defaults: bool, above: tuple[int, ...]) -> Any:
    # For graphs that fail validation, too: a cycle is cut with "...", and a shared node is written
    # out at each place, since readers look up a path and know nothing of ids.
    if id(value) in above:
        return "..."
    if values.is_value_node(value):
        return _plain(_evaluated(value), defaults, (*above, id(value)))
    above = (*above, id(value))
    if isinstance(value, fdl.Buildable):
        arguments = [(part, child) for part, child, left in children(value) if defaults or not left]
        inside = {str(part): _plain(child, defaults, above) for part, child in arguments}
        return {CLASS: display_name(value.__fn_or_cls__), **inside}
    if isinstance(value, set | frozenset):
        return sorted((_plain(child, defaults, above) for child in value), key=str)
    inside_of = entries(value)
    if inside_of is None:
        return plain_leaf(value)
    if isinstance(value, dict) or hasattr(value, "_fields"):
        return {str(key): _plain(child, defaults, above) for key, child in inside_of}
    if is_dataclass_instance(value):
        fields = {key: _plain(child, defaults, above) for key, child in inside_of}
        return {CLASS: display_name(type(value)), **fields}
    return [_plain(child, defaults, above) for _, child in inside_of]


def _evaluated(node: fdl.Config) -> Any:
    try:
        return values.evaluate(node)
    except Exception:  # an operand is missing or wrong, which `validate` reports
        return values.expression(node)
