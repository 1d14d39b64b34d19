"""References to experiments: `configs.lm.quickstart`, `package.module:function(a=1)`."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import pathlib
import pkgutil
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import fiddle as fdl

from luthier import folders, user_code
from luthier.errors import BadInput, Problem, UnknownReference, UserCodeError, listed
from luthier.folders import EXPERIMENT_FOLDERS, HUGGING_FACE
from luthier.graph import copies, lazy, origins, signatures, values
from luthier.graph.grammar import names
from luthier.graph.grammar.call_arguments import call, read_arguments
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.paths import nearest

DEFAULT_FUNCTION = "experiment"
_STUDY = "study"
_INSTALLED = ("lib-dynload", "site-packages", "dist-packages")


def resolve(reference: str) -> fdl.Config:
    """Return the graph that a reference names.

    Args:
      reference: `package.module` (its function `experiment`, or `study` in a module that makes a
        study and no experiment), `package.module:function`, or with
        arguments in the override grammar: `package.module:function(layers=2, name="small")`; or
        `hf:DIR`, the experiment that fine-tunes the model of a Hugging Face folder.

    Returns:
      The graph that the function makes. The module is looked for on `sys.path`.

    Raises:
      UnknownReference: There is no such module or function, its module cannot be imported, its
        arguments are wrong, or it returns something else than a graph.
      UserCodeError: The function raised an exception.

    Example:
      >>> from luthier import graph
      >>> graph.resolve("quickstart").training.global_batch_size
      8
    """
    try:
        return _resolve(reference.strip())
    except Unreadable as error:
        # From the cause: a traceback should lead to the user's exception, not to our own.
        raise UnknownReference(error.problem) from error.__cause__


def _resolve(reference: str) -> fdl.Config:
    if reference.startswith(HUGGING_FACE):
        return _pretrained(reference.removeprefix(HUGGING_FACE))
    # At the bracket first, since arguments may contain colons.
    target, bracket, rest = reference.partition("(")
    module_name, _, name = target.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name or _STUDY]):
        remedy = "write it like package.module:function or package.module:function(a=1)"
        if module_name.endswith(".py") or os.sep in module_name:
            dotted = os.path.normpath(module_name).removesuffix(".py").replace(os.sep, ".")
            remedy = f"write the module instead of the file: {dotted.lstrip('.')}"
        raise Unreadable(Problem(f"{reference!r} is not a reference", remedy=remedy))
    # Before the user's module is imported: it makes nodes, maybe while it is imported.
    signatures.install()
    origins.install()
    module = find_module(module_name)
    name = name or _default_function(module)
    function = _find_function(module, name)
    arguments = read_arguments(function, f"{module_name}:{name}", bracket + rest)
    graph = _call(function, f"{module_name}:{name}", arguments)
    if not isinstance(graph, fdl.Buildable):
        kind = type(graph).__name__
        remedy = f"import {kind} under luthier.lazy.imports(), or return fdl.Config({kind}, ...)"
        raise Unreadable(
            Problem(f"{module_name}:{name} returned {kind}, not a config", remedy=remedy)
        )
    lazy.settle_graph(graph)
    # Modules that were imported earlier may have made nodes without the shim.
    copies.renew(graph)
    return graph


def _pretrained(directory: str) -> fdl.Config:
    if not directory:
        remedy = "write hf:DIR, the folder with config.json and the weights"
        raise Unreadable(Problem("hf: names no folder", remedy=remedy))
    signatures.install()
    origins.install()
    module = find_module(folders.PRETRAINED)
    graph = _call(module.experiment, f"{HUGGING_FACE}{directory}", {"directory": directory})
    copies.renew(graph)
    return graph


def load_module(name: str) -> types.ModuleType:
    """Return the module of an experiment or a study, imported.

    Args:
      name: Its name in a reference, as `configs.lm.quickstart` or `quickstart`.

    Returns:
      The module, from `sys.modules` if it was imported before.

    Raises:
      UnknownReference: There is none of this name, or its code fails.

    Example:
      >>> from luthier import graph
      >>> graph.load_module("quickstart").__doc__.splitlines()[0]
      "A small byte-level language model of Shakespeare's plays."
    """
    try:
        return find_module(name)
    except Unreadable as error:
        raise UnknownReference(error.problem) from error.__cause__


def find_module(name: str) -> types.ModuleType:
    """Return a module, imported.

    Modules below `configs` and `sweeps` that the project does not have are looked for among those
    that come with luthier (`luthier.shipped`). The last parts of their names, `quickstart` or
    `lm.quickstart`, are enough where no other module is called so, and only one experiment or study
    is.

    Args:
      name: Its full name, or the last parts of it.

    Raises:
      Unreadable: There is none of this name, or its code fails.
    """
    # A package of experiments may say where its modules went: `MOVED = {old name: new name}`.
    # Scripts, shell histories and papers keep naming the old ones.
    missing: list[_Missing] = []
    if "." not in name and _is_folder_at_most(name) and (full := _full_name(name)):
        return find_module(full)
    for prefix in _prefixes(name):
        found = _walk(prefix, name)
        if isinstance(found, str):
            return find_module(found)
        if isinstance(found, types.ModuleType):
            return found
        missing.append(found)
    # After the search: a folder `lm` of the project comes before the experiments of `configs.lm`.
    if "." in name and name.split(".")[0] not in EXPERIMENT_FOLDERS and (full := _full_name(name)):
        return find_module(full)
    _raise_no_module(name, missing)


@dataclasses.dataclass(frozen=True)
class _Missing:
    """Where the search for a module ended.

    Args:
      depth: The number of parts of the name up to the one that is missing.
      parent: The package in which it is missing; None at top level.
    """

    depth: int
    parent: types.ModuleType | None


def _is_folder_at_most(name: str) -> bool:
    """Return whether no module has this name, but for a folder without an `__init__.py`."""
    # Such a folder, `digits` with images, is a package to Python, and to nobody else.
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return name not in sys.modules
    return spec is None or (spec.origin is None and spec.submodule_search_locations is not None)


def _prefixes(name: str) -> tuple[str, ...]:
    """Return what may stand before a name: nothing, or the package of luthier's experiments."""
    if name.split(".")[0] not in EXPERIMENT_FOLDERS:
        return ("",)
    # The project's own first: it may have an experiment of the same name. Where it has none, its
    # packages are not imported: whether they can be is no matter of luthier's experiments, nor
    # whether some distribution calls a package `configs`.
    if not _is_in(_project_folders(), name) and _is_in(_shipped_folders(), name):
        return (f"{folders.SHIPPED}.",)
    return ("", f"{folders.SHIPPED}.")


def _is_in(places: Sequence[pathlib.Path], name: str) -> bool:
    paths = [place.parent.joinpath(*name.split(".")) for place in places]
    return any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)


def _walk(prefix: str, name: str) -> types.ModuleType | str | _Missing:
    """Return a module, its new name if it has moved, or where it is missing."""
    # Package by package, with `find_spec` before each import: a name that does not exist is
    # reported with similar ones, and an exception of the import is always one of the module's code.
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        at = prefix + ".".join(parts[:depth])
        parent = sys.modules.get(prefix + ".".join(parts[: depth - 1])) if depth > 1 else None
        if at not in sys.modules:
            if depth > 1 and not hasattr(parent, "__path__"):
                return _Missing(depth, parent)
            try:
                spec = importlib.util.find_spec(at)
            # The parents are imported by now, so no code of a module runs here: a finder that
            # raises cannot look the name up, as one that returns None.
            except (ImportError, ValueError):
                spec = None
            if spec is None:
                return _Missing(depth, parent)
            names.import_module(at)
        if depth == 1 and (current := getattr(sys.modules[at], "MOVED", {}).get(name)):
            return current
    return sys.modules[prefix + name]


def _full_name(name: str) -> str:
    """Return the full name of the experiment or study that ends with `name`; empty without any.

    Raises:
      Unreadable: There are several.
    """
    candidates = _by_last_parts(name)
    if len(candidates) > 1:
        what = f"{name!r} is ambiguous: it may mean {' or '.join(candidates)}"
        raise Unreadable(Problem(what, remedy="write the full name"))
    return candidates[0] if candidates else ""


def _by_last_parts(name: str) -> list[str]:
    """Return the full names of the experiments and studies that end with the parts of `name`."""
    # By their files, so that no other experiment is imported. One of the project hides those that
    # come with luthier, as it does under its full name.
    for places in (_project_folders(), _shipped_folders()):
        found = {
            ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            for folder in places
            for path in folder.rglob(f"{name.replace('.', '/')}.py")
        }
        if found:
            return sorted(found)
    return []


def _project_folders() -> list[pathlib.Path]:
    found: list[pathlib.Path] = []
    for package in EXPERIMENT_FOLDERS:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        places = spec.submodule_search_locations if spec is not None else None
        found += map(pathlib.Path, places or ())
    return found


def _shipped_folders() -> list[pathlib.Path]:
    return [pathlib.Path(folder) for folder in folders.shipped_folders()]


def _raise_no_module(name: str, missing: Sequence[_Missing]) -> NoReturn:
    # Of the places where it was searched, those count that hold most of the name.
    parts, depth = name.split("."), max(one.depth for one in missing)
    parents = [one.parent for one in missing if one.depth == depth]
    # `configs.lm.quickstart.small` for `configs.lm.quickstart:small`: a dot instead of the colon.
    at, absent = ".".join(parts[: depth - 1]), parts[depth - 1]
    if depth == len(parts) and any(callable(getattr(parent, absent, None)) for parent in parents):
        raise Unreadable(Problem(f"there is no module {name!r}", nearest=(f"{at}:{absent}",)))
    known = {*_own_modules(), *EXPERIMENT_FOLDERS} if depth == 1 else set()
    for parent in parents:
        known |= {m.name for m in pkgutil.iter_modules(getattr(parent, "__path__", ()))}
    near = [
        ".".join([*parts[: depth - 1], other, *parts[depth:]]) for other in nearest(absent, known)
    ]
    if depth == 1:  # perhaps the last parts of the name of an experiment
        near += nearest(name, _last_parts(len(parts)))
    remedy = ""
    if depth == 1 and not near:
        remedy = "run from the folder that contains it, or install its package"
    elif not near and known:
        remedy = f"{at} has {listed(sorted(known))}"
    raise Unreadable(Problem(f"there is no module {name!r}", nearest=near, remedy=remedy))


def _last_parts(number: int) -> set[str]:
    """Return the last parts, so many of each, of the names of all experiments and studies."""
    places = (*_project_folders(), *_shipped_folders())
    paths = (path for folder in places for path in folder.rglob("*.py"))
    names = (path.with_suffix("").parts for path in paths if path.stem[:1] != "_")
    return {".".join(parts[-number:]) for parts in names}


def _own_modules() -> list[str]:
    """Return the top-level modules that may be the user's: not Python's own, and not installed."""
    # For suggestions: among everything on `sys.path`, some installed package is always similar.
    of_python = {pathlib.Path(path).resolve() for path in sysconfig.get_paths().values()}
    places = [
        folder
        for folder in sys.path
        if (place := pathlib.Path(folder).resolve()) not in of_python
        and place.name not in _INSTALLED
    ]
    return [found.name for found in pkgutil.iter_modules(places)]


def _default_function(module: types.ModuleType) -> str:
    """Return the name of the function that a reference to a module alone means."""
    # An experiment that the module only imports, as the base of its study, does not count.
    own = [
        name
        for name in (_STUDY, DEFAULT_FUNCTION)
        if getattr(getattr(module, name, None), "__module__", None) == module.__name__
    ]
    return _STUDY if own == [_STUDY] else DEFAULT_FUNCTION


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
    at = folders.without_prefix(module.__name__)
    what = f"there is no function {name!r} in {at}"
    near = [f"{at}:{other}" for other in nearest(name, own)]
    remedy = ""
    if not near and own:
        remedy = f"it has {listed([f'{at}:{other}' for other in own])}"
    elif not near and hasattr(module, "__path__"):
        inside = sorted(value.name for value in pkgutil.iter_modules(module.__path__))
        remedy = f"it is a package; it has {listed([f'{at}.{m}' for m in inside])}"
    raise Unreadable(Problem(what, nearest=near, remedy=remedy))


def _call(function: Callable[..., Any], name: str, arguments: dict[Any, Any]) -> Any:
    try:
        return call(function, arguments)
    except BadInput:
        raise
    except Exception as error:  # whatever the user's code raises
        if user_code.frames(error):
            what = f"{name} failed: {user_code.summary(error, 110)}"
            remedy = values.arithmetic_remedy(error) or _template_remedy(error)
            problem = Problem(what, remedy=remedy)
            raise UserCodeError(problem, user_code.details(error)) from error
        raise Unreadable(f"{name} failed: {names.failure_line(error)}") from error


def _template_remedy(error: BaseException) -> str:
    """Return a remedy where an experiment calls a module class of its own file; empty otherwise."""
    # A class that is imported lazily becomes a node by its call. One that is defined in the file is
    # the real class: the call makes a module, and lacks the arguments that the parent would pass.
    name, method = user_code.miscalled(error)
    if method != "__init__" or "missing" not in str(error):
        return ""
    frame, _ = user_code.frames(error)[-1]
    if not signatures.is_module_class(frame.f_globals.get(name)):
        return ""
    return (
        f"write fdl.Partial({name}, ...), as luthier makes the module later, or import {name} "
        "under lazy.imports() from a module of your package"
    )
