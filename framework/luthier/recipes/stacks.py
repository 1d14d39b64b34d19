"""Pipelines and rematerialization of stacks of layers, as fiddlers."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import graph, layers
from luthier.errors import BadInput, Problem
from luthier.recipes.selection import is_experiment

_BATCH = "parallelism.rules.activations.batch"


def pipeline(
    experiment: fdl.Buildable,
    stages: int,
    microbatches: int,
    schedule: layers.PipelineSchedule | type[layers.PipelineSchedule] = layers.GPipe,
) -> Any:
    """Return an experiment whose stacks of layers are pipelines: the same parameters and gradient.

    The embedding before the layers and the logits after them are split over the stages by rows of
    the batch.

        luthier show configs.lm.quickstart 'fiddler:pipeline(stages=2, microbatches=4)' --changes

    Args:
      experiment: A graph of an experiment or of a model; it is not changed.
      stages: Devices along the mesh axis `stage`, each of which holds a part of the layers.
      microbatches: Number of parts that the rows of a batch are cut into: a multiple of the stages.
        More of them make the bubble smaller.
      schedule: Schedule of the stages: a class of `luthier.layers` (`GPipe`), or a node of one
        (`Circular(repeats=4)`).

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The model has no stack of layers, or one whose layers cannot be in a pipeline.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.pipeline(config, stages=2, microbatches=4)
      >>> changed.model.stack
      <Config[Pipelined(microbatches=4, schedule=<Config[GPipe()]>)]>

    Source: Huang et al. 2018, arXiv 1811.06965; Narayanan et al. 2021, arXiv 2104.04473.
    """
    # All places of a stack are replaced (a model may have several), and share one node of the
    # schedule, so that one override moves all of them. The stage axis comes first in the rule of
    # the batch: outside of the layers, the stages split rows, instead of repeating the same work.
    changed = graph.copy_graph(experiment)
    whole = is_experiment(changed)
    prefix = "model." if whole else ""
    places = [
        place
        for place in graph.walk(changed)
        if place.path.startswith(prefix) and place.part == "stack"
    ]
    problems = [problem for place in places for problem in _unfit(place)]
    if not places:
        remedy = "the fiddler is for models of equal layers, such as Decoder"
        problems.append(Problem("the model has no stack of layers", "model", "", remedy))
    if problems:
        raise BadInput(problems)
    node = schedule if isinstance(schedule, fdl.Config) else fdl.Config(schedule)
    # `remat` is the only setting that a loop and a pipeline have in common. A stack that is a
    # pipeline already is rebuilt, with the default `stage_remat`.
    for place in places:
        kept = {"remat": place.value.remat} if _sets_remat(place.value) else {}
        stack = fdl.Config(layers.Pipelined, microbatches=microbatches, schedule=node, **kept)
        graph.set_value(changed, place.path, stack)
    if whole:
        graph.set_value(changed, "parallelism.mesh.stage", stages)
        batch = tuple(graph.get(changed, _BATCH))
        others = tuple(axis for axis in batch if axis != "stage")
        graph.set_value(changed, _BATCH, ("stage", *others))
    return changed


def _unfit(place: Any) -> list[Problem]:
    made = getattr(place.value, "__fn_or_cls__", type(place.value))
    if made in (layers.Scanned, layers.Pipelined):
        return []
    what = f"the layers of {made.__name__} cannot be in a pipeline"
    return [Problem(what, place.path, remedy=f"set {place.path}=Scanned")]


def _sets_remat(stack: Any) -> bool:
    return isinstance(stack, fdl.Buildable) and "remat" in stack.__arguments__


# Rematerialization as a fiddler: less memory for more FLOPs.


def remat(
    experiment: fdl.Buildable, policy: layers.Remat | type[layers.Remat] = layers.FullRemat
) -> Any:
    """Rematerialize activations in every layer stack; gradients do not change.

    All stacks share the policy, so one override changes it for all of them.

        luthier show configs.lm.quickstart 'fiddler:remat(luthier.layers.FullRemat)' --changes

    Args:
      experiment: A graph of an experiment or of a model; it is not changed.
      policy: The remat policy. This is a class of `luthier.layers` (`FullRemat`,
        `SaveProjections`, `NoRemat`), or a node of such a class: `SaveNamed(names=["query"])`,
        `OffloadNamed(names=["query"])` or `SaveWithin(bytes_per_layer=2**24)`.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The model has no stack of layers.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.remat(config)
      >>> changed.model.stack.remat
      <Config[FullRemat()]>

    Source: Chen et al. 2016, arXiv:1604.06174, section 4.
    """
    # Each stack has the setting `remat`, at its default too; one node is put into all of them.
    changed = graph.copy_graph(experiment)
    prefix = "model." if is_experiment(changed) else ""
    found = [
        place.path
        for place in graph.walk(changed)
        if place.path.startswith(prefix) and place.part == "remat"
    ]
    if not found:
        remedy = "the fiddler is for models of equal layers, such as Decoder"
        raise BadInput(Problem("the model has no stack of layers", "model", "", remedy))
    node = policy if isinstance(policy, fdl.Config) else fdl.Config(policy)
    for path in found:
        graph.set_value(changed, path, node)
    return changed
