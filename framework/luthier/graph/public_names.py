"""Public names of the classes and functions of a graph, and a safe way to load them again.

A record holds `optax.adamw`, not `optax._src.alias.adamw`, so that it survives a library's moves.
Loading a name imports code, and building the graph calls it with arguments of the record. So only
names on a list are looked up; only the user's packages are allowed as a whole. The list consists of
`allowed_names.txt` and the entry points of installed distributions, which name one object each.
"""

from __future__ import annotations

import difflib
import enum
import functools
import importlib
import pathlib
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from luthier import folders
from luthier.errors import Problem, RecordError
from luthier.graph import entry_points

# Types that only convert. `getattr`, `eval` or `open` as the class of a node would let a record run
# anything when it is built.
ALLOWED_BUILTINS = (
    *("bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object"),
    *("set", "str", "tuple"),
)
LIST = pathlib.Path(__file__).with_name("allowed_names.txt")
"""The names that records may hold, each with its role; packages of the user are beside it."""
NONE = "none"
NODES = frozenset({"component", "function", "sampler", "pruner", "policy", "engine"})
"""The roles of what may be the class or function of a node."""
VALUE_ROLES = frozenset({"type", "constant", "enum"})
ROLES = frozenset({*NODES, *VALUE_ROLES, NONE})
# Public modules that hold objects defined elsewhere; searched in this order. Libraries define their
# objects in private modules, whose names without the private parts need not lead to a public one.
FACADES: Mapping[str, tuple[str, ...]] = {
    "jax": (
        *("jax.numpy", "jax.nn", "jax.nn.initializers", "jax.lax", "jax.random"),
        *("jax.sharding", "jax.scipy.special", "jax.scipy.stats", "jax.tree_util"),
    ),
    "flax": ("flax.nnx", "flax.nnx.initializers"),
    "orbax": ("orbax.checkpoint.v1", "orbax.checkpoint.v1.training", "orbax.checkpoint"),
}
# Old names that records may still hold -> where the object (or the package it is in) lives now.
RENAMED: dict[str, str] = {
    "luthier.checkpoint.BigVision": "luthier.contrib.importers.BigVision",
    "luthier.checkpoint.MaxText": "luthier.contrib.importers.MaxText",
    "luthier.checkpoint.T5X": "luthier.contrib.importers.T5X",
    "luthier.data.CsvSeries": "luthier.contrib.series.CsvSeries",
    "luthier.data.Forecasting": "luthier.contrib.series.ForecastWindows",
    "luthier.data.PackagedSeries": "luthier.contrib.series.PackagedSeries",
    "luthier.data.Seasons": "luthier.contrib.series.Seasons",
    "luthier.layers.HippoNormal": "luthier.contrib.state_space.HippoNormal",
    "luthier.layers.InverseSpectrum": "luthier.contrib.state_space.InverseSpectrum",
    "luthier.layers.LinearSpectrum": "luthier.contrib.state_space.LinearSpectrum",
    "luthier.layers.LogUniform": "luthier.contrib.state_space.LogUniform",
    "luthier.layers.S4D": "luthier.contrib.state_space.S4D",
    "luthier.layers.S5": "luthier.contrib.state_space.S5",
    "luthier.losses.InfoNCE": "luthier.contrib.contrastive.InfoNCE",
    "luthier.models.PatchTransformer": "luthier.contrib.series.PatchTransformer",
    "luthier.models.SeriesClassifier": "luthier.contrib.series.SeriesClassifier",
    "luthier.optim.lamb": "luthier.contrib.optimizers.lamb",
    "luthier.optim.shampoo": "luthier.contrib.optimizers.shampoo",
    "luthier.optim.soap": "luthier.contrib.optimizers.soap",
    "luthier.parallel.Layout": "luthier.parallel.ActivationLayout",
    "luthier.plan": "luthier.planner",
    "luthier.sweep": "luthier.study",
    "luthier.tasks.Contrastive": "luthier.contrib.contrastive.Contrastive",
    "luthier.tasks.Forecasting": "luthier.contrib.series.Forecasting",
    "luthier.tasks.MeanTeacher": "luthier.contrib.mean_teacher.MeanTeacher",
    "luthier.tasks.model_output": "luthier.contrib.contrastive.model_output",
    "luthier.train": "luthier.trainer",
}

# Arguments that had another name: by the current name of the class or function, old -> new.
RENAMED_ARGUMENTS: dict[str, dict[str, str]] = {
    "luthier.launch.Slurm": {"gangs_per_job": "groups_per_job"},
    "luthier.study.Option": {"words": "overrides"},
}

_CONSTANT_TYPES = (bool, int, float, complex, str, bytes, type(None))


def is_private(name: str) -> bool:
    """Return whether any part of the dotted `name` is private."""
    return any(part.startswith("_") for part in name.split("."))


def home(target: Any) -> str:
    """Return the name of the module that defines `target` (for an instance: its type)."""
    if isinstance(target, types.ModuleType):
        return target.__name__
    module = getattr(target, "__module__", None)
    return module if isinstance(module, str) else type(target).__module__


# By identity, because jax.numpy.float32 == numpy.float32, with equal hashes; the object is kept, so
# that its id stays its own.
_NAMES: dict[int, tuple[Any, str]] = {}


def public_name(target: Any) -> str:
    """Return the shortest public name under which `target` can be imported.

    The rule does not depend on what else was imported: the top-level package, then the well-known
    facades of that package, then each module on the way to the one that defines `target`, private
    parts left out; the first that exposes the same object under its own name wins.

    Args:
      target: A class, a function, or an instance that a public module holds as a constant.

    Returns:
      A dotted name, such as `jax.nn.gelu`.

    Raises:
      RecordError: `target` is local, a lambda, in `__main__`, or has no public name.

    Example:
      >>> import jax
      >>> from luthier import graph
      >>> graph.public_name(jax.nn.gelu)
      'jax.nn.gelu'
    """
    known = _NAMES.get(id(target))
    if known is None:
        known = (target, _find_name(target))
        if not isinstance(target, types.MethodType):  # made anew at each access
            _NAMES[id(target)] = known
    return known[1]


def display_name(target: Any) -> str:
    """Return the public name of `target`, or a description of it; never raises.

    Args:
      target: Any object.

    Returns:
      A dotted name. Without a public one it is the name of the defining module and the object, and
      for instances the type in angle brackets.

    Example:
      >>> from luthier import graph, optim
      >>> graph.display_name(optim.adamw), graph.display_name(object())
      ('luthier.optim.adamw', '<object>')
    """
    try:
        return public_name(target)
    except RecordError:
        name = _own_name(target)
        return f"{home(target)}.{name}" if name else f"<{type(target).__name__}>"


def _own_name(target: Any) -> str:
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    return name if isinstance(name, str) else ""


def _find_name(target: Any) -> str:
    # A name is accepted only if looking it up gives the same object again: `__module__` and
    # `__qualname__` are claims that decorators and re-exports falsify.
    name, module = _own_name(target), home(target)
    if "<lambda>" in name:
        _refuse("a lambda has no name to record", "give it a name with def, in a module")
    if "<locals>" in name:
        _refuse(f"{name!r} is local to a function", "move it to the top of a module")
    if module.split(".")[0] == "__main__":
        _refuse(
            f"{name or type(target).__name__!r} is defined in __main__",
            "move it to a module of a package, so that others can import it",
        )
    if module == "builtins" and name in ALLOWED_BUILTINS:
        return f"builtins.{name}"
    for written, place in _places(module):
        if name and not is_private(name):
            if _same(_follow(place, name), target):
                return f"{written}.{name}"
        elif not name and (constant := _constant_name(place, target)):
            return f"{written}.{constant}"
    what = f"{module}.{name}" if name else f"an object of type {type(target).__name__}"
    remedy = (
        "give it a public name in its package"
        if name
        else "describe it with fdl.Config of its class or function"
    )
    _refuse(f"{what} has no public name", remedy)


def _refuse(what: str, remedy: str) -> NoReturn:
    raise RecordError(Problem(what, remedy=remedy))


def _places(module: str) -> Iterator[tuple[str, types.ModuleType]]:
    # In a fixed order that depends on the module's name alone, because the name is hashed and
    # recorded: scanning `sys.modules` would give another one after another import.
    parts = [part for part in module.split(".") if not part.startswith("_")]
    if not parts:
        return
    names = [".".join(parts[: length + 1]) for length in range(len(parts))]
    for name in dict.fromkeys((parts[0], *FACADES.get(parts[0], ()), *names)):
        place = _place(name)
        if place is not None:
            yield name, place


def _place(name: str) -> types.ModuleType | None:
    # None also where the import fails for want of an optional dependency: then it has no name here.
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


def _same(candidate: Any, target: Any) -> bool:
    if candidate is target:
        return target is not None
    if type(candidate) is not type(target):
        return False
    if isinstance(target, types.MethodType):  # a new object at each access
        return bool(candidate == target)
    # copy.deepcopy clones some wrapped functions, such as jax.nn.relu; what they wrap stays.
    wrapped = getattr(target, "__wrapped__", None)
    return wrapped is not None and getattr(candidate, "__wrapped__", None) is wrapped


def _constant_name(place: types.ModuleType, target: Any) -> str | None:
    # By searching the module, since a constant does not know its name. The least name, because the
    # order of a namespace is that of its assignments.
    if "__getattr__" in vars(place):  # a lazy module: its contents depend on earlier imports
        return None
    names = (name for name, value in vars(place).items() if value is target)
    return min((name for name in names if not name.startswith("_")), default=None)


@functools.cache
def listed() -> Mapping[str, str]:
    """Return the role of every listed name."""
    roles: dict[str, str] = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            role, name = line.split()
            roles[name] = role
    return types.MappingProxyType(roles)


@functools.cache
def libraries() -> frozenset[str]:
    """Return the packages that listed names are in: nobody can allow one of them as a whole."""
    return frozenset(name.partition(".")[0] for name in listed())


def role_of(name: str) -> str:
    """Return the role of a name in records, which is `none` for names that records may not contain.

    Args:
      name: A name as `public_name` writes it.
    """
    return listed().get(name) or entry_points.targets().get(name, NONE)


def _nameable() -> Iterator[str]:
    """Yield the names that records may hold: those on the list, then those of entry points."""
    yield from (name for name, role in listed().items() if role != NONE)
    yield from entry_points.targets()


@functools.cache
def modules() -> frozenset[str]:
    """Return the modules that listed names are in, and the packages above them."""
    names: set[str] = set()
    for name in _nameable():
        parts = name.split(".")
        names.update(".".join(parts[:length]) for length in range(1, len(parts)))
    return frozenset(names)


@functools.cache
def _by_last_part() -> Mapping[str, tuple[str, ...]]:
    names_by_part: dict[str, list[str]] = {}
    for name in _nameable():
        names_by_part.setdefault(name.rpartition(".")[2], []).append(name)
    return {last: tuple(names) for last, names in names_by_part.items()}


def is_users(name: str, packages: Sequence[str]) -> bool:
    """Return whether a dotted name is in one of the user's packages.

    Args:
      name: A module, or a name in one.
      packages: The user's packages; a library with listed names does not count as one.
    """
    # Adding `jax` to `packages` would allow all of it, its compiler and file access included.
    own = [package for package in packages if package.partition(".")[0] not in libraries()]
    return _within(name, own)


def may_import(module: str, packages: Sequence[str] = ()) -> bool:
    """Return whether a file may import a module: one of the user's, or one that holds listed names.

    Args:
      module: Its full name.
      packages: The user's packages.
    """
    return module in modules() or is_users(module, packages)


def is_allowed(name: str, packages: Sequence[str] = ()) -> bool:
    """Return whether a record may hold a name: it is listed, or in one of the user's packages.

    Args:
      name: A name as `public_name` writes it.
      packages: The user's packages.
    """
    if name.partition(".")[0] == "builtins":
        return name.removeprefix("builtins.") in ALLOWED_BUILTINS
    return is_users(name, packages) or role_of(name) != NONE


def may_name(target: Any, packages: Sequence[str] = ()) -> bool:
    """Return whether a record may hold an object, regardless of the name that it was found by.

    Args:
      target: A class, a function, or a constant.
      packages: The user's packages.
    """
    if isinstance(target, enum.Enum):  # a member is allowed where its class is
        target = type(target)
    if isinstance(target, _CONSTANT_TYPES) or is_users(home(target), packages):
        return True
    if isinstance(target, type) and home(target) == "builtins":
        return target.__name__ in ALLOWED_BUILTINS
    try:
        name = public_name(target)
    except RecordError:
        name = ""
    return role_of(name) != NONE or bool(_listed_names(target))


def _listed_names(target: Any) -> list[str]:
    """Return the listed names of an object that has a name of its own."""
    root, own = home(target).partition(".")[0], _own_name(target)
    near = [name for name in _by_last_part().get(own, ()) if name.partition(".")[0] == root]
    return [name for name in near if _same(_peek(name), target)]


def _peek(name: str) -> Any:
    """Return the object of a listed name; None if this version of the library lacks it."""
    try:
        return _walk(name, name.split("."))
    except RecordError:
        return None


def is_listed_object(module: str, symbol: str) -> bool:
    """Return whether a listed name leads to the object that a module defines under a name.

    Args:
      module: The module that defines it, which may be private: `optax._src.alias`.
      symbol: Its qualified name there: `adamw`.
    """
    # Only candidates from the list are imported, never `module` itself.
    head, last = module.partition(".")[0], symbol.rpartition(".")[2]
    written = [name for name in _by_last_part().get(last, ()) if name.partition(".")[0] == head]
    candidates = [found for name in written if (found := _peek(name)) is not None]
    return any((home(found), _own_name(found)) == (module, symbol) for found in candidates)


def _within(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@functools.cache  # a record names the same few dozen classes thousands of times
def current_name(name: str) -> str:
    """Return the current name of an object whose `name` may be old (`RENAMED`)."""
    # The longest renamed prefix wins, so that an object can move on its own when its package is
    # renamed too.
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        new = RENAMED.get(".".join(parts[:length]))
        if new is not None:
            return ".".join((new, *parts[length:]))
    return name


def current_arguments(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by their current names, which `RENAMED_ARGUMENTS` lists.

    Args:
      name: The class or function that takes them, as a record names it.
      arguments: The recorded arguments.
    """
    renamed = RENAMED_ARGUMENTS.get(current_name(name))
    if renamed is None:
        return dict(arguments)
    return {renamed.get(part, part): value for part, value in arguments.items()}


def load_object(
    name: str, packages: Sequence[str] = (), roles: Collection[str] = ROLES - {NONE}
) -> Any:
    """Import the object called `name`, if the list allows it.

    Args:
      name: A dotted name, as `public_name` writes it, or where a listed class or function of
        luthier is defined.
      packages: The user's own top-level modules (`[tool.luthier] packages`).
      roles: The roles that a listed name may have here; those of the user's packages have none.

    Returns:
      The class, function or constant.

    Raises:
      RecordError: The name is private, not on the list (nothing is imported then), has another
        role, does not exist, or leads to an object that was defined elsewhere.

    Example:
      >>> from luthier import graph
      >>> graph.load_object("luthier.optim.Constant")
      <class 'luthier.optim.schedules.Constant'>
      >>> graph.load_object("os.system")
      Traceback (most recent call last):
          ...
      luthier.errors.RecordError: ...
    """
    # Records may come from other people. Two lines of defence, since importing a module already
    # runs its code: the name is checked against the list before anything is imported, and the
    # object that it leads to is checked by where it was defined, because a module can expose `os`
    # or a function of another library.
    name = current_name(name)
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        _refuse(f"{name!r} is not a dotted name", "write package.module.Name")
    if is_private(name):
        _refuse(f"{name!r} is private", "name it by where its package exports it")
    if parts[0] == "builtins":
        return _load_builtin(name, parts)
    if is_users(name, packages):
        loaded = _walk(name, parts, packages)
        _check_home(name, loaded, packages)
    elif parts[0] in libraries() or parts[0] in entry_points.packages():
        loaded = _load_listed(name, parts, roles)
    elif folders.is_experiment(name):
        what = f"records cannot name {parts[0]!r}, a folder of experiments"
        _refuse(what, "move it to a package")
    else:
        what = f"{name!r} may not be imported: {parts[0]!r} is not on the list"
        _refuse(what, _remedy(parts[0]))
    if isinstance(loaded, types.ModuleType):
        _refuse(f"{name!r} is a module", "name the class or function that you need from it")
    return loaded


def _load_listed(name: str, parts: list[str], roles: Collection[str]) -> Any:
    role, written = role_of(name), name
    # The members of a listed enum are constants that need no line of their own in the list.
    above, _, last = name.rpartition(".")
    if listed().get(above) == "enum" and set(roles) >= VALUE_ROLES:
        members = _walk(above, above.split(".")).__members__
        if last in members:
            return members[last]
    if role == NONE:
        written = _alias(name, parts)
        role = role_of(written)
    if role not in roles:
        wanted = ", ".join(sorted(roles))
        _refuse(
            f"{name!r} is listed as {role}, which is not allowed here", f"allowed here: {wanted}"
        )
    loaded = _walk(written, written.split("."))
    # A library may expose objects of others: os.system is not a part of jax.
    known = {*libraries(), parts[0]}
    if not isinstance(loaded, _CONSTANT_TYPES) and home(loaded).partition(".")[0] not in known:
        _refuse(f"{name!r} may not be imported: it is defined in {home(loaded)!r}", "leave it out")
    return loaded


def _alias(name: str, parts: list[str]) -> str:
    """Return the listed name of an object that `name` finds elsewhere in the same library."""
    # `luthier.layers.attention.Attention`, say, where a class is defined, for the listed name of
    # its facade. Only candidates from the list are imported, never the module in `name`, which may
    # be anything; whether that module exposes the same object is asked only if it was imported.
    if name in modules():
        _refuse(f"{name!r} is a module", "name the class or function that you need from it")
    place, last = name.rpartition(".")[::2]
    for written in _by_last_part().get(last, ()):
        if written.partition(".")[0] != parts[0]:
            continue
        candidate = _peek(written)
        if candidate is None:
            continue
        own = f"{home(candidate)}.{_own_name(candidate)}"
        module = sys.modules.get(place)
        if own == name or (module is not None and _same(vars(module).get(last), candidate)):
            return written
    what = f"{name!r} is not on the list of names that records may contain"
    near = difflib.get_close_matches(name, list(_nameable()), 2, 0.8)
    remedy = "" if near else "wrap it in a function of a package of your own"
    if name.startswith("luthier.contrib."):  # an editable installation that was updated by git
        remedy = "if it is in luthier.contrib, reinstall luthier: its entry points are out of date"
    raise RecordError(Problem(what, remedy=remedy, nearest=near))


def _remedy(package: str) -> str:
    if package in sys.stdlib_module_names:
        return "a config may name the listed parts of luthier and its libraries, and your packages"
    yours = f"if {package!r} is yours, add it to packages under [tool.luthier] in pyproject.toml"
    others = "if it is a third-party package, install the distribution that registers it"
    return f"{yours}; {others} (`luthier help extending`)"


def _load_builtin(name: str, parts: list[str]) -> Any:
    if len(parts) != 2 or parts[1] not in ALLOWED_BUILTINS:
        _refuse(f"{name!r} may not be imported", f"of builtins only {', '.join(ALLOWED_BUILTINS)}")
    return getattr(importlib.import_module("builtins"), parts[1])


def _import(name: str) -> types.ModuleType | None:
    # None only if this very module (or a package above it) does not exist. A module that exists and
    # fails, for want of a dependency of its own say, must be reported as failing.
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


def _walk(name: str, parts: list[str], packages: Sequence[str] | None = None) -> Any:
    """Return the object of a dotted name; with `packages`, every module on the way is checked."""
    # Attributes first, submodules second, as `from package import name` does. The steps before the
    # last must be modules or classes. Names of the list are not checked on the way: the list
    # vouches for them.
    current: Any = _import(parts[0])
    if current is None:
        raise RecordError(Problem(f"{name!r} does not exist", remedy=f"install {parts[0]!r}"))
    for index, part in enumerate(parts[1:], 1):
        prefix = ".".join(parts[:index])
        if isinstance(current, types.ModuleType):
            if packages is not None:
                _check_home(prefix, current, packages)
        elif not isinstance(current, type):
            _refuse(f"{name!r} may not be imported: {prefix!r} is not a module or class", "")
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


def _check_home(name: str, loaded: Any, packages: Sequence[str]) -> None:
    """Raise if an object that a user's module exposes is defined elsewhere and not listed."""
    if isinstance(loaded, _CONSTANT_TYPES):
        return
    defined = home(loaded)
    # A listed object is fine by any name, but a module only leads on: `mine.os.system`.
    needs_home = isinstance(loaded, types.ModuleType) or not may_name(loaded, packages)
    if needs_home and not is_users(defined, packages):
        _refuse(f"{name!r} may not be imported: it is defined in {defined!r}", "leave it out")
