"""The overrides that make schedules fit another number of steps, for messages to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from luthier.errors import BadInput, Problem

if TYPE_CHECKING:
    from luthier.graph import Graph

_STEPS = "training.steps"
_PARTS = ("warmup_steps", "decay_steps")


def with_fix(
    problems: Sequence[Problem], graph: Graph, base: Graph, overrides: Sequence[str]
) -> list[Problem]:
    """Return problems, those of a schedule that is too long as one with the whole fix.

    Args:
      problems: The problems of the graph.
      graph: The graph.
      base: The graph before the overrides, whose schedules give the proportions.
      overrides: The overrides that were typed.
    """
    from luthier import graph as graphs

    # Without it, the first fix uncovers the next problem: steps, the schedule's end, its warmup.
    fix = dict(_changes(graph, base))
    if not fix:
        return list(problems)
    fixed = graphs.apply(graph, [f"{path}={value}" for path, value in fix.items()])
    left = graphs.declared_problems(fixed)
    gone = [p for p in graphs.declared_problems(graph) if str(p) not in set(map(str, left))]
    solved = [p for p in problems if str(p) in set(map(str, gone))]
    if not solved:
        return list(problems)
    typed = [
        word for word in overrides if word.startswith((f"{_STEPS}=", f"{_STEPS}:=", "optimizer."))
    ]
    typed = [word for word in typed if word.partition("=")[0].rstrip(":") not in fix]
    words = [*typed, *(f"{path}={value}" for path, value in fix.items())]
    remedy = f"write {shlex.join(words)}"
    longest = next((path for path in fix if path.endswith(".total_steps")), "")
    if longest:
        total, steps = (graphs.evaluate(graphs.get(graph, path)) for path in (longest, _STEPS))
        what = f"its {total} steps do not fit {_STEPS} = {steps}"
        first = Problem(what, longest.removesuffix(".total_steps"), remedy=remedy)
    else:
        first = Problem(solved[0].what, solved[0].path, remedy=remedy)
    return [first, *(problem for problem in problems if problem not in solved)]


def _changes(graph: Graph, base: Graph) -> Iterator[tuple[str, Any]]:
    """Yield (path, new value) of the lengths of schedules that do not fit."""
    from luthier import graph as graphs

    steps = _number(graph, _STEPS)
    if steps is None:
        return
    for place in graphs.walk(graph, defaults=False, once=True):
        path = f"{place.path}.total_steps"
        if not place.path.startswith("optimizer") or not graphs.is_node(place.value):
            continue
        total = _number(graph, path)
        if total is None:
            continue
        before, longest = _number(base, path), max(total, _number(base, path) or 0)
        if total > steps:
            yield path, f"ref:{_STEPS}"
            total = steps
        parts = {name: _number(graph, f"{place.path}.{name}") or 0 for name in _PARTS}
        if sum(parts.values()) < total:
            continue
        for name, number in parts.items():
            # In proportion to the schedule that it was part of; a tenth, as most schedules have,
            # where that is not known.
            share = number * total // longest if before and longest > total else total // 10
            if number and share < number:
                yield f"{place.path}.{name}", max(share, 1)


def _number(graph: Graph, path: str) -> int | None:
    from luthier import graph as graphs

    try:
        value = graphs.evaluate(graphs.get(graph, path))
    except (BadInput, ValueError, ArithmeticError, TypeError):
        return None
    return value if type(value) is int else None
