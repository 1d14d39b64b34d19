"""Checks of an experiment as a whole, and of the size in its name (`1b`, `125m`, `1.3B`)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from flax import nnx
from jax.extend import core as jex_core

from luthier import graph as graphs
from luthier import layers
from luthier import program as programs
from luthier.errors import DataError, Problem, ValidationError, listed
from luthier.graph import Graph
from luthier.parallel import Placement, activation_rules_table, parameter_rules
from luthier.parallel.specs import FSDP
from luthier.program.state import chosen
from luthier.program.step import model_of
from luthier.tasks import BatchCoupled, CoupledTask

FACTOR = 2.0
"""Tolerated ratio of a count and the size in a name: 1.9 billion may be called 1b, rounded down."""

SMOKE_TEST_SUFFIXES = ("-debug", "-tiny")
"""Suffixes of the names of smoke-test configs, after the name of the original."""

# A number and a unit, alone between separators. In Python names a point is `p` or `_` (`lm_1_3b`).
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:[.p]\d+)?)([mMbB])(?![A-Za-z0-9])")
_SEPARATED = re.compile(r"_(\d)_(\d+[mMbB])(?![A-Za-z0-9])")


def claimed(name: str) -> tuple[str, float] | None:
    """Return the size that a name claims, as it is written and as a number; None if there is none.

    `llama_7b`, `gpt2-125M` and `lm_1_3b` claim one; `mnist5k`, `7bit` and `100mb` do not, nor do
    names of smoke-test configs, `llama_7b-tiny`.

    Args:
      name: The name of an experiment or of a recipe.

    Returns:
      The text and the number of parameters, or None.

    Example:
      >>> from luthier import planner
      >>> planner.claimed("llama_7b"), planner.claimed("mnist5k")
      (('7b', 7000000000.0), None)
    """
    if name.endswith(SMOKE_TEST_SUFFIXES):
        return None
    found = list(_SIZE.finditer(_SEPARATED.sub(r"_\1.\2", name).replace("_", " ")))
    if len(found) != 1:
        return None  # none, or names of several models, such as a teacher's
    number, unit = found[0].groups()
    return found[0].group(), float(number.replace("p", ".")) * (1e9 if unit in "bB" else 1e6)


def unsplit(program: programs.Program) -> str:
    """Return a note if the mesh axis `fsdp` splits no parameter; an empty string if it does.

    Args:
      program: The experiment's program.
    """
    number = program.sizes[FSDP]
    found = [p for name, p in program.placements.items() if name.startswith("parameters/")]
    entries = [entry for placement in found for entry in placement.spec]
    if number == 1 or any(e == FSDP or (isinstance(e, tuple) and FSDP in e) for e in entries):
        return ""
    largest = max(found, key=lambda placement: placement.bytes_per_device)
    reason = f"{largest.name.removeprefix('parameters/')}: {largest.reason}"
    return f"{FSDP}={number} splits the batch, but none of the {len(found)} parameters ({reason})"


_RULES = "parallelism.rules"


def _unused_rules(graph: Graph, program: programs.Program) -> Iterator[Problem]:
    """Yield a problem for each rule of a logical axis that no parameter has."""
    # The default rules are for many models, and no model has all of their axes.
    axes = _logical_axes(program)
    unused = set(program.experiment.parallelism.rules.parameters) - axes - set(parameter_rules())
    for name in sorted(unused):
        path = graphs.join(f"{_RULES}.parameters", name)
        near = graphs.nearest(name, axes | set(parameter_rules()))
        remedy = "" if near else f"remove it; the parameters have {listed(sorted(axes), 12)}"
        what, origin = f"no parameter has a logical axis {name!r}", graphs.origin_of(graph, path)
        yield Problem(what, path, origin, remedy, near)


def unused_activation_rules(program: programs.Program) -> str:
    """Return a note on rules for activations that look misspelt; an empty string without any.

    Args:
      program: The experiment's program.
    """
    # A note only: a layer of the user may constrain its activations by names of its own, which show
    # in its trace alone.
    rules = program.experiment.parallelism.rules.activations
    known = _logical_axes(program) | set(activation_rules_table())
    known |= {axis for axes in program.experiment.task.batch_axes.values() for axis in axes if axis}
    notes = []
    for name in sorted(set(rules) - known):
        near = graphs.nearest(name, known)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        notes.append(
            f"{_RULES}.activations.{name}: neither a parameter nor the batch has this axis{meant}"
        )
    return "; ".join(notes)


def _logical_axes(program: programs.Program) -> set[str]:
    """Return the logical axes of all arrays of the state."""
    placements = program.placements.values()
    return {axis for placement in placements for axis in placement.axes or () if axis}


def num_classes(experiment: programs.Experiment) -> int | None:
    """Return how many classes the model of an experiment predicts; None where that is unknown.

    Args:
      experiment: A built experiment.
    """
    found = getattr(experiment.model, "keywords", {}).get("num_classes")
    return found if isinstance(found, int) else None


def constant_metrics(experiment: programs.Experiment) -> str:
    """Return a note on metrics that are the same for every model; an empty string without any.

    Args:
      experiment: A built experiment.
    """
    number = num_classes(experiment)
    found = [one.name for one in experiment.task.metrics if one.is_constant(number)]
    return f"{', '.join(found)} is always 1 with {number} classes" if found else ""


def contradiction(name: str, parameters: int) -> str:
    """Return a message if the size that a name claims contradicts the count; else an empty string.

    Args:
      name: The name.
      parameters: The number of scalars in the model's parameters.

    Returns:
      The message; empty also where the name claims nothing.

    Example:
      >>> from luthier import planner
      >>> planner.contradiction("llama_7b", 6_738_415_616)
      ''
      >>> planner.contradiction("llama_7b", 1_000_000)
      "'llama_7b' says 7b, but the model has 1,000,000 parameters"
    """
    claim = claimed(name)
    if claim is None or claim[1] / FACTOR <= parameters <= claim[1] * FACTOR:
        return ""
    return f"{name!r} says {claim[0]}, but the model has {parameters:,} parameters"


# Checks that no single component can make, because they need the experiment and its devices.


def check(
    graph: Graph, program: programs.Program, unread: list[str] | None = None
) -> list[Problem]:
    """Return the problems of an experiment as a whole, on its devices.

    Args:
      graph: The experiment graph.
      program: Its program.
      unread: Takes a note for each check that is skipped because the data is not available, and
        holds earlier ones; None means that the experiment is to be run, and needs its data.

    Raises:
      DataError: The data is not available, and is needed.
    """
    # All problems are collected, so that one attempt shows all of them. Each has the path of the
    # setting to change and its origin (a file, an override), which the components cannot know.
    experiment = program.experiment
    task, training = experiment.task, experiment.training
    problems: list[Problem] = []
    for name, evaluation in experiment.evaluations.items():
        path = graphs.join("evaluations", name)
        if evaluation.weights is programs.Weights.EMA and training.ema is None:
            remedy = "set training.ema=Ema(decay=0.999), or weights=PARAMETERS"
            setting = f"{path}.weights"
            origin = graphs.origin_of(graph, setting)
            problems.append(Problem("there is no moving average", setting, origin, remedy))
        rows = f"{path}.global_batch_size"
        try:
            program.abstract_batch(evaluation.data, evaluation.global_batch_size, rows)
        except ValidationError as error:
            # Another problem, such as a rule that two dimensions share, has another origin.
            origin = graphs.origin_of(graph, rows)
            problems += [
                dataclasses.replace(p, origin=p.origin or origin) if p.path == rows else p
                for p in error.problems
            ]
    known = dict.fromkeys(experiment.evaluations, task.metrics)
    selectors: dict[str, Any] = {}
    if training.early_stopping is not None:
        selectors["training.early_stopping.metric"] = training.early_stopping.metric
    if experiment.checkpoints is not None and experiment.checkpoints.keep_best is not None:
        selectors["checkpoints.keep_best"] = experiment.checkpoints.keep_best
    for path, selector in selectors.items():
        origin = graphs.origin_of(graph, path)
        for problem in selector.check(known, num_classes(experiment)):
            below = f"{path}.{problem.path}" if problem.path else path
            problems.append(dataclasses.replace(problem, path=below, origin=origin))
    problems += [
        *_unused_rules(graph, program),
        *_vocabulary(graph, experiment, unread),
        *_classes(graph, experiment),
        *_masks(graph, program),
    ]
    problems += [*_watched(graph, training, experiment.evaluations), *_size(graph, program)]
    if training.accumulation > 1:
        problems += _couplings(graph, experiment)
    return problems


def _couplings(graph: Graph, experiment: programs.Experiment) -> list[Problem]:
    """Return a problem for each part of the loss that couples rows: then batches cannot be cut."""
    # A coupled loss that is a `CoupledTask` gives statistics that add up over microbatches. Layers
    # say that they couple rows by a class attribute, so the model is built, abstractly, to look at
    # all of its modules.
    task, reasons = experiment.task, []
    if isinstance(task.reduction, BatchCoupled) and not isinstance(task, CoupledTask):
        reasons.append(task.reduction.reason)
    model = nnx.eval_shape(lambda: model_of(experiment))
    for path, module in nnx.iter_modules(model):
        reason = getattr(module, "COUPLES", None)
        if isinstance(module, nnx.BatchNorm) and not module.use_running_average:
            reason = "batch statistics"
        if reason is not None:
            reasons.append(f"{reason} of {'.'.join(map(str, path))}")
            break  # one of many says enough
    setting, remedy = "training.accumulation", "set training.accumulation=1"
    origin = graphs.origin_of(graph, setting)
    start = "accumulation changes a loss in which examples depend on each other"
    return [Problem(f"{start}: {why}", setting, origin, remedy) for why in reasons]


def trained(program: programs.Program) -> list[Placement]:
    """Return the placements of the parameters that are trained."""
    start = "parameters/"
    placements = {n[len(start) :]: p for n, p in program.placements.items() if n.startswith(start)}
    return list(chosen(placements, program.experiment.training.trainable).values())


def _masks(graph: Graph, program: programs.Program) -> list[Problem]:
    """Return a problem for each mask of the optimizer that matches no trained parameter."""
    names = [placement.name.partition("/")[2] for placement in trained(program)]
    found = []
    for problem in program.experiment.optimizer.check(names):
        path = f"optimizer.{problem.path}"
        found.append(dataclasses.replace(problem, path=path, origin=graphs.origin_of(graph, path)))
    return found


_NOT_COMPARED = "the vocabulary was not compared with the model's"


def _vocabulary(
    graph: Graph, experiment: programs.Experiment, unread: list[str] | None
) -> list[Problem]:
    """Return a problem if the tokenizer has more tokens than the model has embeddings."""
    # The reverse is common (tables are padded) and right. The size of the vocabulary may have to be
    # read from the network or the disk: a plan notes that it could not, a run needs it.
    if any(note.startswith(_NOT_COMPARED) for note in unread or ()):
        return []  # it cannot be reached, which may have taken a while to find out
    tokenizer = getattr(experiment.data, "tokenizer", None)
    size = getattr(experiment.model, "keywords", {}).get("vocab_size")
    if tokenizer is None or not isinstance(size, int):
        return []
    try:
        needed = tokenizer.vocab_size
    except DataError as error:
        if unread is None:
            raise
        unread.append(f"{_NOT_COMPARED}: {error.problems[0].what}")
        return []
    if size >= needed:
        return []
    path, what = "model.vocab_size", f"{size} is smaller than the tokenizer's {needed} tokens"
    return [Problem(what, path, _origin_of_size(graph, path), f"set {path}={needed}")]


def _origin_of_size(graph: Graph, path: str) -> str:
    # A component of the user's may make the model, with arguments that the graph does not have.
    model = graphs.get(graph, "model")
    is_given = path.partition(".")[2] in getattr(model, "__arguments__", ())
    return graphs.origin_of(graph, path) if is_given else ""


def _classes(graph: Graph, experiment: programs.Experiment) -> Iterator[Problem]:
    """Yield a problem where the data has more classes than the model distinguishes."""
    size = num_classes(experiment)
    try:
        needed = getattr(experiment.data, "num_classes", None)
    except DataError:
        return  # reported when the data is read
    if size is not None and isinstance(needed, int) and size < needed:
        path = "model.num_classes"
        what = f"{size} is smaller than the data's {needed} classes"
        yield Problem(what, path, _origin_of_size(graph, path), f"set {path}={needed}")


def _watched(graph: Graph, training: Any, evaluations: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem where early stopping watches an evaluation that runs at the end only."""
    if training.early_stopping is None:
        return
    name = training.early_stopping.metric.evaluation
    if name in evaluations and evaluations[name].every is None:
        path = "training.early_stopping"
        what = f"can never stop anything: {name} is evaluated at the end only"
        remedy = f"set evaluations.{name}.every"
        yield Problem(what, path, graphs.origin_of(graph, path), remedy)


def _size(graph: Graph, program: programs.Program) -> Iterator[Problem]:
    """Yield a problem where the experiment's name claims another size than its model has."""
    name = program.experiment.name
    sizes = [p.shape for n, p in program.placements.items() if n.startswith("parameters/")]
    problem = contradiction(name, sum(map(math.prod, sizes)))
    if problem:
        remedy = "change the name or the model"
        yield Problem(problem, "name", graphs.origin_of(graph, "name"), remedy)


def unsaved_residuals(graph: Graph, forward: jex_core.ClosedJaxpr) -> list[Problem]:
    """Return a problem for each residual to be saved that no layer of the model names.

    Args:
      graph: The experiment graph.
      forward: The jaxpr of the loss.
    """
    # `jax.checkpoint_policies.save_only_these_names` ignores names that do not occur, so a typo
    # would silently recompute everything.
    there, problems = set(_residuals(forward)), []
    for place in graphs.walk(graph, defaults=False, once=True):
        node = place.value
        made = getattr(node, "__fn_or_cls__", None)
        if made is not layers.SaveNamed and made is not layers.OffloadNamed:
            continue
        path = f"{place.path}.names"
        for name in graphs.evaluate(node.names):
            if name not in there:
                what, near = f"no layer of the model has {name!r}", graphs.nearest(name, there)
                remedy = "" if near else f"there are {', '.join(sorted(there)) or 'none'}"
                origin = graphs.origin_of(graph, path)
                problems.append(Problem(what, path, origin, remedy, near))
    return problems


def _residuals(jaxpr: Any) -> Iterator[str]:
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "name":
            yield equation.params["name"]
        for inside in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inside):
                yield from _residuals(inside)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")
