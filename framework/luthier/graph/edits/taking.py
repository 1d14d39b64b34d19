"""Values taken from somewhere: `alias:PATH` of this graph, `run:ID.PATH` of a recorded one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from luthier.errors import BadInput, Problem
from luthier.graph.edits import copies, sharing
from luthier.graph.grammar import names
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.paths import Path, get, parse_path

Recorded = Callable[[str], Any]
"""Returns the graph of a recorded run: by its id, or however else runs are named."""

_ALIAS = re.compile(r"(?:alias:|&)(.*)", re.DOTALL)
_RUN = re.compile(r"@?run:((?:[^\[/]*/)*[^\[/.]*)\.?(.*)", re.DOTALL)


def take(
    graph: Any, target: Path, text: str, annotation: Any, recorded: Recorded | None
) -> tuple[Any] | None:
    """Return what a value takes from somewhere, in a tuple; None where it takes nothing.

    Args:
      graph: A node; a plain value in it that is shared becomes a constant, in place.
      target: Where the value is for.
      text: The value as it was written.
      annotation: The annotation of the place: a class of it may have `run:` for a word of its own,
        and then only `@run:` takes from a run.
      recorded: Returns the graph of a run; None where there are no runs.

    Raises:
      Unreadable: It cannot be taken.
      BadInput: There is no such run or path.
    """
    if match := _ALIAS.fullmatch(text):
        source = match[1].strip()
        if not source:
            raise Unreadable(Problem(f"{text!r} names no path", remedy="write alias:PATH"))
        return (sharing.alias(graph, target, parse_path(source)),)
    match = _RUN.fullmatch(text)
    if not match or (not text.startswith("@") and "run" in names.words(annotation)):
        return None
    run, path = match[1].strip(), match[2].strip()
    if not run or not path:
        remedy = "write run:ID.PATH, as run:last.model"
        raise Unreadable(Problem(f"{text!r} does not say what to take", remedy=remedy))
    if recorded is None:
        raise Unreadable(f"{text!r}: no runs are known here")
    source = recorded(run)
    try:
        return (copies.copy_graph(get(source, path)),)
    except BadInput as error:
        problem, at = error.problems[0], f"run:{run}."
        near = [f"{at}{other}" for other in problem.nearest]
        told = dataclasses.replace(problem, path=f"{at}{problem.path}", nearest=near)
        raise Unreadable(told) from error
