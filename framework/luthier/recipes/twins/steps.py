"""Schedules in few steps: the order of what happens stays, and nothing falls out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fiddle as fdl

from luthier import durations, graph
from luthier.recipes.twins.shared import constants

_LISTS = ("boundaries",)
"""Lists of step numbers, beside settings that end with `_steps`."""


def shorten(changed: fdl.Buildable, steps: int) -> None:
    """Make a run of few steps of an experiment, in place, with all parts of its schedules.

    The longest schedule ends with the run. Numbers of steps keep their order, and those that
    differ still do, so that the run may take a few steps more than asked for. Evaluations and
    checkpoints come at least twice.

    Args:
      changed: A graph of an experiment; one that is not longer keeps its steps.
      steps: Steps of the run.
    """
    numbers = [(number, put) for number, put in _numbers(changed.optimizer) if number > 0]
    found = sorted({number for number, _ in numbers})
    if found and found[-1] > steps:
        squeezed = _squeezed(found, steps)
        steps = max(squeezed.values())
        for number, put in numbers:
            put(squeezed[number])
    if graph.evaluate(changed.training.steps) > steps:
        graph.set_value(changed, "training.steps", steps)
    _come_often(changed, max(1, graph.evaluate(changed.training.steps) // 2))


def _squeezed(found: Sequence[int], steps: int) -> dict[int, int]:
    """Return what each number becomes: at its share of the longest, and after the one before."""
    numbers: dict[int, int] = {}
    last = 0
    for number in found:
        last = numbers[number] = max(-(-number * steps // found[-1]), last + 1)
    return numbers


def _numbers(optimizer: Any) -> Iterator[tuple[int, Callable[[int], None]]]:
    """Yield numbers of steps with what sets them: plain ones, and constants, once each."""
    seen: set[int] = set()
    for place in list(graph.walk(optimizer, defaults=False, once=True)):
        parts = place.path.replace("[", ".").split(".")
        if not any(part.endswith("_steps") or part in _LISTS for part in parts):
            continue
        if type(place.value) is int:
            yield place.value, functools.partial(graph.set_value, optimizer, place.path)
        for node in constants(place.value):
            if type(node.value) is int and id(node) not in seen:
                seen.add(id(node))
                yield node.value, functools.partial(graph.set_value, node, "value")


def _come_often(changed: Any, steps: int) -> None:
    for place in list(graph.walk(changed, defaults=False, once=True)):
        counts = getattr(place.owner, "__fn_or_cls__", None) is durations.Steps
        if counts and graph.evaluate(graph.get(changed, place.path)) > steps:
            graph.set_value(changed, place.path, steps)
