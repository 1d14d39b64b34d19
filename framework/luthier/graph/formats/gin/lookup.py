"""Names in gin files: imports, classes of the graph, `@gin.configurable`s, packages of luthier.

As in gin, a name may be the end of a dotted name (`Decoder`, `models.Decoder`) as long as it is
unambiguous.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from luthier.errors import BadInput, Problem
from luthier.graph import public_names
from luthier.graph.formats.gin.statements import Import
from luthier.graph.grammar import names
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.paths import nearest

_OWN = "gin."
_DYNAMIC, _SCRIPT = "__gin__", "__main__"


def key(target: Any) -> int:
    """Return the identity of a class or function, the same for it and for gin's wrapper of it.

    Args:
      target: A class or function.
    """
    return id(target if isinstance(target, type) else inspect.unwrap(target))


class Lookup:
    """Finds classes, functions and constants by their names.

    Args:
      packages: The user's own packages, which may be imported.
      is_export: Whether every name is written in full, as records write it.
    """

    def __init__(self, packages: Sequence[str] = (), is_export: bool = False):
        self._packages = tuple(packages)
        self._is_export = is_export
        self._bound: dict[str, Any] = {}
        self._known: dict[str, Any] = {}
        self._near: dict[int, Any] = {}
        self._scripts: set[str] = set()

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that may be imported beside those that every record may name."""
        return self._packages

    def add(self, targets: Iterable[Any]) -> None:
        """Let classes and functions of a graph be found by the ends of their names.

        Their packages may be imported from then on: the graph names them already.

        Args:
          targets: The classes and functions.
        """
        for target in targets:
            if id(target) in self._near:
                continue
            self._near[id(target)] = target
            self._known[public_names.display_name(target)] = target
            self._known[f"{public_names.home(target)}.{_qualified(target)}"] = target
            package = public_names.home(target).split(".")[0]
            known = sys.stdlib_module_names | public_names.libraries()
            if package not in known and package not in self._packages:
                self._packages = (*self._packages, package)

    def import_all(self, imports: Iterable[Import]) -> list[Problem]:
        """Import the modules that files import, after which their configurables can be found.

        Args:
          imports: The statements.

        Returns:
          The problems of modules that do not exist or may not be imported.
        """
        problems = []
        for statement in imports:
            if statement.module.split(".")[0] in (_DYNAMIC, "gin"):
                continue
            # Run files of T5X import the script that they were written for, most without using it.
            if statement.module == _SCRIPT:
                self._scripts.add(statement.alias or _SCRIPT)
                continue
            try:
                self._import(statement)
            except (Unreadable, BadInput) as error:
                problem = error.problem if isinstance(error, Unreadable) else error.problems[0]
                problems.append(
                    Problem(problem.what, "", statement.where, problem.remedy, problem.nearest)
                )
        self._known |= registered()
        return problems

    def _import(self, statement: Import) -> None:
        # An import runs code, so only packages on the allow-list of records, and the user's own,
        # may be imported. The list of libraries is by module, hence two messages.
        module = statement.module
        package, _, last = module.rpartition(".")
        # `from jax import nn` names the module jax.nn, `from optax import adamw` something in one.
        inside = statement.is_from and public_names.is_allowed(module, self._packages)
        if not (inside or public_names.may_import(module, self._packages)):
            head = module.split(".")[0]
            what = f"{module!r} may not be imported: {head!r} is not on the list"
            remedy = "if it is yours, add it to packages under [tool.luthier] in pyproject.toml"
            if head in public_names.libraries():
                what = f"{module!r} may not be imported: it holds nothing that a graph may name"
                remedy = f"import one of {', '.join(_modules_near(module))}"
            raise Unreadable(Problem(what, remedy=remedy))
        if statement.is_from and hasattr(names.import_module(package), last):
            found: Any = getattr(names.import_module(package), last)
        else:
            found = names.import_module(module)
        head = module.split(".")[0]
        if statement.alias or statement.is_from:
            self._bound[statement.alias or last] = found
        else:
            self._bound[head] = sys.modules[head]

    def configurable(self, name: str) -> Callable[..., Any]:
        """Return the class or function of a name.

        Args:
          name: A dotted name, or the end of one.

        Raises:
          Unreadable: There is none, or several.
        """
        found = self._find(name)
        if not callable(found) or isinstance(found, types.ModuleType):
            raise Unreadable(f"{name!r} is neither a class nor a function")
        return found

    def constant(self, name: str) -> Any:
        """Return the value of `%name` where there is no macro of this name.

        Args:
          name: The name of a constant that is registered with gin, or a dotted name.

        Raises:
          Unreadable: There is no such constant.
        """
        ends = _ending(name, constants())
        if len(ends) == 1:
            return ends[0]
        if "." not in name:
            raise Unreadable(f"there is no macro or constant {name!r}")
        return self._find(name)

    def _find(self, name: str) -> Any:
        # An export names everything in full, as a record does. In other files a name is looked for
        # in this order: imports of the file; what the graph uses; what is registered with gin; the
        # packages of luthier, as in overrides.
        if self._is_export:
            try:
                return public_names.load_object(name, self._packages)
            except BadInput as error:
                raise Unreadable(error.problems[0]) from None
        head, *rest = name.split(".")
        if head in self._scripts:
            what = f"{name!r} belongs to the script that the file was written for (import __main__)"
            remedy = "leave it out, or allow such bindings with --gin_skip_unknown"
            raise Unreadable(Problem(what, remedy=remedy))
        if head in self._bound and rest:
            found = functools.reduce(
                lambda place, part: getattr(place, part, None), rest, self._bound[head]
            )
            # What an import lacks can still be found below: a submodule that is not imported yet.
            if found is not None:
                return found
        elif head in self._bound:
            return self._bound[head]
        ends = {key(found): found for found in _ending(name, self._known) if callable(found)}
        # The classes of the graph go first: what is registered with gin depends on which modules
        # this process happens to have imported, and must not make a name ambiguous.
        ends = {key(found): found for found in ends.values() if id(found) in self._near} or ends
        if len(ends) == 1:
            return next(iter(ends.values()))
        if ends:
            full = sorted(_full_name(found) for found in ends.values())
            remedy = "write more of the name"
            raise Unreadable(Problem(f"{name!r} may mean {' and '.join(full)}", remedy=remedy))
        # Without `near`: the classes of the graph are in `_known`, which was searched above.
        try:
            return names.find_object(name, Any, (), self._packages)
        except Unreadable as error:
            problem = error.problem
            count = name.count(".") + 1
            close = nearest(name, {".".join(full.split(".")[-count:]) for full in self._known})
            remedy = "" if close or problem.nearest else "give its full name, or import its module"
            raise Unreadable(
                Problem(problem.what, "", "", remedy, close or problem.nearest)
            ) from None


def _modules_near(module: str) -> list[str]:
    head = module.split(".")[0]
    return sorted(name for name in public_names.modules() if name.split(".")[0] == head)[:12]


def registered() -> dict[str, Any]:
    """Return the configurables that are registered with gin in this process, by full names."""
    from gin import config

    # `_REGISTRY` (and `_CONSTANTS` below) are private, but the public functions of gin resolve one
    # name at a time: a list is needed to match ends of names against all that is registered, and to
    # guess what was meant. These two functions are the only place that reads them.
    found = {}
    for selector, entry in config._REGISTRY.items():
        if not selector.startswith(_OWN):
            found[selector] = _public(entry)
    return found


def constants() -> dict[str, Any]:
    """Return the constants that are registered with gin in this process, by full names."""
    from gin import config

    return {name: value for name, value in config._CONSTANTS.items() if not name.startswith(_OWN)}


def _public(entry: Any) -> Any:
    """Return the object that a module holds under the name of a configurable."""
    # `@gin.configurable` replaces a function in its module by a wrapper, and subclasses or changes
    # a class; `gin.external_configurable` leaves the module as it is. Graphs and records name what
    # the module holds, so that is what a node must be made of.
    module = sys.modules.get(getattr(entry.wrapped, "__module__", ""), None)
    own = getattr(module, getattr(entry.wrapped, "__name__", ""), None)
    return own if own is entry.wrapped else entry.wrapper


def _ending(name: str, known: dict[str, Any]) -> list[Any]:
    """Return the object of this full name, or else all objects whose names end in it."""
    if name in known:
        return [known[name]]
    return [found for full, found in known.items() if full.endswith(f".{name}")]


def _qualified(target: Any) -> str:
    return getattr(target, "__qualname__", type(target).__name__)


def _full_name(target: Any) -> str:
    return f"{public_names.home(target)}.{_qualified(target)}"
