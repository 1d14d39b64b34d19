"""What a graph may hold: values and names that a record can write, and another process can read."""

from __future__ import annotations

import enum
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph import public_names
from luthier.graph.record.leaves import encode_leaf

_NOT_RECORDED = ("configs", "sweeps", "__main__")
_PLAIN = (bool, int, float, str, type(None))


def unrecordable(value: Any) -> Problem | None:
    """Return why a record could not hold `value`; None where it can.

    Args:
      value: The class or function of a node, or a leaf.
    """
    if type(value) in _PLAIN:
        return None
    root, name = _root(value), _name(value)
    if root in _NOT_RECORDED and "<lambda>" not in name:
        what = f"{name} is defined in {root}, which a recorded graph cannot rely on"
        return Problem(what, remedy="move it to a module of a package, outside configs and sweeps")
    try:
        if _is_named(value):
            public_names.public_name(value)
        else:
            encode_leaf(value)
    except RecordError as error:
        return error.problems[0]
    return None


def foreign_package(value: Any, packages: tuple[str, ...]) -> str:
    """Return the package of a class, function or enum that a record may not name; else no text.

    Args:
      value: Something that a record names.
      packages: The user's packages that a recorded graph may name.
    """
    if not _is_named(value) and not isinstance(value, enum.Enum):
        return ""
    is_known = _root(value) == "builtins" or public_names.may_name(value, packages)
    return "" if is_known else _root(value)


def not_listed(value: Any, package: str) -> Problem:
    """Return the problem that `package`, which `value` is in, is not on the list."""
    if package in public_names.libraries():
        what = f"{public_names.display_name(value)} is not on the list of what a record may name"
        return Problem(what, remedy="wrap it in a function of a package of your own")
    what = f"{_name(value)} is in the package {package}, which recorded graphs may not name"
    return Problem(what, remedy=f'if it is yours, add it: [tool.luthier] packages = ["{package}"]')


def _is_named(value: Any) -> bool:
    return isinstance(value, type) or hasattr(value, "__qualname__")


def _root(value: Any) -> str:
    return public_names.home(value).split(".")[0]


def _name(value: Any) -> str:
    return f"{public_names.home(value)}.{getattr(value, '__qualname__', type(value).__name__)}"
