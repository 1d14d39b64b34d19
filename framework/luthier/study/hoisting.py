"""Hoisting: finds the leaves that can be runtime arguments, and trials that can share a program.

Nothing is declared: a leaf can be hoisted if the initialization, the training step and every
evaluation can be traced with a tracer in its place. No array is made, and no device is needed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.graph import Graph
from luthier.program import HOISTABLE_FIELDS, evaluate_step, init_state, train_step
from luthier.program.hoist import problem_with, substitutions, values_of


@dataclasses.dataclass(frozen=True)
class Hoisting:
    """The leaves of a graph that can be hoisted.

    Args:
      paths: Leaves that may enter the compiled step as arguments, all of them together.
      static: Why each other leaf stays a constant of its program.
      key: The `program_key` of the graph with these paths, where that is known.
    """

    paths: tuple[str, ...]
    static: Mapping[str, str]
    key: str = ""


def discover(graph: Graph, candidates: Sequence[str]) -> Hoisting:
    """Find which leaves can be hoisted, by abstract evaluation.

    Args:
      graph: A valid experiment graph.
      candidates: Paths of leaves.
    """
    static: dict[str, str] = {}
    possible: list[str] = []
    for path in dict.fromkeys(candidates):
        problem = _never(graph, path)
        if problem:
            static[path] = problem
        else:
            possible.append(path)
    paths: list[str] = []
    # Usually all leaves together can be traced, which costs one trace. Otherwise the group is
    # halved until each culprit is alone: leaves that are found innocent stay in `paths` for the
    # following traces, because two leaves may be fine one by one and not together.
    groups = [possible] if possible else []
    while groups:
        group = groups.pop(0)
        problem = _trace_problem(graph, [*paths, *group])
        if problem is None:
            paths += group
        elif len(group) == 1:
            static[group[0]] = problem
        else:
            half = len(group) // 2
            groups[:0] = [group[:half], group[half:]]
    return Hoisting(tuple(path for path in possible if path in paths), static)


class Discoveries:
    """A cache of discoveries by program: the same question is answered without a trace."""

    def __init__(self) -> None:
        self._known: dict[str, Hoisting] = {}

    def discover(
        self,
        graph: Graph,
        candidates: Sequence[str],
        attempt: Callable[[tuple[str, ...]], bool] = lambda paths: False,
    ) -> Hoisting:
        """Find which leaves can be hoisted; see `discover`.

        Args:
          graph: A valid experiment graph.
          candidates: Paths of leaves.
          attempt: Called with the leaves that only a trace can tell of, where they were not yet
            traced: whether the caller did so, with all of them hoisted. Then nothing is traced
            here.
        """
        there, refused = _split(graph, candidates)
        of_program, key = self._key(graph, there, candidates)
        if key not in self._known:
            done = attempt(there)
            self._known[key] = Hoisting(there, refused) if done else discover(graph, candidates)
        found = self._known[key]
        # Of a trial that takes a tenth of a second, two fingerprints are a noticeable part.
        return dataclasses.replace(found, key=of_program) if found.paths == there else found

    def recall(self, graph: Graph, candidates: Sequence[str]) -> Hoisting | None:
        """Return what `discover` returned for the same program; None where it was not asked yet.

        Args:
          graph: A valid experiment graph.
          candidates: Paths of leaves.
        """
        there, _ = _split(graph, candidates)
        return self._known.get(self._key(graph, there, candidates)[1])

    @staticmethod
    def _key(graph: Graph, there: Sequence[str], candidates: Sequence[str]) -> tuple[str, str]:
        """Return the key of the program, and that of the question."""
        # What a trace would find depends on the program only, not on the values of the leaves that
        # are hoisted: the key leaves them out, so all trials of one program share one answer.
        key = program_key(graph, there)
        return key, json.dumps([key, list(candidates)])


def _split(graph: Graph, candidates: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the leaves that only a trace can tell of, and why each other one stays a constant."""
    static = {path: _never(graph, path) for path in dict.fromkeys(candidates)}
    there = tuple(path for path, problem in static.items() if problem is None)
    return there, {path: problem for path, problem in static.items() if problem is not None}


def program_key(graph: Graph, hoist: Sequence[str]) -> str:
    """Return a key that graphs share if one compiled program serves them on equal devices.

    It is taken of everything but the hoisted leaves: the rest of the graph; whatever the host
    reads, even where it shares a value with a hoisted leaf; the types of the hoisted leaves; and
    the shapes of a batch.

    Args:
      graph: A valid experiment graph.
      hoist: Paths of the leaves that enter the program as arguments.

    Raises:
      BadInput: A path cannot be hoisted.
    """
    # An int and a float at the same path are two programs.
    types = [str(array.dtype) for array in values_of(graph, hoist)]
    # Two fingerprints: `rest` leaves out the hoisted paths. `host` leaves out only the fields that
    # nothing but the compiled step reads, so that a value which is shared between a hoisted leaf
    # and something on the host still separates programs.
    rest = graphs.fingerprint(graph, kind="program", without=hoist)
    host = graphs.fingerprint(graph, kind="program", without=HOISTABLE_FIELDS)
    batch = {name: [list(shape), str(dtype)] for name, (shape, dtype) in _batch(graph).items()}
    content = json.dumps([rest, host, list(hoist), types, batch], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _never(graph: Graph, path: str) -> str | None:
    """Return why a leaf can never be hoisted; None where that takes a trace."""
    try:
        problem = problem_with(graph, path)
    except BadInput as error:
        return str(error)
    return problem.what if problem else None


def _batch(graph: Graph) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    rows = graphs.evaluate(graphs.get(graph, "training.global_batch_size"))
    spec = graphs.build(graphs.get(graph, "data")).batch_spec(rows)
    return {name: (tuple(shape), jnp.dtype(dtype)) for name, (shape, dtype) in spec.items()}


def _trace_problem(graph: Graph, paths: Sequence[str]) -> str | None:
    """Return why a graph cannot be traced with `paths` hoisted; None where it can."""
    # The shapes of batches come from a graph with constants: `batch_spec` runs on the host and
    # could not use a tracer.
    outer = graphs.build(graph)
    batches = {
        name: _abstract(evaluation.data, evaluation.global_batch_size, outer.task)
        for name, evaluation in outer.evaluations.items()
    }
    batch = _abstract(outer.data, outer.training.global_batch_size, outer.task)

    def trace(values: Any, batch: Any, batches: Any) -> Any:
        # The experiment is built inside of the trace, with tracers in the place of the leaves:
        # whatever a component computes in its constructor is traced, too.
        experiment = graphs.build(graph, substitutions(graph, paths, values))
        state = init_state(experiment)
        state, scalars = train_step(experiment, state, batch)
        sums = [
            evaluate_step(experiment, state, evaluation.weights.value, batches[name])
            for name, evaluation in outer.evaluations.items()
        ]
        return state, scalars, [list(found.values()) for found in sums]

    try:
        jax.eval_shape(trace, values_of(graph, paths), batch, batches)
    except Exception as error:  # a component may raise anything where it meets a tracer
        # Typical problems: a Python branch on a tracer, a shape that depends on it, and floats that
        # Python would add or raise to a power in double precision (`program.hoist` refuses these,
        # because a float32 tracer would lose the digits). Such a leaf stays a constant, and trials
        # that differ in it compile programs of their own.
        line = " ".join(str(error).strip().partition("\n")[0].split())
        return f"{type(error).__name__}: {line}"
    return None


def _abstract(data: Any, rows: int, task: Any) -> dict[str, jax.ShapeDtypeStruct]:
    spec = data.batch_spec(rows)
    return {
        name: jax.ShapeDtypeStruct(spec[name][0], jnp.dtype(spec[name][1]))
        for name in task.batch_axes
    }
