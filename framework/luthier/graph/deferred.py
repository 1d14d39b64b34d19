"""Numbers of steps that are written in epochs, in the places where an `int` is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import fiddle as fdl

from luthier.graph import values
from luthier.graph.grammar.types import members
from luthier.graph.overrides import annotation_at
from luthier.graph.paths import walk
from luthier.graph.values import Graph


class DeferredSteps(NamedTuple):
    """`Epochs(n)` in the place of a number of steps.

    Args:
      path: Its path; that of the last user of a shared value.
      owner: The node to set the number in.
      part: The path in `owner`.
      node: The `Epochs` node.
    """

    path: str
    owner: Graph
    part: str
    node: fdl.Config


def deferred_steps(graph: Graph) -> Iterator[DeferredSteps]:
    """Yield every number of steps of a graph that is written in epochs, shared ones once.

    Args:
      graph: An experiment graph.

    Yields:
      The path of each, and the node and argument that hold the duration, in the order of the graph.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import durations, graph, program
      >>> training = fdl.Config(program.Training, steps=fdl.Config(durations.Epochs, 3))
      >>> [steps.path for steps in graph.deferred_steps(training)]
      ['steps']
    """
    shared: dict[int, DeferredSteps] = {}
    for place in walk(graph, defaults=False, once=True):
        if values.is_deferred(place.value):
            # Elsewhere, as in `training.stop`, the duration itself is wanted.
            if int in members(annotation_at(graph, place)):
                yield DeferredSteps(place.path, graph, place.path, place.value)
            continue
        for constant in _constants(place.value):
            held = constant.__arguments__.get("value")
            # At the last path to the constant itself, `training.steps`, not in arithmetic on it.
            if values.is_deferred(held) and (constant is place.value or id(constant) not in shared):
                shared[id(constant)] = DeferredSteps(place.path, constant, "value", held)
    yield from shared.values()


def _constants(value: Any) -> Iterator[fdl.Config]:
    if values.is_constant(value):
        yield value
    elif values.is_value_node(value):
        for operand in values.operands(value):
            yield from _constants(operand)
