"""Fiddlers: functions that receive a graph and return a changed one, or change it in place.

`fiddler:NAME(ARGUMENTS)` names one of a shelf (a module whose fiddlers can be named without it) or
an entry point of an installed distribution; `fiddler:package.module.NAME` and
`fiddler:package.module:NAME` name any other.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fiddle as fdl
import typing_extensions

from luthier import project, user_code
from luthier.errors import MOST_LISTED, BadInput, Problem, UserCodeError, listed
from luthier.graph import copies, entry_points, lazy, origins, setting, signatures, values
from luthier.graph.grammar import call_arguments, names
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.grammar.types import members
from luthier.graph.paths import join, nearest, parse_path
from luthier.graph.record.structure import Structures
from luthier.graph.resolve import find_module
from luthier.graph.values import Graph


def run_fiddler(
    graph: Graph,
    written: str,
    where: str,
    shelves: Sequence[str] | None,
    packages: Sequence[str] = (),
) -> Any:
    """Return the result of a fiddler on a copy of a graph, with `where` as origin of its changes.

    Args:
      graph: A node; it is not changed.
      written: `scale_width(2.0)`, `my_project.fiddlers.shrink(layers=2)`.
      where: Who called it, for the history: `argument 2: fiddler:scale_width(2.0)`. The file and
        line inside the fiddler follow it.
      shelves: Modules whose fiddlers may be named without their module; None means
        `luthier.recipes` and those of the project.
      packages: Modules that arguments may name.

    Returns:
      The changed config, a node. It is the copy itself where the fiddler changed its argument in
      place and returned None.

    Raises:
      Unreadable: There is no such fiddler, its arguments are wrong, or it returns something else
        than a graph.
      UserCodeError: Its code raised an exception.
      BadInput: The fiddler itself raised it.

    Example:
      >>> import luthier
      >>> from luthier import graph
      >>> config = luthier.experiment("quickstart")
      >>> small = graph.run_fiddler(config, "scale_width(0.5)", "my_script.py", None)
      >>> config.model.dim, small.model.dim
      (128, 64)
    """
    name, bracket, rest = written.partition("(")
    name, start = name.strip(), origins.now()
    function = find_fiddler(name, shelves)
    arguments = call_arguments.read_arguments(function, name, bracket + rest, packages, taken=1)
    # On a copy: a fiddler that fails halfway must leave the graph of the caller as it was.
    changed = copies.copy_graph(graph)
    try:
        returned = call_arguments.call(function, arguments, changed)
    except BadInput:
        raise
    except Exception as error:  # whatever somebody else's code raises
        if user_code.frames(error):
            what = f"{name} failed: {user_code.summary(error, 110)}"
            problem = Problem(what, remedy=values.arithmetic_remedy(error))
            raise UserCodeError(problem, user_code.details(error)) from error
        raise Unreadable(f"{name} failed: {names.failure_line(error)}") from error
    returned = changed if returned is None else returned
    if not isinstance(returned, fdl.Buildable):
        what = f"{name} returned {type(returned).__name__}, not a config"
        remedy = "return the changed config, or None if it was changed in place"
        raise Unreadable(Problem(what, remedy=remedy))
    lazy.settle_graph(returned)
    # A copy, because the fiddler may keep what it returned, or have taken it from a module.
    made = copies.copy_graph(returned)
    _stamp(graph, made, start, where)
    return made


def find_fiddler(name: str, shelves: Sequence[str] | None) -> Callable[..., Any]:
    """Return the fiddler of this name.

    Args:
      name: `scale_width`, `my_project.fiddlers.shrink` or `my_project.fiddlers:shrink`.
      shelves: Modules whose fiddlers may be named without their module; None means
        `luthier.recipes` and those of the project.

    Returns:
      The function; its first parameter is the config.

    Raises:
      Unreadable: There is none; the problem holds the nearest names.

    Example:
      >>> from luthier import graph
      >>> graph.find_fiddler("scale_width", None).__module__
      'luthier.recipes.scale'
    """
    # A bare name: shelves first, then entry points, so that installing a distribution cannot change
    # what a name of the shelves means. Two distributions with one name are an error, never a guess.
    if not all(part.isidentifier() for part in name.replace(":", ".", 1).split(".")):
        remedy = "write it like fiddler:NAME(1, b=2) or fiddler:package.module.NAME"
        raise Unreadable(Problem(f"{name!r} is not a valid fiddler name", remedy=remedy))
    if "." in name or ":" in name:
        return _find_in_module(name)
    known: dict[str, Callable[..., Any]] = {}
    for shelf in project.shelves_of(shelves):
        # A later shelf wins: the command line lists those of the project behind luthier's own.
        known |= dict(fiddlers_of(find_module(shelf)))
    if name not in known:
        targets = {one.target for one in entry_points.named(name, entry_points.FIDDLERS)}
        if len(targets) == 1:
            return _find_in_module(targets.pop())
        if targets:
            remedy = f"write {' or '.join(f'fiddler:{target}' for target in sorted(targets))}"
            raise Unreadable(Problem(f"{len(targets)} fiddlers are called {name!r}", remedy=remedy))
        every = [*known, *entry_points.names(entry_points.FIDDLERS)]
        near = [f"fiddler:{other}" for other in nearest(name, every)]
        there = f"there are {listed(sorted(every))}" if every else "write package.module.NAME"
        if len(every) > MOST_LISTED:
            there += "; `luthier help fiddlers` describes them"
        what = f"there is no fiddler {name!r}"
        raise Unreadable(Problem(what, nearest=near, remedy="" if near else there))
    return known[name]


def fiddlers_of(module: types.ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions of a module whose first argument is a graph, with their names.

    Args:
      module: A facade, or the module that defines them.

    Yields:
      (name, function), in the order of the module.

    Example:
      >>> from luthier import graph, recipes
      >>> "scale_width" in dict(graph.fiddlers_of(recipes))
      True
    """
    public = getattr(module, "__all__", None)
    for name, found in vars(module).items():
        is_own = found_in(found, module) if public is None else name in public
        if is_own and name[:1] != "_" and inspect.isfunction(found) and _takes_a_graph(found):
            yield name, found


def found_in(value: Any, module: types.ModuleType) -> bool:
    """Return whether a module defines something itself."""
    return getattr(value, "__module__", None) == module.__name__


def _takes_a_graph(function: Callable[..., Any]) -> bool:
    hints, names_of = signatures.type_hints(function), signatures.arguments(function).names
    for member in members(hints.get(names_of[0], Any)) if names_of else ():
        origin = typing_extensions.get_origin(member) or member
        if isinstance(origin, type) and issubclass(origin, fdl.Buildable):
            return True
    return False


def _find_in_module(name: str) -> Callable[..., Any]:
    module_name, _, last = name.replace(":", ".").rpartition(".")
    if module_name.split(".")[0] in sys.stdlib_module_names:
        raise Unreadable(f"{name}: Python's own modules hold no fiddlers")
    module = find_module(module_name)
    found = getattr(module, last, None)
    if found is None:
        near = [f"fiddler:{module_name}.{other}" for other in nearest(last, dict(_own(module)))]
        what = f"there is no fiddler {last!r} in {module_name}"
        there = f"it has {', '.join(sorted(dict(_own(module)))) or 'none'}"
        raise Unreadable(Problem(what, nearest=near, remedy="" if near else there))
    # A dotted name reaches whatever the module imported, and a fiddler is called at once: without
    # this check, `fiddler:my_module.os.system` or a re-exported `subprocess.run` would be run.
    home = (getattr(found, "__module__", None) or "builtins").split(".")[0]
    if not inspect.isroutine(found) or home in sys.stdlib_module_names:
        raise Unreadable(f"{name} is not a fiddler (a function from config to config)")
    known = signatures.arguments(found)
    if not (known.names or known.positional_only):
        raise Unreadable(f"{name} takes no arguments, so it is not a fiddler")
    return found


def _own(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    for name, found in vars(module).items():
        if inspect.isfunction(found) and found_in(found, module) and name[:1] != "_":
            yield name, found


def _stamp(before: Any, after: Any, start: int, where: str) -> None:
    """Record `where` as the origin of everything that a fiddler changed."""
    # In two passes. Entries of the history that are newer than `start` were recorded by Fiddle
    # while the fiddler ran. Fiddle does not see changes inside lists and dicts: these are found by
    # comparing structures.
    origins.stamp_graph_since(start, after, where)
    for path, value in _Changed().inside(before, after, ""):
        entry = origins.entry_of(after, path)
        if entry is None or entry.sequence_id <= start:
            node, key = setting.recorded_under(after, parse_path(path))
            origins.stamp(node, key, value, where)


class _Changed:
    """Finds the differences between a graph and the result of a fiddler.

    This is less than `luthier.graph.diff`, which is made for readers (it follows moves and reports
    sharing) and may not be imported from here: only places that hold something new count.
    """

    # Subtrees are numbered by content, so equal subtrees cost one comparison of integers, and the
    # walk descends only where something differs.

    def __init__(self) -> None:
        self._number = Structures().number
        self._seen: set[int] = set()

    def inside(self, before: Any, after: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Yield the paths and values of `after` that are not in `before`."""
        if self._number(before) == self._number(after):
            return
        if isinstance(before, fdl.Buildable) and isinstance(after, fdl.Buildable):
            if id(after) in self._seen:  # a shared node, met by another path
                return
            self._seen.add(id(after))
            if before.__fn_or_cls__ is not after.__fn_or_cls__ and path:
                yield path, after
            yield from self._by_key(before.__arguments__, after.__arguments__, path)
        elif isinstance(before, dict) and isinstance(after, dict):
            yield from self._by_key(before, after, path)
        elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
            yield from self._by_place(before, after, path)
        elif path:
            yield path, after

    def _by_key(self, before: Any, after: Any, path: str) -> Iterator[tuple[str, Any]]:
        for key, value in after.items():
            place = join(path, key)
            if key in before:
                yield from self.inside(before[key], value, place)
            else:
                yield place, value

    def _by_place(self, before: Any, after: Any, path: str) -> Iterator[tuple[str, Any]]:
        # Aligned, so that an insertion is not a change of everything behind it. `autojunk` would
        # ignore elements that are frequent in lists of 200 or more, as repeated layers are.
        old, new = ([self._number(value) for value in values] for values in (before, after))
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        for tag, begin, end, first, last in matcher.get_opcodes():
            if tag == "equal":
                continue
            for index in range(first, last):
                place = join(path, index)
                if end - begin == last - first:
                    yield from self.inside(before[begin + index - first], after[index], place)
                else:
                    yield place, after[index]
