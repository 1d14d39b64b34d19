"""Sizes that names claim: `1b`, `125m`, `1.3B`; against the parameters that are counted."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from flax import nnx

from luthier import graph as graphs
from luthier import layers
from luthier import program as programs
from luthier.errors import DataError, Problem, ValidationError
from luthier.graph import Graph
from luthier.parallel import Placement
from luthier.program.state import chosen
from luthier.program.step import rngs_of
from luthier.tasks import BatchCoupled, CoupledTask

FACTOR = 2.0
"""How far a count may be from the size in a name: 1.9 billion may be called 1b, rounded down."""

TWINS = ("-debug", "-tiny")
"""How the names of smoke-test configs end; before it stands the name of the original."""

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:[.p]\d+)?)([mMbB])(?![A-Za-z0-9])")
_SEPARATED = re.compile(r"_(\d)_(\d+[mMbB])(?![A-Za-z0-9])")


def claimed(name: str) -> tuple[str, float] | None:
    """Return the size that a name claims, as it is written and as a number; None without one.

    `llama_7b`, `gpt2-125M` and `lm_1_3b` claim one; `mnist5k`, `7bit` and `100mb` do not, nor do
    names of smoke-test configs, `llama_7b-tiny`.

    Args:
      name: The name of an experiment or of a recipe.
    """
    if name.endswith(TWINS):
        return None
    found = list(_SIZE.finditer(_SEPARATED.sub(r"_\1.\2", name).replace("_", " ")))
    if len(found) != 1:
        return None  # none, or names of several models, such as a teacher's
    number, unit = found[0].groups()
    return found[0].group(), float(number.replace("p", ".")) * (1e9 if unit in "bB" else 1e6)


def contradiction(name: str, parameters: int) -> str:
    """Return what is wrong with the size that a name claims; nothing where it fits.

    Args:
      name: The name.
      parameters: The scalars that were counted.
    """
    claim = claimed(name)
    if claim is None or claim[1] / FACTOR <= parameters <= claim[1] * FACTOR:
        return ""
    return f"{name!r} says {claim[0]}, but the model has {parameters:,} parameters"


# What makes an experiment unfit to run that no single component can see.


def check(
    graph: Graph, program: programs.Program, unread: list[str] | None = None
) -> list[Problem]:
    """Return what is wrong with an experiment as a whole, on its devices.

    Args:
      graph: The experiment graph.
      program: Its program.
      unread: Takes what cannot be looked at because the data is not here, and holds what could not
        be looked at before; None means that the experiment is to be run, and needs its data.

    Raises:
      DataError: The data is not here, and is needed.
    """
    experiment = program.experiment
    task, training = experiment.task, experiment.training
    problems: list[Problem] = []
    for name, evaluation in experiment.evaluations.items():
        path = f"evaluations.{name}"
        if evaluation.weights is programs.Weights.EMA and training.ema is None:
            remedy = "set training.ema=Ema(decay=0.999), or weights=PARAMETERS"
            problems.append(Problem("there is no moving average", f"{path}.weights", "", remedy))
        try:
            program.abstract_batch(
                evaluation.data, evaluation.global_batch_size, f"{path}.global_batch_size"
            )
        except ValidationError as error:
            problems += error.problems
    known = dict.fromkeys(experiment.evaluations, task.metrics)
    selectors = {}
    if training.early_stopping is not None:
        selectors["training.early_stopping.metric"] = training.early_stopping.metric
    if experiment.checkpoints is not None and experiment.checkpoints.keep_best is not None:
        selectors["checkpoints.keep_best"] = experiment.checkpoints.keep_best
    for path, selector in selectors.items():
        origin = graphs.origin_of(graph, path)
        for problem in selector.check(known):
            below = f"{path}.{problem.path}" if problem.path else path
            problems.append(dataclasses.replace(problem, path=below, origin=origin))
    problems += [
        *_vocabulary(experiment, unread),
        *_classes(graph, experiment),
        *_masks(graph, program),
    ]
    problems += [*_watched(graph, training, experiment.evaluations), *_size(graph, program)]
    if training.accumulation > 1:
        problems += _couplings(experiment)
    return problems


def _couplings(experiment: Any) -> list[Problem]:
    """Return what keeps a batch from being cut: rows that see each other without statistics."""
    task, reasons = experiment.task, []
    if isinstance(task.reduction, BatchCoupled) and not isinstance(task, CoupledTask):
        reasons.append(task.reduction.reason)
    model = nnx.eval_shape(lambda: experiment.model(rngs=rngs_of(experiment.seed)))
    for path, module in nnx.iter_modules(model):
        reason = getattr(module, "COUPLES", None)
        if reason is not None:
            reasons.append(f"{reason} of {'.'.join(map(str, path))}")
            break  # one of many says enough
    remedy = "set training.accumulation=1"
    start = "accumulation changes a loss whose rows see each other"
    return [Problem(f"{start}: {why}", "training.accumulation", "", remedy) for why in reasons]


def trained(program: programs.Program) -> list[Placement]:
    """Return where the parameters live that are trained."""
    start = "parameters/"
    placements = {n[len(start) :]: p for n, p in program.placements.items() if n.startswith(start)}
    return list(chosen(placements, program.experiment.training.trainable).values())


def _masks(graph: Graph, program: programs.Program) -> list[Problem]:
    """Return the masks of the optimizer that are for none of the trained parameters."""
    names = [placement.name.partition("/")[2] for placement in trained(program)]
    found = []
    for problem in program.experiment.optimizer.check(names):
        path = f"optimizer.{problem.path}"
        found.append(dataclasses.replace(problem, path=path, origin=graphs.origin_of(graph, path)))
    return found


_NOT_COMPARED = "the vocabulary was not compared with the model's"


def _vocabulary(experiment: Any, unread: list[str] | None) -> list[Problem]:
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
    what = f"{size} is smaller than the tokenizer's {needed} tokens"
    return [Problem(what, "model.vocab_size", remedy=f"set model.vocab_size={needed}")]


def _classes(graph: Graph, experiment: Any) -> Iterator[Problem]:
    """Yield a problem where the data has more classes than the model tells apart."""
    size = getattr(experiment.model, "keywords", {}).get("num_classes")
    try:
        needed = getattr(experiment.data, "num_classes", None)
    except DataError:
        return  # told when the data is looked at
    if isinstance(size, int) and isinstance(needed, int) and size < needed:
        path = "model.num_classes"
        what = f"{size} is smaller than the data's {needed} classes"
        yield Problem(what, path, graphs.origin_of(graph, path), f"set {path}={needed}")


def _watched(graph: Graph, training: Any, evaluations: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem where early stopping watches what is evaluated at the end only."""
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


def unsaved_residuals(graph: Graph, forward: Any) -> list[Problem]:
    """Return the names of residuals to be kept that no layer of the model gives to anything.

    Args:
      graph: The experiment graph.
      forward: The jaxpr of the loss.
    """
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
