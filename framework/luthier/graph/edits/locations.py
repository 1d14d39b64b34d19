"""Where a value is set: the line that sets it, and what called that line.

Fiddle notes one file and line for every set. Where a recipe sets it, that line alone does not say
which experiment the value is of; so the lines that called it are noted too, out to the function
that a reference names.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from typing import Any

import fiddle
from fiddle import history

_GRAPH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PACKAGE = os.path.dirname(_GRAPH)
_FIDDLE = os.path.dirname(os.path.abspath(fiddle.__file__))


@dataclasses.dataclass(frozen=True)
class Location(history.Location):
    """A location of Fiddle's that knows more.

    Args:
      filename: The file; or, where the line is 0, an origin in words (`argument 2: seed=1`).
      line_number: The line, or 0.
      function_name: The function that the line is in.
      callers: The lines that called it, `file:line`, innermost first, one for each other file.
      run: The recorded run in which it was set; empty for what was set since.
    """

    callers: tuple[str, ...] = ()
    run: str = ""


@functools.lru_cache(maxsize=4096)
def _kind(filename: str) -> str:
    """Return whose code a file holds; asked for every frame of every set, so it is cached."""
    path = os.path.abspath(filename)
    for kind, folder in (("graph", _GRAPH), ("luthier", _PACKAGE), ("fiddle", _FIDDLE)):
        if path.startswith(folder + os.sep):
            return kind
    return "other"


def locate() -> history.Location:
    """Return the line that sets something right now: the innermost one outside of this room.

    What called it is told out to the function that a reference or a fiddler names, which this room
    calls. Where no such function runs, the first line outside of luthier is told.
    """
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and _kind(frame.f_code.co_filename) in ("graph", "fiddle"):
        frame = frame.f_back
    setter, callers = frame, []
    last, outside = frame.f_code.co_filename, _kind(frame.f_code.co_filename) == "other"
    frame = frame.f_back
    while frame is not None:
        name = frame.f_code.co_filename
        kind = _kind(name)
        if kind == "graph":
            break
        if name != last and kind != "fiddle":
            callers.append((name, frame.f_lineno, kind))
            last = name
        frame = frame.f_back
    else:
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
    """Let Fiddle's history ask `locate` where things are set; a second call does nothing."""
    if not _installed:
        _installed.append(history.custom_location(locate))
        _installed[0].__enter__()  # for good: what is kept here is never left


def callers_of(location: history.Location) -> tuple[str, ...]:
    """Return the lines that called a location, innermost first."""
    return location.callers if isinstance(location, Location) else ()


def run_of(location: history.Location) -> str:
    """Return the recorded run in which something was set; empty for what was set since."""
    return location.run if isinstance(location, Location) else ""
