"""Export of a graph as a locked ConfigDict, for code that takes one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from luthier.errors import Problem, RecordError
from luthier.graph import values
from luthier.graph.paths import Part, children, is_dataclass_instance, join
from luthier.graph.public_names import display_name
from luthier.graph.record.plain import CLASS
from luthier.graph.values import Graph

_OPERATORS: Mapping[Any, Callable[[Any, Any], Any]] = {
    values.total: operator.add,
    values.difference: operator.sub,
    values.product: operator.mul,
    values.quotient: operator.truediv,
    values.floor_quotient: operator.floordiv,
    values.remainder: operator.mod,
    values.raised: operator.pow,
}


def to_config_dict(graph: Graph, defaults: bool = True) -> Any:
    """Return a graph as a locked ConfigDict of ml_collections.

    Args:
      graph: A node.
      defaults: Whether to include arguments left at their default.

    Returns:
      For each node a ConfigDict with its class or function under `"class"` and its arguments; a
      shared node is one ConfigDict. A constant is one FieldReference at all its places, and
      arithmetic is computed when it is read: change the constant, and all follow. Other values
      (dtypes, functions) are themselves. Arguments that are not set and have no default are absent.

    Raises:
      RecordError: A constant is not set, its arithmetic fails, or the graph contains a cycle; all
        problems are listed.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> rate = graph.value(3e-4)
      >>> config = graph.to_config_dict(fdl.Config(optim.adamw, learning_rate=rate))
      >>> config.learning_rate, config.b1
      (0.0003, 0.9)
    """
    writer = _Writer(defaults)
    made = writer.convert(graph, "")
    if writer.problems:
        raise RecordError(writer.problems)
    # Locked last: a locked ConfigDict takes no new keys, and each is filled key by key.
    for found in writer.made:
        found.lock()
    return made


class _Writer:
    """Converts one graph; collects the values that a ConfigDict cannot hold."""

    def __init__(self, defaults: bool):
        self.problems: list[Problem] = []
        self.made: list[Any] = []
        self._defaults = defaults
        self._known: dict[int, Any] = {}
        self._above: set[int] = set()

    def convert(self, value: Any, path: str) -> Any:
        """Return a value as a ConfigDict holds it.

        Args:
          value: A node or value.
          path: Its path, for errors.
        """
        # `_known` keeps sharing: a node that is met again is the same ConfigDict. `_above` holds
        # the ids on the way down, since a cycle would recurse without end. Lists and tuples are
        # plain values of a ConfigDict, so two places get equal ones.
        if values.is_value_node(value):
            return self._reference(value, path)
        is_structure = isinstance(value, fdl.Buildable | dict) or is_dataclass_instance(value)
        if not is_structure and type(value) not in (list, tuple):
            return value
        if id(value) in self._above:
            self.problems.append(Problem("the config contains a cycle here", path))
            return None
        if id(value) in self._known:
            return self._known[id(value)]
        self._above.add(id(value))
        if is_structure:
            made = self._known[id(value)] = self._config_dict(value, path)
        else:
            made = type(value)(self.convert(item, join(path, i)) for i, item in enumerate(value))
        self._above.discard(id(value))
        return made

    def _config_dict(self, value: Any, path: str) -> Any:
        import ml_collections

        items: dict[str, Any] = {}
        if isinstance(value, fdl.Buildable):
            items[CLASS] = display_name(value.__fn_or_cls__)
        elif not isinstance(value, dict):
            items[CLASS] = display_name(type(value))
        for part, child in self._inside(value):
            items[str(part)] = self.convert(child, join(path, part))
        # Without `convert_dict`, since the values are converted already, and a dict that the
        # ConfigDict converted itself would be a copy, which loses sharing.
        made = ml_collections.ConfigDict(convert_dict=False, allow_dotted_keys=True)
        for name, item in items.items():
            made[name] = item
        self.made.append(made)
        return made

    def _inside(self, value: Any) -> list[tuple[Part, Any]]:
        if isinstance(value, dict):
            return list(value.items())
        found = children(value)
        return [(part, child) for part, child, left in found if self._defaults or not left]

    def _reference(self, node: Any, path: str) -> Any:
        try:
            values.evaluate(node)
        except (ValueError, ArithmeticError, TypeError) as error:
            what = f"{values.expression(node)} cannot be computed: {error}"
            self.problems.append(Problem(what, path))
            return None
        return self._live(node)

    def _live(self, node: Any) -> Any:
        """Return the reference of a value node that can be computed, or of a plain operand."""
        from ml_collections import config_dict

        if id(node) in self._known:
            return self._known[id(node)]
        if not values.is_value_node(node):
            # A reference without a type takes that of its value, and raises for None.
            return config_dict.FieldReference(node, None if node is not None else object)
        if values.is_constant(node):
            inside = node.__arguments__["value"]
            made = self._live(inside)
        else:
            left, right = (self._live(operand) for operand in values.operands(node))
            made = _OPERATORS[node.__fn_or_cls__](left, right)
        self._known[id(node)] = made
        return made
