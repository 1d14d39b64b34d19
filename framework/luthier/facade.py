"""Packages whose public names are imported at their first use.

A facade that imported all of its modules would make `luthier --help`, a Tab in the shell and the
workers of a study wait for JAX, Optuna or W&B.
"""

# No `typing` and no `collections.abc`: a Tab imports this module.
from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


def lazy_exports(package: str, places: dict[str, str]) -> tuple:
    """Return the `__getattr__` and the `__dir__` of a package.

        __getattr__, __dir__ = lazy_exports(__name__, {"main": "command_line", "find": "runs:find"})

    Args:
      package: The name of the package.
      places: The module below the package that defines each public name, with the name that it
        has there behind a colon if that is another one.

    Returns:
      Two functions, for the module level of the package (PEP 562).
    """

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        return getattr(importlib.import_module(f"{package}.{module}"), attribute or name)

    return get, lambda: sorted(places)


def root_function(name: str) -> Callable[[T], T]:
    """Return a decorator that names a function as `luthier.NAME`, where users find it.

    `help(luthier.train)` and tracebacks of calls then show that name and not the private module, as
    with `numpy` and `jax`.

    Args:
      name: The name at the root, a key of `luthier._FUNCTIONS`.

    Returns:
      A decorator, which returns the function itself.
    """

    def rename(function: T) -> T:
        for attribute, value in (("module", "luthier"), ("name", name), ("qualname", name)):
            setattr(function, f"__{attribute}__", value)
        return function

    return rename


def exported_names(source: str, is_package: bool) -> tuple:
    """Return what a package or module exports, from its source and so without importing it.

    Args:
      source: The text of the file.
      is_package: Whether it is the `__init__.py` of a package.

    Returns:
      The names in `__all__`; without one, the public classes and functions of a module, and nothing
      of a package.
    """
    import ast  # a Tab does not need it

    own = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return tuple(ast.literal_eval(node.value))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_":
            own.append(node.name)
    return () if is_package else tuple(own)
