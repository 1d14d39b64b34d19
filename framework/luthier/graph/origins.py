"""Where each value was set: a file and line, or the argument that set it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import linecache
import os
import sys
from typing import Any

import fiddle
import fiddle as fdl
from fiddle import history

from luthier.graph import copies, values
from luthier.graph.paths import Part, child_of, format_path, parse_path
from luthier.graph.values import Graph

# The location of a set: the line that sets a value, and the lines that called it.
#
# Fiddle records one file and line for every set. If a recipe sets the value, that line alone does
# not show which experiment asked for it; so the callers are recorded too, out to the function that
# a reference names.

_GRAPH = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_GRAPH)
_FIDDLE = os.path.dirname(os.path.abspath(fiddle.__file__))
# It stands between the lines that set values, as Fiddle does: the recipe that a file has imported
# lazily, and the file.
_LAZY = os.path.join(_GRAPH, "lazy.py")


@dataclasses.dataclass(frozen=True)
class Location(history.Location):
    """A location of Fiddle's history, with callers and the recorded run.

    Args:
      filename: The file; or, where the line is 0, an origin as text (`argument 2: seed=1`).
      line_number: The line, or 0.
      function_name: The function that the line is in.
      callers: The lines that called it, `file:line`, innermost first, one for each other file.
      run: The recorded run in which it was set; empty for sets of this process.
    """

    callers: tuple[str, ...] = ()
    run: str = ""


@functools.lru_cache(maxsize=4096)
def _kind(filename: str) -> str:
    """Return whose code a file holds."""  # cached: it is called for every frame of every set
    path = os.path.abspath(filename)
    if path == _LAZY:
        return "fiddle"
    for kind, folder in (("graph", _GRAPH), ("luthier", _PACKAGE), ("fiddle", _FIDDLE)):
        if path.startswith(folder + os.sep):
            return kind
    return "other"


def locate() -> history.Location:
    """Return the line that sets something right now: the innermost one outside of this package.

    Callers are listed out to the function that a reference or a fiddler names, which this package
    calls. If no such function is running, the first line outside of luthier is listed.
    """
    # Fiddle calls this for every set of every argument, so it walks bare frames: `inspect.stack`
    # reads source files. Going outwards from here, the first frames belong to this package and
    # Fiddle (skipped); then comes the setter; then its callers, one line for each file, until a
    # frame of this package, which called the experiment or fiddler.
    frame: Any = sys._getframe(1)  # private to CPython by its name alone; the docs describe it
    while frame.f_back is not None and _kind(frame.f_code.co_filename) in ("graph", "fiddle"):
        frame = frame.f_back
    setter, callers = frame, []
    last, outside = frame.f_code.co_filename, _kind(frame.f_code.co_filename) == "other"
    frame = frame.f_back
    while frame is not None:
        name = frame.f_code.co_filename
        kind = _kind(name)
        if kind == "graph":  # `resolve` or `run_fiddler`: further out is only the command line
            break
        if name != last and kind != "fiddle":
            callers.append((name, frame.f_lineno, kind))
            last = name
        frame = frame.f_back
    else:
        # Not called by this package: a script or a test. All of its stack would be noise. If a
        # recipe set the value, the first line outside of luthier shows who called the recipe.
        first = next((i for i, caller in enumerate(callers) if caller[2] == "other"), -1)
        callers = [] if outside else callers[: first + 1]
    code = setter.f_code
    return Location(
        code.co_filename,
        setter.f_lineno,
        code.co_name,
        tuple(f"{name}:{line}" for name, line, _ in callers),
    )


_installed: list[Any] = []


def install() -> None:
    """Make Fiddle's history call `locate` for the location of sets; a second call does nothing."""
    # Fiddle offers a context manager, but its location provider is a process-wide global anyway, so
    # a `with` around `apply` would leak into other threads and miss sets in the user's modules.
    if not _installed:
        _installed.append(history.custom_location(locate))
        _installed[0].__enter__()  # it is left by `uninstall`, or never


def uninstall() -> None:
    """Make Fiddle's history find locations by itself again."""
    while _installed:
        _installed.pop().__exit__(None, None, None)


def callers_of(location: history.Location) -> tuple[str, ...]:
    """Return the lines that called a location, innermost first."""
    return location.callers if isinstance(location, Location) else ()


def run_of(location: history.Location) -> str:
    """Return the recorded run in which a value was set; empty for sets of this process."""
    return location.run if isinstance(location, Location) else ""


def stamp(node: fdl.Buildable, key: Part, value: Any, origin: str = "") -> None:
    """Record in Fiddle's history that `key` of `node` was set to `value`.

    Args:
      node: The node that holds the argument.
      key: The argument, or the argument and the path inside it (`layers[0]`).
      value: The new value; `history.DELETED` for a reset.
      origin: The origin of the set; without one, the caller's file and line.
    """
    if not history.tracking_enabled():
        return
    install()
    # Sets are made under `suspend_tracking`, since one set may touch several arguments (a default
    # that is copied into the graph, say), and recorded here as one. The entry comes from a scratch
    # history, because only Fiddle can draw the next number of its process-wide counter.
    past = history.History()
    past.add_new_value(key, value)
    entry = past[key][-1]
    if origin:
        entry = dataclasses.replace(entry, location=history.Location(origin, 0, None))
    node.__argument_history__[key].append(entry)


def now() -> int:
    """Return the current sequence number of Fiddle's history."""
    # The counter is private and can only be advanced, so an entry is made and dropped.
    past = history.History()
    past.add_new_value("", None)
    return past[""][-1].sequence_id if past[""] else 0


def stamp_since(start: int, value: Any, origin: str) -> None:
    """Record `origin` as the origin of everything in `value` that was set after `start`.

    Args:
      start: The result of `now` before `value` was made; older nodes are left alone.
      value: A node, or a list, tuple or dict that may hold nodes.
      origin: Who made it.
    """
    location = history.Location(origin, 0, None)
    pending, seen = [value], set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, fdl.Buildable):
            # An older node was only referred to (`ref:`, `alias:`): its origin stays what it was.
            creation = item.__argument_history__.get("__fn_or_cls__", ())
            if creation and creation[0].sequence_id < start:
                continue
            for entries in item.__argument_history__.values():
                entries[:] = [
                    dataclasses.replace(e, location=location) if e.sequence_id > start else e
                    for e in entries
                ]
            pending += item.__arguments__.values()
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item


def stamp_graph_since(start: int, graph: Graph, origin: str) -> None:
    """Record `origin` in front of the origin of everything in `graph` that was set after `start`.

    Args:
      start: The result of `now` before the change.
      graph: A node.
      origin: Who did it; it is put in front of the file and line, which stay known.
    """
    for node in copies.nodes_of(graph):
        for entries in node.__argument_history__.values():
            entries[:] = [_led_by(origin, e) if e.sequence_id > start else e for e in entries]


def _led_by(origin: str, entry: history.HistoryEntry) -> history.HistoryEntry:
    location = history.Location(f"{origin}, {entry_text(entry)}", 0, None)
    return dataclasses.replace(entry, location=location)


def location_text(location: history.Location) -> str:
    """Return a location as `file:line`, relative to the working directory or to the packages.

    An origin of our own (`argument 2: training.steps=10`) is returned as it is.
    """
    if not location.line_number:
        return location.filename
    return f"{short_file(location.filename)}:{location.line_number}"


def entry_text(entry: history.HistoryEntry) -> str:
    """Return the location of an entry of a history as text, at the line of its own argument.

    Fiddle records the line at which a call begins. Of a call over several lines, the line of the
    keyword is looked up in the source.
    """
    location = entry.location
    if not location.line_number:
        return location.filename
    found = _keyword_lines(location.filename).get((location.line_number, str(entry.param_name)), ())
    # Two calls that begin at one line may have the same keyword at different lines.
    (line,) = found if len(found) == 1 else (location.line_number,)
    return f"{short_file(location.filename)}:{line}"


@functools.lru_cache(maxsize=256)
def _keyword_lines(filename: str) -> dict[tuple[int, str], set[int]]:
    """Return the lines of keywords by the line at which their call begins, and their name."""
    # `linecache` knows the cells of notebooks, too. A file that was edited after its import may
    # lead to a line nearby, as in tracebacks of Python.
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[tuple[int, str], set[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            # A call of a method that is on a line of its own begins there, by Python's account.
            for begin in {node.lineno, node.func.end_lineno or node.lineno}:
                for keyword in node.keywords:
                    if keyword.arg:
                        found.setdefault((begin, keyword.arg), set()).add(keyword.lineno)
    return found


def short_file(name: str) -> str:
    """Return a file's name relative to the working directory or to the installed packages."""
    for marker in (f"site-packages{os.sep}", f"dist-packages{os.sep}"):
        if marker in name:
            return name.split(marker)[-1]
    if not os.path.isabs(name):
        return name
    relative = os.path.relpath(name)
    return relative if not relative.startswith("..") else os.sep.join(name.split(os.sep)[-3:])


def _last(node: fdl.Buildable, key: Part) -> history.HistoryEntry | None:
    entries = node.__argument_history__.get(key, ())
    sets = [e for e in entries if e.kind is history.ChangeKind.NEW_VALUE]
    return sets[-1] if sets else None


def entry_of(graph: Graph, path: str) -> history.HistoryEntry | None:
    """Return the last entry of the history that concerns `path`; None where it is a default.

    Args:
      graph: A node.
      path: A path. One that does not exist has no history: a function of the user's may make a
        component of which the graph knows nothing.
    """
    # Fiddle keeps a history per argument of a node. Sets inside a list or dict of an argument are
    # recorded by `setting` under the written rest of the path (`layers[0].dim`), so every prefix of
    # the path below the innermost node is a key to look at; for a constant, its own value too. The
    # latest of them is what the value is due to.
    parts = parse_path(path)
    value, owner, depth = graph, None, 0
    for index, part in enumerate(parts):
        if isinstance(value, fdl.Buildable):
            owner, depth = value, index
        try:
            value, is_default = child_of(value, part)
        except (KeyError, IndexError):
            return None
        if is_default:
            return None
    if owner is None:
        return None
    first = parts[depth]
    keys: list[Part] = [first]
    keys += [format_path(parts[depth:end]) for end in range(depth + 2, len(parts) + 1)]
    candidates = [entry for key in keys if (entry := _last(owner, key)) is not None]
    if values.is_constant(value) and (entry := _last(value, "value")) is not None:
        candidates.append(entry)
    return max(candidates, key=lambda entry: entry.sequence_id) if candidates else None


def origin_of(graph: Graph, path: str) -> str:
    """Return the origin of `path` in `graph`: `file:line` or an argument; "" for a default.

    Args:
      graph: A node.
      path: A path that exists, as `optimizer.b2`.

    Returns:
      `file:line`, or the override that set it; an empty string for a default.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=3e-4)
      >>> changed = graph.apply(config, ["learning_rate=1e-3"])
      >>> graph.origin_of(changed, "learning_rate")
      'argument 1: learning_rate=1e-3'
      >>> graph.origin_of(changed, "b2")
      ''
    """
    entry = entry_of(graph, path)
    return entry_text(entry) if entry is not None else ""


def made_at(node: fdl.Buildable) -> str:
    """Return where a node was made; empty where its history is not known."""
    entry = _last(node, "__fn_or_cls__")
    return location_text(entry.location) if entry is not None else ""
