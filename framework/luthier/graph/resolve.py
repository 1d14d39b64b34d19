"""References to experiments: `configs.lm.quickstart`, `package.module:function(a=1)`."""

from __future__ import annotations

import importlib.util
import inspect
import os
import pathlib
import pkgutil
import sys
import sysconfig
import types
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from luthier.errors import BadInput, Problem, UnknownReference
from luthier.graph import copies, origins, signatures
from luthier.graph.grammar import names
from luthier.graph.grammar.call_arguments import call, read_arguments
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.paths import nearest

DEFAULT_FUNCTION = "experiment"
_INSTALLED = ("lib-dynload", "site-packages", "dist-packages")


def resolve(reference: str) -> fdl.Config:
    """Return the graph that a reference names.

    Args:
      reference: `package.module` (its function `experiment`), `package.module:function`, or with
        arguments in the override grammar: `package.module:function(layers=2, name="small")`.

    Returns:
      The graph that the function makes. The module is looked for on `sys.path`.

    Raises:
      UnknownReference: There is no such module or function, its code fails (reported by file and
        line), its arguments are wrong, or it returns something else than a graph.
    """
    try:
        return _resolve(reference.strip())
    except Unreadable as error:
        # From the cause: a traceback should lead to the user's exception, not to our own.
        raise UnknownReference(error.problem) from error.__cause__


def _resolve(reference: str) -> fdl.Config:
    # At the bracket first, since arguments may contain colons.
    target, bracket, rest = reference.partition("(")
    module_name, _, name = target.partition(":")
    name = name or DEFAULT_FUNCTION
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        remedy = "write it like package.module:function or package.module:function(a=1)"
        if module_name.endswith(".py") or os.sep in module_name:
            dotted = os.path.normpath(module_name).removesuffix(".py").replace(os.sep, ".")
            remedy = f"write the module instead of the file: {dotted.lstrip('.')}"
        raise Unreadable(Problem(f"{reference!r} is not a reference", remedy=remedy))
    # Before the user's module is imported: it makes nodes, maybe while it is imported.
    signatures.install()
    origins.install()
    module = find_module(module_name)
    function = _find_function(module, name)
    arguments = read_arguments(function, f"{module_name}:{name}", bracket + rest)
    graph = _call(function, f"{module_name}:{name}", arguments)
    if not isinstance(graph, fdl.Buildable):
        kind = type(graph).__name__
        remedy = "return fdl.Config(Experiment, ...), which describes one, instead"
        raise Unreadable(
            Problem(f"{module_name}:{name} returned {kind}, not a config", remedy=remedy)
        )
    # Modules that were imported earlier may have made nodes without the shim.
    copies.renew(graph)
    return graph


def find_module(name: str) -> types.ModuleType:
    """Return a module, imported.

    Args:
      name: Its full name.

    Raises:
      Unreadable: There is none of this name, or its code fails.
    """
    # Package by package, with `find_spec` before each import: a name that does not exist is
    # reported with similar ones, and an exception of the import is always one of the module's code.
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        at = ".".join(parts[:depth])
        if at not in sys.modules:
            parent = sys.modules.get(".".join(parts[: depth - 1]))
            if depth > 1 and not hasattr(parent, "__path__"):
                _raise_no_module(name, parts, depth, parent)
            try:
                spec = importlib.util.find_spec(at)
            # The parents are imported by now, so no code of a module runs here: a finder that
            # raises cannot look the name up, as one that returns None.
            except (ImportError, ValueError):
                spec = None
            if spec is None:
                _raise_no_module(name, parts, depth, parent)
            names.import_module(at)
        # A package of experiments may say where its modules went: `MOVED = {old name: new name}`.
        # Scripts, shell histories and papers keep naming the old ones.
        if depth == 1 and (current := getattr(sys.modules[at], "MOVED", {}).get(name)):
            return find_module(current)
    return sys.modules[name]


def _raise_no_module(
    name: str, parts: list[str], depth: int, parent: types.ModuleType | None
) -> None:
    # `configs.lm.quickstart.small` for `configs.lm.quickstart:small`: a dot instead of the colon.
    at, missing = ".".join(parts[: depth - 1]), parts[depth - 1]
    function = getattr(parent, missing, None)
    if depth == len(parts) and callable(function):
        raise Unreadable(Problem(f"there is no module {name!r}", nearest=(f"{at}:{missing}",)))
    where = list(parent.__path__) if parent is not None and hasattr(parent, "__path__") else None
    known = _own_modules() if depth == 1 else [m.name for m in pkgutil.iter_modules(where or [])]
    near = [
        ".".join([*parts[: depth - 1], other, *parts[depth:]]) for other in nearest(missing, known)
    ]
    remedy = ""
    if depth == 1 and not near:
        remedy = "run from the folder that contains it, or install its package"
    elif not near and known:
        remedy = f"{at} has {', '.join(sorted(known)[:12])}"
    raise Unreadable(Problem(f"there is no module {name!r}", nearest=near, remedy=remedy))


def _own_modules() -> list[str]:
    """Return the top-level modules that may be the user's: not Python's own, and not installed."""
    # For suggestions: among everything on `sys.path`, some installed package is always similar.
    of_python = {pathlib.Path(path).resolve() for path in sysconfig.get_paths().values()}
    folders = [
        folder
        for folder in sys.path
        if (place := pathlib.Path(folder).resolve()) not in of_python
        and place.name not in _INSTALLED
    ]
    return [found.name for found in pkgutil.iter_modules(folders)]


def _find_function(module: types.ModuleType, name: str) -> Callable[..., Any]:
    # Any callable may be named, but only functions that the module defines itself are suggested:
    # its imports are callable, too.
    function = getattr(module, name, None)
    if callable(function) and not isinstance(function, types.ModuleType):
        return function
    own = [
        other
        for other, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not other.startswith("_")
    ]
    at = module.__name__
    what = f"there is no function {name!r} in {at}"
    near = [f"{at}:{other}" for other in nearest(name, own)]
    remedy = ""
    if not near and own:
        remedy = f"it has {', '.join(f'{at}:{other}' for other in own[:12])}"
    elif not near and hasattr(module, "__path__"):
        inside = sorted(value.name for value in pkgutil.iter_modules(module.__path__))
        remedy = f"it is a package; it has {', '.join(f'{at}.{m}' for m in inside[:12])}"
    raise Unreadable(Problem(what, nearest=near, remedy=remedy))


def _call(function: Callable[..., Any], name: str, arguments: dict[Any, Any]) -> Any:
    try:
        return call(function, arguments)
    except BadInput:
        raise
    except Exception as error:  # whatever the user's code raises
        raise Unreadable(f"{name} failed: {names.failure_line(error)}") from error
