"""Smoke-test configs of large experiments, and shared values that are set by name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fiddle as fdl

from luthier import data, durations, graph, layers
from luthier.data.packed import TokenNode
from luthier.errors import BadInput, Problem
from luthier.graph.paths import Place
from luthier.graph.values import is_constant, operands
from luthier.parallel import AXES
from luthier.recipes.scale import EVEN, HEADS, WIDTHS, GraphSizes
from luthier.recipes.selection import is_experiment

# Shared values set by name, as a fiddler.


def shared(experiment: fdl.Buildable, **values: Any) -> Any:
    """Return an experiment with other shared values, and everything that is computed from them.

    A shared value that a setting holds directly can also be set there; this reaches those that
    settings only compute with.

        luthier show configs.lm.quickstart 'fiddler:shared(length=64)' --changes

    Args:
      experiment: A graph of an experiment or of a part of one; it is not changed.
      values: New values by the names of shared values.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: There is no shared value of that name.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.shared(config, length=64)
      >>> changed.data.length.value
      64
    """
    # Values inside of arithmetic have no path, so the graph is walked, and each expression down to
    # its operands. Several values may have one name: all of them are set.
    changed = graph.copy_graph(experiment)
    found: dict[str, list[Any]] = {}
    for place in graph.walk(changed, defaults=False):
        for node in constants(place.value):
            name = node.__arguments__.get("name", "")
            # By identity: equal values that are not one node are set one by one, too.
            if not any(node is other for other in found.setdefault(name, [])):
                found[name].append(node)
    named = [name for name in found if name]
    problems = [
        Problem(
            f"no shared constant is called {name!r}",
            nearest=graph.nearest(name, named),
            remedy=f"there are {', '.join(sorted(named))}" if named else "set it by its path",
        )
        for name in values
        if name not in named
    ]
    if problems:
        raise BadInput(problems)
    for name, value in values.items():
        for node in found[name]:
            graph.set_value(node, "value", value)
    return changed


def constants(node: Any) -> Iterator[Any]:
    """Yield the constants of a value: itself, or those of its arithmetic."""
    if is_constant(node):
        yield node
    elif graph.is_value_node(node):
        for operand in operands(node):
            yield from constants(operand)


# Schedules in few steps: their parts keep their order, and none is lost.

_LISTS = ("boundaries",)
"""Lists of step numbers, beside settings that end with `_steps`."""


def shorten(changed: fdl.Buildable, steps: int) -> None:
    """Shorten an experiment to few steps, in place, with all parts of its schedules.

    The longest schedule ends with the run. Numbers of steps keep their order, and those that differ
    still do, so that the run may take a few steps more than requested. Evaluations and checkpoints
    run at least twice.

    Args:
      changed: A graph of an experiment; one that is not longer keeps its steps.
      steps: Steps of the run.
    """
    if graph.is_deferred(graph.evaluate(changed.training.steps)):
        # In epochs: only the data knows how many. Warmups are a tenth of the steps, mostly.
        longest = max([steps, *(number for number, _ in _numbers(changed.optimizer))])
        graph.set_value(changed, "training.steps", 10 * longest)
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
    """Map each number of steps: in proportion to the longest, but after the one before."""
    numbers: dict[int, int] = {}
    last = 0
    for number in found:
        last = numbers[number] = max(-(-number * steps // found[-1]), last + 1)
    return numbers


def _numbers(optimizer: Any) -> Iterator[tuple[int, Callable[[int], None]]]:
    """Yield numbers of steps with their setters: plain ones, and constants, once each."""
    # By name: only the optimizer's settings that end with `_steps`, and lists of boundaries, are
    # numbers of steps. A constant may be in several expressions, and must be set once.
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


# The smoke-test config of an experiment, which trains on a CPU on a mesh of the same axes, as a
# fiddler.

SUFFIX = "-tiny"
STEPS = 10
ROWS = 8
LAYERS = 2
HEAD_DIM = 16
WIDTH = 32
LENGTH = 32
VOCABULARY = 512
EXPERTS = 4
DEVICES = 8
"""Assumed number of devices, for the size of an axis that fills the mesh."""

_MESH = "parallelism.mesh"
_BATCH = "parallelism.rules.activations.batch"
_ROWS = (TokenNode, data.Synthetic, layers.LearnedPositions)
"""Classes whose `length` is that of rows of tokens."""


def tiny(experiment: fdl.Buildable, axis_size: int = 2) -> Any:
    """Return a smoke-test config: the same parts, small, on a mesh of the same axes.

    Mesh axes in use, and axes across slices, have two devices; `data`, if it is not in use, fills
    the remaining devices. Layers, widths, heads, experts, rows, microbatches and steps are as few
    as these allow, and schedules are shortened with the steps. Rows are short; text is read as
    bytes, so that no vocabulary is needed, unless the data is already tokenized. `restore` and
    Weights & Biases are turned off. Runs have a different name.

        luthier train configs.lm.quickstart fiddler:tiny

    Args:
      experiment: A graph of an experiment; it is not changed. Sizes that are already small are
        kept.
      axis_size: Devices along a mesh axis, at most.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.tiny(config)
      >>> changed.model.num_layers, changed.training.steps.value
      (2, 10)
    """
    # The mesh comes first, because heads, layers, experts and rows must stay divisible by its axes;
    # batches come last, because their rows depend on it and on the microbatches.
    if not is_experiment(experiment):
        raise BadInput(
            Problem("a model alone has no smoke-test config", remedy="give an experiment")
        )
    changed = graph.copy_graph(experiment)
    name = graph.evaluate(changed.name)
    if not name.endswith(SUFFIX):
        graph.set_value(changed, "name", name + SUFFIX)
    for axis in (*AXES, *(f"across_slices.{axis}" for axis in AXES)):
        _at_most(changed, f"{_MESH}.{axis}", axis_size)
    _fill(changed)
    sizes = _mesh_sizes(changed)
    _shrink_model(changed, sizes)
    _shrink_data(changed)
    shorten(changed, STEPS)
    _shrink_batches(changed, sizes)
    for path in ("restore", "records.wandb"):
        if graph.get(changed, path) is not None:
            graph.set_value(changed, path, None)
    return changed


def _fill(changed: Any) -> None:
    mesh = graph.get(changed, _MESH)
    found = {axis: graph.evaluate(graph.get(mesh, axis)) for axis in AXES}
    if found["data"] == 1 and -1 not in found.values():
        graph.set_value(changed, f"{_MESH}.data", -1)


def _mesh_sizes(changed: Any) -> dict[str, int]:
    """Return the size of every mesh axis over all slices."""
    mesh = graph.get(changed, _MESH)
    found = {axis: graph.evaluate(graph.get(mesh, axis)) for axis in AXES}
    across = {axis: graph.evaluate(graph.get(mesh, f"across_slices.{axis}")) for axis in AXES}
    fixed = math.prod(size for size in found.values() if size != -1) * math.prod(across.values())
    filling = max(1, DEVICES // fixed)
    return {a: (filling if n == -1 else n) * across[a] for a, n in found.items()}


def _shrink_model(changed: Any, sizes: dict[str, int]) -> None:
    # Layers: a multiple of one block of alternating kinds, and in a pipeline of stages times
    # repeats.
    for place in _settings(changed, "num_experts"):
        _at_most(changed, place.path, max(EXPERTS, sizes["expert"]))
    try:
        model = GraphSizes(changed)
    except BadInput:
        return  # a model without known sizes stays as it is
    repeats = [graph.evaluate(place.value) for place in _settings(changed, "repeats")]
    blocks = model.num_kinds * (sizes["stage"] * max(repeats, default=1) if _pipes(changed) else 1)
    model.deepen(min(model.num_layers, -(-LAYERS // blocks) * blocks))
    model.widen(_units(changed, model.units, sizes["tensor"]))
    _narrow(changed)


def _units(changed: Any, units: int, shards: int) -> int:
    """Return the smallest width, in units, of which all shards get an equal part."""
    # At least two heads remain.
    numbers = [graph.evaluate(p.value) for name in HEADS for p in _settings(changed, name)]
    heads = [number // units for number in numbers if number > 1]
    for fewer in range(1, units):
        if all(n * fewer % shards == 0 for n in heads) and min(heads, default=1) * fewer > 1:
            return fewer
    return units


def _narrow(changed: Any) -> None:
    """Halve all widths together, as often as heads and layers stay large enough."""
    # Together, because widths are related (heads times their size is the width of the model): by
    # one factor the relations hold. Computed widths follow by themselves.
    places = [place for name in (*WIDTHS, "head_dim") for place in _settings(changed, name)]
    places = [place for place in places if not _is_computed(place.value)]
    numbers = [graph.evaluate(place.value) for place in places]
    heads = [graph.evaluate(place.value) for place in _settings(changed, "num_heads")]
    own = any(place.part == "head_dim" for place in places)
    least = {"head_dim": HEAD_DIM, "dim": WIDTH if own else HEAD_DIM * max(heads, default=2)}
    limits = [least.get(str(place.part), WIDTH) for place in places]
    halvings = 1
    while all(
        n % (2 * halvings * EVEN) == 0 and n >= 2 * halvings * limit
        for n, limit in zip(numbers, limits, strict=True)
    ):
        halvings *= 2
    wanted = [(place.path, n // halvings) for place, n in zip(places, numbers, strict=True)]
    for path, number in wanted:
        _at_most(changed, path, number)


def _shrink_data(changed: Any) -> None:
    texts = [place for place in _places(changed) if _is_a(place.value, TokenNode)]
    if not texts and not any(_is_a(place.value, data.Synthetic) for place in _places(changed)):
        return
    for name in ("length", "max_length"):
        for place in _settings(changed, name, whole=True):
            if any(_is_a(place.owner, cls) for cls in _ROWS):
                _at_most(changed, place.path, LENGTH)
    if any(not _is_a(place.value, data.Packed) for place in texts):
        return  # data that consists of tokens keeps its vocabulary
    for place in _places(changed):
        if place.part == "tokenizer" and not _is_a(place.value, data.TrainedBpe):
            graph.set_value(changed, place.path, fdl.Config(data.Bytes))
    for name, most in (("vocab_size", VOCABULARY), ("mask_token", VOCABULARY - 1)):
        for place in _settings(changed, name, whole=True):
            _at_most(changed, place.path, most)


def _shrink_batches(changed: Any, sizes: dict[str, int]) -> None:
    stages = sizes["stage"]
    shards = math.prod(sizes[axis] for axis in graph.get(changed, _BATCH))
    parts = 1
    for place in _settings(changed, "microbatches"):
        _at_most(changed, place.path, 2 * stages)
        parts = max(parts, graph.evaluate(graph.get(changed, place.path)))
    _at_most(changed, "training.accumulation", 2)
    accumulation = graph.evaluate(graph.get(changed, "training.accumulation"))
    # A microbatch is split by rows as a batch is, but for the stages.
    unit = accumulation * math.lcm(shards, parts * (shards // stages if _pipes(changed) else 1))
    rows = -(-ROWS // unit) * unit
    _at_most(changed, "training.global_batch_size", rows)
    for name in graph.evaluate(changed.__arguments__.get("evaluations", {})):
        _at_most(changed, f"evaluations[{name!r}].global_batch_size", rows)
        path = f"evaluations[{name!r}].num_batches"
        if (graph.get(changed, path) or ROWS) > 1:
            graph.set_value(changed, path, 1)


def _places(changed: Any) -> list[Place]:
    return list(graph.walk(changed, defaults=False))


def _settings(changed: Any, name: str, whole: bool = False) -> list[Place]:
    """Return the places of a setting that is a number, in the model or in the whole graph."""
    return [
        place
        for place in _places(changed)
        if place.part == name
        and isinstance(place.owner, fdl.Buildable)
        and type(graph.evaluate(place.value)) is int
        and (whole or place.path.startswith("model."))
    ]


def _pipes(changed: Any) -> bool:
    return any(_is_a(place.value, layers.Pipelined) for place in _places(changed))


def _is_a(value: Any, cls: type) -> bool:
    made = getattr(value, "__fn_or_cls__", None)
    return isinstance(made, type) and issubclass(made, cls)


def _is_computed(value: Any) -> bool:
    return graph.is_value_node(value) and "value" not in value.__arguments__


def _at_most(changed: Any, path: str, most: int) -> None:
    if graph.evaluate(graph.get(changed, path)) > most:
        graph.set_value(changed, path, most)
