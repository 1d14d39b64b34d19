"""Pipelines of an experiment: bubbles of their stages, and checks of what they must divide."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from luthier import graph as graphs
from luthier import layers
from luthier.errors import Problem
from luthier.graph import Graph
from luthier.layers.pipeline import bubble_fraction, num_ticks
from luthier.parallel import axis_product


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A stack of layers in a pipeline.

    Args:
      path: Path of the stack in the graph.
      stack: The stack.
      num_layers: Number of layers.
      num_kinds: Number of kinds of layers that alternate.
      stages: Devices along the mesh axis `stage`.
    """

    path: str
    stack: layers.Pipelined
    num_layers: int
    num_kinds: int
    stages: int

    @property
    def ticks(self) -> int:
        """Number of ticks after which all microbatches are through."""
        return num_ticks(self.stack.schedule, self.stages, self.stack.microbatches)

    @property
    def bubble_fraction(self) -> float:
        """Fraction of the ticks in which a stage has nothing to do."""
        return bubble_fraction(self.stack.schedule, self.stages, self.stack.microbatches)

    def to_dict(self) -> dict[str, Any]:
        """Return the pipeline as plain values."""
        return {
            "stages": self.stages,
            "microbatches": self.stack.microbatches,
            "schedule": repr(self.stack.schedule),
            "ticks": self.ticks,
            "bubble_fraction": self.bubble_fraction,
        }

    def __str__(self) -> str:
        sizes = f"{self.stages} stages, {self.stack.microbatches} microbatches"
        share = f"{self.ticks} ticks, bubble fraction {self.bubble_fraction:.1%}"
        return f"{self.path}: {self.stack.schedule!r} of {sizes}: {share}"


def pipelines(graph: Graph, stages: int) -> list[Pipeline]:
    """Return the pipelines of a graph, if there are stages.

    Args:
      graph: The experiment graph.
      stages: Devices along the mesh axis `stage`; with one, layers run as without a pipeline.
    """
    # Read from the graph, not from a model: sizes that do not divide must be reported before the
    # model is built, where they would raise one after another.
    found = []
    for place in graphs.walk(graph) if stages > 1 else ():
        if getattr(place.value, "__fn_or_cls__", None) is not layers.Pipelined:
            continue
        above = graphs.get(graph, place.path.rpartition(".")[0])
        kinds = above.block if isinstance(above.block, list | tuple) else [above.block]
        num_layers = graphs.evaluate(above.num_layers)
        stack = graphs.build(place.value)
        found.append(Pipeline(place.path, stack, num_layers, len(kinds), stages))
    return found


def indivisible(graph: Graph, num_devices: int) -> list[Problem]:
    """Return a problem for all layers, microbatches and rows that pipelines cannot divide.

    Args:
      graph: The experiment graph.
      num_devices: Number of devices that it is to run on.

    Raises:
      ShardingError: There is no such mesh of these devices.
    """
    parallelism = graphs.build(graphs.get(graph, "parallelism"))
    sizes = parallelism.mesh.sizes(num_devices)
    found = pipelines(graph, sizes["stage"])
    # A batch is cut three times: into the microbatches of accumulation (training only), each over
    # the devices that split rows, and each of these into the microbatches of the pipeline.
    number = lambda path: graphs.evaluate(graphs.get(graph, path))  # noqa: E731
    parts = {}
    if found:
        parts["training.global_batch_size"] = number("training.accumulation")
        for name in graphs.get(graph, "evaluations"):
            parts[f"evaluations.{name}.global_batch_size"] = 1
    # The rule may have `stage` too (`recipes.stacks`), which splits the microbatches and not the
    # rows of one: that the stages divide their number is among the problems of `_of_layers`.
    axes = parallelism.rules.activations.get("batch", ())
    shards = axis_product([axis for axis in axes if axis != "stage"], sizes)
    problems: list[Problem] = []
    for pipeline in found:
        problems += _of_layers(graph, pipeline)
        for path, num_parts in parts.items():
            problems += _of_rows(graph, pipeline, path, number(path), num_parts, shards)
    return problems


def _of_layers(graph: Graph, pipeline: Pipeline) -> Iterator[Problem]:
    M = (
        pipeline.stack.microbatches
    )  # as the number of rows, too: `_of_rows` checks those of batches
    sizes = (pipeline.num_layers, pipeline.num_kinds, M, pipeline.stages)
    for problem in pipeline.stack.problems(*sizes):
        above = pipeline.path.rpartition(".")[0]
        path = f"{pipeline.path}.{problem.path}" if problem.path else f"{above}.num_layers"
        yield dataclasses.replace(problem, path=path, origin=graphs.origin_of(graph, path))


def _of_rows(
    graph: Graph, pipeline: Pipeline, path: str, num_rows: int, num_parts: int, shards: int
) -> Iterator[Problem]:
    M, each = pipeline.stack.microbatches, num_parts * shards
    if num_rows % (M * each) == 0:
        return
    what = f"{num_rows} rows cannot be cut into {M} microbatches"
    what += f" for each of {num_parts} steps of accumulation" if num_parts > 1 else ""
    what += f", each of them for {shards} devices" if shards > 1 else ""
    remedy = f"use a multiple of {M * each}"
    # Fewer microbatches are a remedy only if the stages still divide them.
    fewer = math.gcd(num_rows // each, M)
    if num_rows % each == 0 and fewer % pipeline.stages == 0:
        remedy += f", or set {pipeline.path}.microbatches={fewer}"
    yield Problem(what, path, graphs.origin_of(graph, path), remedy)
