"""Names in values: `optax.sgd`, `jnp.bfloat16`, `WarmupCosine`, `layers.GatedMlp`.

A name is searched, in this order, among the classes of the annotation, in the modules of the
callables around the value, among luthier's packages and their exports, among entry points of
installed distributions, and as an import. The object must be one that records may contain: a listed
name of luthier, jax, flax and the like, or anything in the packages of the callables around the
value and in those that the caller allows.
"""

from __future__ import annotations

import enum
import functools
import importlib
import importlib.util
import itertools
import os
import pathlib
import pkgutil
import sys
import traceback
import types
from collections.abc import Iterator, Sequence, Set
from typing import Any

import luthier
from luthier import project
from luthier.errors import BadInput, Problem
from luthier.facade import exported_names
from luthier.graph import entry_points, public_names
from luthier.graph.grammar import types as annotation_types
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.origins import short_file
from luthier.graph.paths import nearest

SHORT = {"jnp": "jax.numpy", "np": "numpy", "nnx": "flax.nnx", "P": "jax.sharding.PartitionSpec"}
"""Heads of dotted names that everybody abbreviates."""

DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "f32": "float32",
    "fp32": "float32",
    "f64": "float64",
    "fp64": "float64",
    **{
        name: name
        for name in (
            *("bfloat16", "float16", "float32", "float64"),
            *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float8_e4m3fn", "float8_e5m2"),
        )
    },
}
"""Dtypes by the names that people use, and their names in `jax.numpy`."""

_NAMED_WHOLE = ("recipes",)
"""Packages whose exports have no bare names in values: `fsdp`, `tensor`, `data` are text there."""

_PLAIN = (bool, int, float, str, tuple, list, dict, type(None))


def dtype(name: str) -> Any:
    """Return the dtype of `jax.numpy` called `name` (see `DTYPES`); None if there is none."""
    if name not in DTYPES:
        return None
    return getattr(importlib.import_module("jax.numpy"), DTYPES[name])


def find_object(
    name: str, annotation: Any = Any, near: Sequence[Any] = (), packages: Sequence[str] = ()
) -> Any:
    """Find the object that a name in a value refers to.

    Args:
      name: A bare or dotted name.
      annotation: The annotation of the place that the value is for.
      near: Callables whose modules are searched too.
      packages: Modules that may be named, beside those that every value may.

    Raises:
      Unreadable: There is none, it may not be imported, or its module cannot be.
    """
    # Finding is generous and the check after it is strict, by where the object was defined: however
    # it was reached, through an alias in the user's module or a subclass of the annotation, a value
    # may hold only what a record may contain, so that what can be run can be recorded.
    head, *rest = name.split(".")
    if any(part.startswith("__") for part in (head, *rest)):
        raise Unreadable(f"{name!r} is private")
    allowed = (*packages, *_packages_at_hand(annotation, near))
    value = _find(name, head, rest, annotation, near, allowed, packages)
    # The members of a listed enum are allowed with it and have no lines of their own.
    home = public_names.home(value)
    if isinstance(value, enum.Enum) and public_names.may_name(type(value), allowed):
        return value
    if isinstance(value, types.ModuleType):
        raise Unreadable(f"{name} is a module, not a value")
    # Plain values (`my_module.WIDTH`) pass: a record holds them and not their name.
    if not isinstance(value, _PLAIN) and not public_names.may_name(value, allowed):
        if home.partition(".")[0] in public_names.libraries():
            what = f"{name!r} is not on the list of names that records may contain"
            raise Unreadable(Problem(what, remedy="wrap it in a function of a package of your own"))
        public = home.partition("._")[0]  # `pathlib._local`, of which nobody has heard
        raise Unreadable(f"{name!r} may not be used: it is defined in {public!r}")
    return value


def _find(
    name: str,
    head: str,
    rest: Sequence[str],
    annotation: Any,
    near: Sequence[Any],
    allowed: Sequence[str],
    packages: Sequence[str],
) -> Any:
    # From near to far: what is at hand at the place, luthier, what distributions register, then any
    # full name. So nothing that is installed changes the meaning of a name of luthier.
    for found in _in_reach(head, annotation, near):
        return _follow(found, head, rest)
    rooms = _rooms()
    if head in rooms and rest and rest[0] in _exported(head):
        return _follow(import_module(f"luthier.{head}"), head, rest)
    if not rest:
        for room in rooms:
            if room not in _NAMED_WHOLE and head in _exported(room):
                return getattr(import_module(f"luthier.{room}"), head)
        # Everything that a node may be has a bare name, whichever distribution provides it.
        if added := _of_entry_points(name):
            return added
    full = [*SHORT.get(head, head).split("."), *rest]
    moved = public_names.current_name(f"luthier.{name}")
    if head in rooms and moved != f"luthier.{name}":  # `optim.lamb` means what it meant there
        full = moved.split(".")
    # Nothing of ours has this name, so it is looked up as an import. A bare word is never a module:
    # `steps=abc` does not mean Python's abc.
    if len(full) == 1 or importlib.util.find_spec(full[0]) is None:
        at_hand = set(_names_in_reach(annotation, near))
        close = _nearest_of_packages(name, packages, at_hand) or nearest(head, at_hand)
        close = close or nearest(head, _bare_names(rooms))
        remedy = "give its full name (package.module.Name), or quote it if it is text"
        remedy = "" if close else remedy
        raise Unreadable(Problem(f"there is nothing called {name!r}", nearest=close, remedy=remedy))
    renamed = public_names.current_name(".".join(full)).split(".")
    if full == renamed and full[0] == "luthier" and len(full) == 3 and full[1] in rooms:
        exported = _exported(full[1])
        # Not exported at all: misspelt, which helps more than `not on the list`.
        if full[2] not in exported:
            where = f"luthier.{full[1]}"
            close = [f"{where}.{other}" for other in nearest(full[2], exported)]
            raise Unreadable(Problem(f"{where} has no {full[2]!r}", nearest=close))
    try:
        if public_names.is_users(full[0], allowed):  # else `load_object` explains why not
            return _follow(import_module(full[0]), full[0], full[1:])
        return public_names.load_object(".".join(full), allowed)
    except BadInput as error:
        raise Unreadable(error.problems[0]) from error


def _nearest_of_packages(name: str, packages: Sequence[str], at_hand: Set[str]) -> list[str]:
    """Return the nearest names of what the user's packages define, imported or not.

    Args:
      name: The unknown name.
      packages: The packages.
      at_hand: Names that are enough at the place; the others are written in full.
    """
    # By as many of their last parts as the name has: `layers.MyMlp` may mean `my.layers.MyMlp`.
    num_parts = name.count(".") + 1
    known: dict[str, list[str]] = {}
    for full in itertools.chain.from_iterable(project.defined_names(packages).values()):
        known.setdefault(".".join(full.split(".")[-num_parts:]), []).append(full)
    known |= {bare: [bare] for bare in at_hand}
    return [full for one in nearest(name, known, loosest=0.75) for full in known[one]][:3]


def _bare_names(rooms: Sequence[str]) -> Iterator[str]:
    yield from (name for room in rooms for name in _exported(room))
    yield from entry_points.names(*entry_points.ROLES)


def _of_entry_points(name: str) -> Any:
    """Return the object that distributions register under a bare name; None if there is none.

    Raises:
      Unreadable: Several do, or it cannot be imported.
    """
    targets = {one.target: one for one in entry_points.named(name, *entry_points.ROLES)}
    if len(targets) > 1:
        remedy = f"write {' or '.join(targets)}"
        owners = " and ".join(dict.fromkeys(one.distribution for one in targets.values()))
        raise Unreadable(
            Problem(f"{name!r} is defined by several distributions: {owners}", remedy=remedy)
        )
    try:
        return next((public_names.load_object(target) for target in targets), None)
    except BadInput as error:
        raise Unreadable(error.problems[0]) from error


def word_class(annotation: Any, word: str) -> type | None:
    """Return the class of a place that has this prefix; None if there is none.

    Args:
      annotation: The annotation of the place.
      word: The prefix: `safetensors` in `safetensors:DIR`.

    Raises:
      Unreadable: An importer of that name cannot be imported.
    """
    own = _own_words(annotation)
    if word in own or not own:
        return own.get(word)
    # Only where prefixes mean something at all, since this imports code of other distributions.
    bases = tuple(m for m in annotation_types.members(annotation) if isinstance(m, type))
    for one in entry_points.named(word, entry_points.IMPORTERS):
        try:
            importer = public_names.load_object(one.target)
        except BadInput as error:
            raise Unreadable(error.problems[0]) from error
        if isinstance(importer, type) and issubclass(importer, bases):
            return importer
    return None


def words(annotation: Any) -> list[str]:
    """Return the prefixes that are allowed at a place, for messages.

    Args:
      annotation: The annotation of the place.
    """
    own = _own_words(annotation)
    added = entry_points.names(entry_points.IMPORTERS) if own else []
    return [*own, *(word for word in added if word not in own)]


def _own_words(annotation: Any) -> dict[str, type]:
    """Return the classes of a place that define a prefix in `WORD`, by it.

    The text after the colon is the first argument of the class, as written.
    """
    classes: dict[str, type] = {}
    for member in annotation_types.members(annotation):
        for cls in _family(member):
            if "WORD" in vars(cls):
                classes[cls.WORD] = cls  # type: ignore[attr-defined]
    return classes


def _follow(value: Any, at: str, rest: Sequence[str]) -> Any:
    # A submodule is an attribute of its package only after somebody imported it.
    for part in rest:
        name = f"{at}.{part}"
        if isinstance(value, types.ModuleType) and not hasattr(value, part):
            full = f"{value.__name__}.{part}"
            if hasattr(value, "__path__") and importlib.util.find_spec(full) is not None:
                value, at = import_module(full), name
                continue
        try:
            value = getattr(value, part)
        except AttributeError:
            names = [other for other in dir(value) if not other.startswith("_")]
            # Modules of a package that nobody has imported are no attributes of it.
            names += [m.name for m in pkgutil.iter_modules(getattr(value, "__path__", ()))]
            close = nearest(part, names)
            close = [f"{at}.{other}" for other in close]
            raise Unreadable(Problem(f"{at} has no {part!r}", nearest=close)) from None
        at = name
    return value


def _in_reach(name: str, annotation: Any, near: Sequence[Any]) -> Iterator[Any]:
    # Of a module only what it defines itself, not what it imports.
    for member in annotation_types.members(annotation):
        for cls in _family(member):
            if cls.__name__ == name:
                yield cls
    for module in _modules_of(near):
        found = vars(module).get(name)
        if getattr(found, "__module__", None) == module.__name__ and callable(found):
            yield found


def _names_in_reach(annotation: Any, near: Sequence[Any]) -> Iterator[str]:
    for member in annotation_types.members(annotation):
        for cls in _family(member):
            yield cls.__name__
    for module in _modules_of(near):
        for name, found in vars(module).items():
            if getattr(found, "__module__", None) == module.__name__ and name[:1] != "_":
                yield name


def _family(cls: Any) -> Iterator[type]:
    """Yield a class of an annotation and its subclasses (not those of builtins)."""
    if not isinstance(cls, type) or getattr(cls, "__module__", "builtins") == "builtins":
        return
    # `type.__subclasses__(found)`, because `found.__subclasses__()` fails for a metaclass: it is
    # unbound there. Only classes that were imported are found; others need their full name.
    seen, pending = set(), [cls]
    while pending:
        member = pending.pop(0)
        if member not in seen:
            seen.add(member)
            yield member
            pending += type.__subclasses__(member)


def _packages_at_hand(annotation: Any, near: Sequence[Any]) -> list[str]:
    members = annotation_types.members(annotation)
    modules = [cls.__module__ for member in members for cls in _family(member)]
    modules += [module.__name__ for module in _modules_of(near)]
    packages = dict.fromkeys(module.split(".")[0] for module in modules)
    return [package for package in packages if package not in sys.stdlib_module_names]


def _modules_of(near: Sequence[Any]) -> Iterator[types.ModuleType]:
    for target in near:
        module = sys.modules.get(getattr(target, "__module__", None) or "")
        if module is not None and module.__name__ != "builtins":
            yield module


# Packages and modules of luthier that hold no parts of an experiment.
_NO_ROOMS = ("cli", "graph", "errors", "facade", "folders", "installation", "shipped")


@functools.cache
def _rooms() -> tuple[str, ...]:
    """Return luthier's packages and modules that hold parts of an experiment."""
    # From the file system instead of a list to maintain.
    root = pathlib.Path(next(iter(luthier.__path__)))
    rooms = sorted(path.parent.name for path in root.glob("*/__init__.py"))
    modules = sorted(path.stem for path in root.glob("*.py") if path.stem[:1] != "_")
    return tuple(name for name in (*rooms, *modules) if name not in _NO_ROOMS)


@functools.cache
def _exported(room: str) -> frozenset[str]:
    """Return the public names of a package, read from its facade without importing it."""
    # Parsing a facade takes a fraction of its import (`layers` imports flax), and a misspelt name
    # is looked up in all of them.
    root = pathlib.Path(next(iter(luthier.__path__)))
    path = root / room / "__init__.py"
    path = path if path.exists() else root / f"{room}.py"
    source = path.read_text(encoding="utf-8")
    names = exported_names(source, path.name == "__init__.py")
    # The functions of a lazy facade have no bare names: they are no components, and `check`, `run`
    # and `build` are text in many places.
    is_lazy = "lazy_exports(" in source
    return frozenset(
        name for name in names if name[:1] != "_" and (name[:1].isupper() or not is_lazy)
    )


def import_module(name: str) -> types.ModuleType:
    """Import a module.

    Raises:
      Unreadable: Its code fails; the problem says where (file and line).
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the module's own code raises
        raise Unreadable(Problem(f"importing {name} failed: {failure_line(error)}")) from error


def failure_line(error: BaseException) -> str:
    """Return an exception of the user's code as one line: `file:line: Type: message`."""
    # The line to show is the innermost one of the user: not of importlib or of this package, and
    # not inside an installed library, unless there is no other.
    message = " ".join(str(error).split())[:300]
    summary = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{short_file(error.filename)}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    machinery = (os.sep + "importlib" + os.sep, "<frozen", os.sep + "luthier" + os.sep + "graph")
    own = [frame for frame in frames if not any(part in frame.filename for part in machinery)]
    theirs = [frame for frame in own if "-packages" + os.sep not in frame.filename] or own
    return (
        f"{short_file(theirs[-1].filename)}:{theirs[-1].lineno}: {summary}" if theirs else summary
    )
