"""Values of gin in the places that they are for: as they stand where they fit, else converted."""

from __future__ import annotations

from typing import Any

from luthier.graph import values
from luthier.graph.formats.gin.lookup import Lookup
from luthier.graph.grammar import expressions, fitting, literals
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.paths import is_node

# Gin spells these without quotes: text that looks like them is text.
_SPELLED = (bool, int, float, type(None))


def fit(value: Any, annotation: Any, current: Any, lookup: Lookup) -> Any:
    """Return a value as a place wants it.

    Args:
      value: What gin says.
      annotation: The annotation of the place.
      current: What is there now, or the default.
      lookup: Knows the user's packages.

    Raises:
      Unreadable: It does not fit, and text is not what the grammar of overrides reads there either.
    """
    if values.is_value_node(value):
        return value  # checked when all is bound
    if is_node(value):
        fitting.check(value, annotation)
        return value
    wanted = fitting.expected(annotation, current)
    if _fits(value, wanted):
        return value
    converted = fitting.coerce(value, annotation)
    if isinstance(converted, str) and not _fits(converted, wanted):
        around = expressions.Surroundings(packages=lookup.packages)
        read = literals.read(converted, annotation, current, around)
        if type(read) not in _SPELLED:
            return read
    fitting.check(converted, wanted)
    return converted


def check(value: Any, annotation: Any) -> None:
    """Raise where a value or value node does not fit an annotation.

    Args:
      value: The value.
      annotation: The annotation.

    Raises:
      Unreadable: It does not fit.
    """
    fitting.check(value, annotation)


def _fits(value: Any, annotation: Any) -> bool:
    try:
        fitting.check(value, annotation)
    except Unreadable:
        return False
    return True
