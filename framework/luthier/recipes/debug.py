"""A run of seconds that exercises everything, as a fiddler."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import data, graph
from luthier.errors import BadInput, Problem
from luthier.recipes.scale import GraphSizes
from luthier.recipes.selection import is_experiment

SUFFIX = "-debug"
STEPS = 2
ROWS = 8
LAYERS = 2
LENGTH = 128
VOCABULARY = 512


def debug(experiment: fdl.Buildable) -> Any:
    """Shrink an experiment for a smoke test that takes seconds on a CPU.

    The model keeps its components, but it has only two layers and the minimum number of heads.
    Training takes two steps on eight rows, and schedules are shortened in proportion. If documents
    are packed, a row has at most 128 tokens. Evaluation, sampling and checkpointing still run, but
    `restore` and Weights & Biases are turned off. The axes of the mesh have their default sizes.
    The fiddler appends `-debug` to the run name.

        luthier train configs.lm.quickstart fiddler:debug

    Args:
      experiment: A graph of an experiment; it is not changed. Sizes that are already small are
        kept.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.debug(config)
      >>> changed.model.num_layers, changed.training.global_batch_size
      (2, 8)
    """
    if not is_experiment(experiment):
        raise BadInput(Problem("a model alone cannot be trained", remedy="give an experiment"))
    changed = graph.copy_graph(experiment)
    name = graph.evaluate(changed.name)
    if not name.endswith(SUFFIX):
        graph.set_value(changed, "name", name + SUFFIX)
    _shrink_model(changed)
    _shrink_data(changed)
    _shrink_training(changed)
    for path in ("restore", "records.wandb"):
        if graph.get(changed, path) is not None:
            graph.set_value(changed, path, None)
    # Deleted, not set to 1: the defaults of the mesh run on any number of devices.
    mesh = graph.get(changed, "parallelism.mesh")
    for axis in list(getattr(mesh, "__arguments__", ())):
        delattr(mesh, axis)
    return changed


def _shrink_model(changed: Any) -> None:
    try:
        sizes = GraphSizes(changed)
    except BadInput:
        return  # a model without known sizes stays as it is
    sizes.deepen(min(sizes.num_layers, max(LAYERS, sizes.num_kinds)))
    heads = [graph.evaluate(place.value) for place in _named(changed, "num_heads")]
    per_unit = min(heads, default=0) // sizes.units
    sizes.widen(min(sizes.units, 1 if per_unit > 1 else 2))


def _shrink_data(changed: Any) -> None:
    for name, cls, most in (
        ("length", data.Packed, LENGTH),
        ("length", data.Prepared, LENGTH),
        ("vocab_size", data.TrainedBpe, VOCABULARY),
    ):
        for place in _named(changed, name):
            if getattr(place.owner, "__fn_or_cls__", None) is cls:
                _at_most(changed, place.path, most)


def _shrink_training(changed: Any) -> None:
    # Steps of schedules shrink in proportion. A setting that shares its value with `training.steps`
    # shrinks with that.
    steps = graph.evaluate(changed.training.steps)
    plain = [
        place
        for place in graph.walk(changed.optimizer, once=True)
        if str(place.part).endswith("_steps")
        and type(place.value) is int
        and isinstance(place.owner, fdl.Buildable)
    ]
    if graph.is_deferred(steps):
        # In epochs: only the data knows how many. Warmups are a tenth of the steps, mostly.
        steps = 10 * max([STEPS, *(place.value for place in plain)])
        graph.set_value(changed, "training.steps", steps)
    for place in plain:
        # A warmup ends before the run does, however long it was.
        most = STEPS - 1 if "warmup" in str(place.part) else place.value
        shrunk = min(place.value * STEPS // steps, most)
        graph.set_value(changed.optimizer, place.path, shrunk)
    _at_most(changed, "training.steps", STEPS)
    pieces = graph.evaluate(graph.get(changed, "training.accumulation"))
    _at_most(changed, "training.global_batch_size", -(-ROWS // pieces) * pieces)
    for name in graph.evaluate(changed.__arguments__.get("evaluations", {})):
        path = f"evaluations[{name!r}].num_batches"
        if (graph.get(changed, path) or STEPS) > 1:
            graph.set_value(changed, path, 1)


def _named(changed: Any, name: str) -> list[Any]:
    places = graph.walk(changed, defaults=False, once=True)
    return [p for p in places if p.part == name and type(graph.evaluate(p.value)) is int]


def _at_most(changed: Any, path: str, most: int) -> None:
    if graph.evaluate(graph.get(changed, path)) > most:
        graph.set_value(changed, path, most)
