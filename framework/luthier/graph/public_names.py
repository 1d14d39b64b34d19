"""Names for what a graph points at: the shortest public one to write, and a careful way back.

A record holds `optax.adamw`, not `optax._src.alias.adamw`, so that it survives a library's moves.
Reading a name back imports code, so only names on an allow-list are ever imported.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier.errors import Problem, RecordError

# What a record may name; the user's own packages are added by `[tool.luthier] packages`.
ALLOWED_PACKAGES = ("luthier", "jax", "flax", "optax", "grain", "orbax", "optuna", "numpy")
# Types that do nothing but convert.
ALLOWED_BUILTINS = (
    *("bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object"),
    *("set", "str", "tuple"),
)
# Corners of those packages that run code, open files or load libraries: not for a record to name.
REFUSED_NAMES = (
    *("numpy.testing", "numpy.f2py", "numpy.distutils", "numpy.ctypeslib", "numpy.lib"),
    *("numpy.load", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt"),
    *("numpy.loadtxt", "numpy.genfromtxt", "numpy.fromregex", "numpy.fromfile", "numpy.memmap"),
    *("jax.numpy.load", "jax.numpy.save", "jax.numpy.savez", "jax.numpy.fromfile"),
    *("jax.tools", "jax.ffi", "jax.extend", "jax.lib", "flax.io", "optuna.cli"),
    *("luthier.cli", "luthier.launch"),
)
# What a study may name of launching: the slices of a sweep, and the engines they are started on.
ENGINES = (
    *("luthier.launch.gang.slices.Slices", "luthier.launch.Slices"),
    *("luthier.launch.slurm.engine.Slurm", "luthier.launch.Slurm"),
    *("luthier.launch.gang.here.Here", "luthier.launch.Here"),
    *("luthier.launch.ray.engine.Ray", "luthier.launch.Ray"),
    *("luthier.launch.kubernetes.engine.Kubernetes", "luthier.launch.Kubernetes"),
)
# The graph's own functions load and write things; only those of value nodes belong into a record.
GRAPH, GRAPH_VALUES = "luthier.graph", "luthier.graph.values"
# Public modules that hold objects defined elsewhere; looked through in this order.
FACADES: Mapping[str, tuple[str, ...]] = {
    "jax": (
        *("jax.numpy", "jax.nn", "jax.nn.initializers", "jax.lax", "jax.random"),
        *("jax.sharding", "jax.scipy.special", "jax.scipy.stats", "jax.tree_util"),
    ),
    "flax": ("flax.nnx", "flax.nnx.initializers"),
    "orbax": ("orbax.checkpoint.v1", "orbax.checkpoint.v1.training", "orbax.checkpoint"),
}
# Old names that records may still hold -> where the object (or the package it is in) lives now.
RENAMED: dict[str, str] = {}

_CONSTANT_TYPES = (bool, int, float, complex, str, bytes, type(None))


def is_private(name: str) -> bool:
    """Say whether any part of the dotted `name` is private."""
    return any(part.startswith("_") for part in name.split("."))


def home(thing: Any) -> str:
    """Return the name of the module that defines `thing` (for an instance: its type)."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) else type(thing).__module__


# By identity, because jax.numpy.float32 == numpy.float32, with equal hashes; the object is kept, so
# that its id stays its own.
_NAMES: dict[int, tuple[Any, str]] = {}


def public_name(thing: Any) -> str:
    """Return the shortest public name under which `thing` can be imported.

    The rule does not depend on what else was imported: the top-level package, then the well-known
    facades of that package, then each module on the way to the one that defines `thing`, private
    parts left out; the first that exposes the same object under its own name wins.

    Args:
      thing: A class, a function, or an instance that a public module holds as a constant.

    Returns:
      A dotted name, such as `jax.nn.gelu`.

    Raises:
      RecordError: `thing` is local, a lambda, in `__main__`, or has no public name.
    """
    known = _NAMES.get(id(thing))
    if known is None:
        known = (thing, _find_name(thing))
        if not isinstance(thing, types.MethodType):  # made anew at each access
            _NAMES[id(thing)] = known
    return known[1]


def display_name(thing: Any) -> str:
    """Return the public name of `thing`, or the best that can be said of it; never fails."""
    try:
        return public_name(thing)
    except RecordError:
        name = _own_name(thing)
        return f"{home(thing)}.{name}" if name else f"<{type(thing).__name__}>"


def _own_name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    return name if isinstance(name, str) else ""


def _find_name(thing: Any) -> str:
    name, module = _own_name(thing), home(thing)
    if "<lambda>" in name:
        _refuse("a lambda has no name to record", "give it a name with def, in a module")
    if "<locals>" in name:
        _refuse(f"{name!r} is local to a function", "move it to the top of a module")
    if module.split(".")[0] == "__main__":
        _refuse(
            f"{name or type(thing).__name__!r} is defined in __main__",
            "move it to a module of a package, so that others can import it",
        )
    if module == "builtins" and name in ALLOWED_BUILTINS:
        return f"builtins.{name}"
    for written, place in _places(module):
        if name and not is_private(name):
            if _same(_follow(place, name), thing):
                return f"{written}.{name}"
        elif not name and (constant := _constant_name(place, thing)):
            return f"{written}.{constant}"
    what = f"{module}.{name}" if name else f"an object of type {type(thing).__name__}"
    remedy = (
        "give it a public name in its package"
        if name
        else "describe it with fdl.Config of its class or function"
    )
    _refuse(f"{what} has no public name", remedy)
    raise AssertionError("unreachable")


def _refuse(what: str, remedy: str) -> None:
    raise RecordError(Problem(what, remedy=remedy))


def _places(module: str) -> Iterator[tuple[str, types.ModuleType]]:
    parts = [part for part in module.split(".") if not part.startswith("_")]
    if not parts:
        return
    names = [".".join(parts[: length + 1]) for length in range(len(parts))]
    for name in dict.fromkeys((parts[0], *FACADES.get(parts[0], ()), *names)):
        place = _place(name)
        if place is not None:
            yield name, place


def _place(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        pass
    package, _, last = name.rpartition(".")  # some modules are only names in a package
    place = getattr(_place(package), last, None) if package else None
    return place if isinstance(place, types.ModuleType) else None


def _follow(place: Any, name: str) -> Any:
    for part in name.split("."):
        place = getattr(place, part, None)
    return place


def _same(found: Any, thing: Any) -> bool:
    if found is thing:
        return thing is not None
    if type(found) is not type(thing):
        return False
    if isinstance(thing, types.MethodType):  # a new object at each access
        return bool(found == thing)
    # copy.deepcopy clones some wrapped functions, such as jax.nn.relu; what they wrap stays.
    wrapped = getattr(thing, "__wrapped__", None)
    return wrapped is not None and getattr(found, "__wrapped__", None) is wrapped


def _constant_name(place: types.ModuleType, thing: Any) -> str | None:
    if "__getattr__" in vars(place):  # a lazy module: what it holds depends on earlier imports
        return None
    names = (name for name, value in vars(place).items() if value is thing)
    return min((name for name in names if not name.startswith("_")), default=None)


def is_allowed(module: str, packages: Sequence[str] = ()) -> bool:
    """Say whether the module (or dotted name) belongs to a package that a record may name."""
    return _within(module, (*ALLOWED_PACKAGES, *packages))


def _within(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def current_name(name: str) -> str:
    """Return what `name` is called now, by the table of renamed objects and packages."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        new = RENAMED.get(".".join(parts[:length]))
        if new is not None:
            return ".".join((new, *parts[length:]))
    return name


def load_object(name: str, packages: Sequence[str] = ()) -> Any:
    """Import the object called `name`, if the allow-list lets it.

    Args:
      name: A dotted name, as `public_name` writes it.
      packages: The user's own top-level modules (`[tool.luthier] packages`).

    Returns:
      The class, function or constant.

    Raises:
      RecordError: The name is private, off the list (nothing is imported then), does not exist,
        or leads to something that was defined off the list.
    """
    name = current_name(name)
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        _refuse(f"{name!r} is not a dotted name", "write package.module.Name")
    if is_private(name):
        _refuse(f"{name!r} is private", "name it by where its package exports it")
    if parts[0] == "builtins":
        return _load_builtin(name, parts)
    if not is_allowed(name, packages):
        _refuse(f"{name!r} may not be imported: {parts[0]!r} is not on the list", _remedy(parts[0]))
    if _reaches_outside(name):
        _refuse(f"{name!r} may not be imported: it reaches outside of the graph", "leave it out")
    found = _walk(name, parts, packages)
    _check_home(name, found, packages)
    if isinstance(found, types.ModuleType):
        _refuse(f"{name!r} is a module", "name what you need of it")
    return found


def _reaches_outside(name: str) -> bool:
    on_the_way = any(engine == name or engine.startswith(f"{name}.") for engine in ENGINES)
    return _within(name, REFUSED_NAMES) and not on_the_way


def _remedy(package: str) -> str:
    if package in sys.stdlib_module_names:
        return f"a graph may name only {', '.join(ALLOWED_PACKAGES)} and your own packages"
    return f"if {package!r} is yours, add it to packages under [tool.luthier] in pyproject.toml"


def _load_builtin(name: str, parts: list[str]) -> Any:
    if len(parts) != 2 or parts[1] not in ALLOWED_BUILTINS:
        _refuse(f"{name!r} may not be imported", f"of builtins only {', '.join(ALLOWED_BUILTINS)}")
    return getattr(importlib.import_module("builtins"), parts[1])


def _import(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            return None
        failure: Exception = error
    except Exception as error:
        failure = error
    raise RecordError(
        Problem(f"importing {name!r} failed: {type(failure).__name__}: {failure}")
    ) from failure


def _walk(name: str, parts: list[str], packages: Sequence[str]) -> Any:
    current: Any = _import(parts[0])
    if current is None:
        raise RecordError(Problem(f"{name!r} does not exist", remedy=f"install {parts[0]!r}"))
    for index, part in enumerate(parts[1:], 1):
        prefix = ".".join(parts[:index])
        if isinstance(current, types.ModuleType):
            _check_home(prefix, current, packages)
        elif not isinstance(current, type):
            _refuse(f"{name!r} may not be imported: {prefix!r} is no module or class", "")
        following = getattr(current, part, None)
        if following is None and isinstance(current, types.ModuleType):
            following = _import(f"{current.__name__}.{part}")
        if following is None:
            public = [entry for entry in dir(current) if not entry.startswith("_")]
            near = difflib.get_close_matches(part, public, 2)
            raise RecordError(
                Problem(
                    f"{name!r} does not exist: no {part!r} in {prefix!r}",
                    nearest=[f"{prefix}.{entry}" for entry in near],
                )
            )
        current = following
    return current


def _check_home(name: str, found: Any, packages: Sequence[str]) -> None:
    """Refuse what was defined off the list, wherever it was found."""
    if isinstance(found, _CONSTANT_TYPES):
        return
    defined = home(found)
    if not is_allowed(defined, packages):
        _refuse(f"{name!r} may not be imported: it is defined in {defined!r}", "leave it out")
    own = defined if isinstance(found, types.ModuleType) else f"{defined}.{_own_name(found)}"
    refused = _reaches_outside(own) or (
        not isinstance(found, types.ModuleType)
        and _within(defined, (GRAPH,))
        and not _within(defined, (GRAPH_VALUES,))
    )
    if refused:
        _refuse(f"{name!r} may not be imported: it reaches outside of the graph", "leave it out")
