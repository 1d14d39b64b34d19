"""Parallelism as fiddlers: one model, with unchanged results, over any number of devices.

Each sets the size of one mesh axis, so they compose: `fiddler:fsdp(4) fiddler:tensor(2)`. A size of
-1 fills the mesh up to the available devices; at most one axis fills, and the last fiddler wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fiddle as fdl

from luthier import graph, layers
from luthier.errors import BadInput, Problem
from luthier.graph import Graph
from luthier.graph.copies import as_node
from luthier.graph.paths import Place
from luthier.parallel import AXES
from luthier.parallel.rules import RESIDUAL_LENGTH
from luthier.recipes.selection import is_experiment

_MESH = "parallelism.mesh"
_PARAMETERS = "parallelism.rules.parameters"
_ACTIVATIONS = "parallelism.rules.activations"


def data(experiment: fdl.Buildable, size: int = -1) -> Any:
    """Return an experiment whose batches are split; every device holds all parameters.

        luthier show configs.lm.quickstart 'fiddler:data(2)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      size: Devices along the mesh axis `data`; -1 fills the mesh.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.data(config, 2)
      >>> changed.parallelism.mesh
      <Config[Mesh(data=2)]>
    """
    return _with_axes(experiment, data=size)


def fsdp(experiment: fdl.Buildable, size: int = -1) -> Any:
    """Return an experiment whose batches, parameters and optimizer state are split.

        luthier show configs.lm.quickstart fiddler:fsdp --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      size: Devices along the mesh axis `fsdp`; -1 fills the mesh.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.fsdp(config)
      >>> changed.parallelism.mesh
      <Config[Mesh(data=1, fsdp=-1)]>

    Source: Rajbhandari et al. 2019, arXiv 1910.02054, section 5 (stage 3).
    """
    return _with_axes(experiment, fsdp=size)


def hsdp(experiment: fdl.Buildable, replicas: int, size: int = -1) -> Any:
    """Return an experiment with several copies of everything, each of which is split.

    Parameters are gathered within a copy only; the copies add up their gradients.

        luthier show configs.lm.quickstart 'fiddler:hsdp(replicas=2)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      replicas: Copies: devices along the mesh axis `replica`.
      size: Devices along the mesh axis `fsdp`; -1 fills the mesh.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.hsdp(config, replicas=2)
      >>> changed.parallelism.mesh
      <Config[Mesh(replica=2, data=1, fsdp=-1)]>

    Source: Zhang et al. 2022, arXiv 2205.00119; Zhao et al. 2023, arXiv 2304.11277, section 3.2.2.
    """
    return _with_axes(experiment, replica=replicas, fsdp=size)


def tensor(experiment: fdl.Buildable, size: int = -1, sequence_parallel: bool = False) -> Any:
    """Return an experiment whose heads, hidden dimensions and vocabulary are split.

        luthier show configs.lm.quickstart 'fiddler:tensor(2)' --changes

    With `sequence_parallel`, the same devices also split the length of the residual stream between
    the products: norms, dropout and what is stored between layers. Instead of adding up the results
    of products on all of them, they add up a part of the length each, and gather it before the next
    product; the backward pass gathers it once more.

        luthier show configs.lm.quickstart 'fiddler:tensor(2, sequence_parallel=True)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      size: Devices along the mesh axis `tensor`; -1 fills the mesh.
      sequence_parallel: Whether to split the residual stream.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment, or its rules split the residual stream
        over `tensor` already.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.tensor(config, 2)
      >>> changed.parallelism.mesh
      <Config[Mesh(tensor=2)]>

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022,
      arXiv 2205.05198, section 4.2.2 (`sequence_parallel`).
    """
    changed = _with_axes(experiment, tensor=size)
    if sequence_parallel:
        rules = dict(graph.evaluate(graph.get(changed, _ACTIVATIONS)))
        if "tensor" in rules.get("embed", ()):
            what = "the residual stream is split over tensor already, along embed"
            path = f"{_ACTIVATIONS}.embed"
            raise BadInput(Problem(what, path, "", f"drop sequence_parallel, or set {path}=()"))
        if RESIDUAL_LENGTH in rules:
            graph.set_value(changed, f"{_ACTIVATIONS}.{RESIDUAL_LENGTH}", ("tensor",))
        else:  # a table of the user's own
            graph.set_value(changed, _ACTIVATIONS, rules | {RESIDUAL_LENGTH: ("tensor",)})
    return changed


def expert(experiment: fdl.Buildable, size: int = -1) -> Any:
    """Return an experiment whose experts are split; so are the rows of its batches.

        luthier show configs.lm.quickstart 'fiddler:expert(2)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      size: Devices along the mesh axis `expert`; -1 fills the mesh.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.expert(config, 2)
      >>> changed.parallelism.mesh
      <Config[Mesh(expert=2)]>

    Source: Lepikhin et al. 2020, arXiv 2006.16668, section 3.
    """
    return _with_axes(experiment, expert=size)


def sequence(experiment: fdl.Buildable, size: int = -1) -> Any:
    """Return an experiment whose rows are split along their length.

    Norms, feed-forward parts, embedding and loss see a part of each row. Attention gathers the
    keys and values of whole rows; `ring` and `all_to_all` do not. Parameters and the optimizer's
    state are split over the same devices, as by `fsdp`.

        luthier show configs.lm.quickstart 'fiddler:sequence(2)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      size: Devices along the mesh axis `sequence`; -1 fills the mesh.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.sequence(config, 2)
      >>> changed.parallelism.mesh
      <Config[Mesh(sequence=2)]>

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2 (along an axis of its own).
    """
    return _with_axes(experiment, sequence=size)


def ring(experiment: fdl.Buildable, size: int = -1) -> Any:
    """Return an experiment whose rows are split along their length, also in attention.

    Every core of attention becomes a `RingAttention` with the same mask and settings: no device
    holds the keys of a whole row. Causal rows are cut in zigzag, so that the work is even.
    Parameters are split as by `sequence`.

        luthier show configs.lm.quickstart 'fiddler:ring(4)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      size: Devices along the mesh axis `sequence`; -1 fills the mesh.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment, or its model has no attention.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.ring(config, 4)
      >>> changed.model.block.attention.core
      <Config[RingAttention()]>
      >>> changed.parallelism.mesh
      <Config[Mesh(sequence=4)]>

    Source: Liu, Zaharia and Abbeel 2023, arXiv 2310.01889.
    """
    return _swap_cores(_with_axes(experiment, sequence=size), _ring_core)


def all_to_all(experiment: fdl.Buildable, size: int = -1) -> Any:
    """Return an experiment whose rows are split along their length, and by heads in attention.

    Every core of attention is wrapped in an `AllToAllAttention`, which exchanges parts of the rows
    for heads and back. The heads must divide over the devices. Parameters are split as by
    `sequence`.

        luthier show configs.lm.quickstart 'fiddler:all_to_all(4)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      size: Devices along the mesh axis `sequence`; -1 fills the mesh.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment, or its model has no attention.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.all_to_all(config, 4)
      >>> changed.model.block.attention.core
      <Config[AllToAllAttention(core=<Config[AutoAttention()]>)]>

    Source: Jacobs et al. 2023, arXiv 2309.14509.
    """
    return _swap_cores(_with_axes(experiment, sequence=size), _exchanging_core)


def _with_axes(experiment: fdl.Buildable, **sizes: int) -> Any:
    if not is_experiment(experiment):
        raise BadInput(Problem("a model alone is on no mesh", remedy="give an experiment"))
    # Only one axis may fill the mesh. So that fiddlers compose in any order, a new one takes that
    # over, and the axis that had it, `data` by default, gets size 1.
    changed = graph.copy_graph(experiment)
    if -1 in sizes.values():
        for axis in AXES:
            if axis not in sizes and graph.evaluate(graph.get(changed, f"{_MESH}.{axis}")) == -1:
                graph.set_value(changed, f"{_MESH}.{axis}", 1)
    for axis, size in sizes.items():
        graph.set_value(changed, f"{_MESH}.{axis}", size)
    if "sequence" in sizes:
        # Devices that share a row hold the same parameters otherwise: then long rows would need the
        # memory of the whole state on each of them.
        own = graph.evaluate(graph.get(changed, _PARAMETERS)).get("embed")
        # Rules of the user's own may have none, or something that is reported later.
        if isinstance(own, tuple | list) and "sequence" not in own:
            graph.set_value(changed, f"{_PARAMETERS}.embed", (*own, "sequence"))
    return changed


def _swap_cores(changed: Any, make: Callable[[fdl.Buildable], fdl.Buildable]) -> Any:
    found = list(cores(changed.model))
    if not found:
        remedy = "use sequence, which splits everything but attention"
        raise BadInput(Problem("the model has no attention", "model", "", remedy))
    made: dict[int, fdl.Buildable] = {}
    for place in found:
        # A core that is used in many places stays one.
        key = id(place.value)
        if key not in made:
            made[key] = make(_without_exchange(as_node(place.value)))
        graph.set_value(changed.model, place.path, made[key])
    return changed


def cores(model: Graph) -> Iterator[Place]:
    """Yield the places of attention cores, except for those inside of `AllToAllAttention`."""
    # Walked with defaults, because most models leave the core at its default, which is then set. A
    # node that is shared by several owners comes up at each; an owner that is shared comes up once
    # per path, and is set once.
    known = (
        layers.EinsumAttention,
        layers.FusedAttention,
        layers.CudnnAttention,
        layers.SplashAttention,
        layers.AutoAttention,
        layers.AllToAllAttention,
    )
    seen: set[tuple[int, Any]] = set()
    for place in graph.walk(model):
        made = getattr(place.value, "__fn_or_cls__", type(place.value))
        within = getattr(place.owner, "__fn_or_cls__", type(place.owner))
        if not isinstance(made, type) or not issubclass(made, known):
            continue
        if within is layers.AllToAllAttention:
            continue
        if place.is_default or (id(place.owner), place.part) not in seen:
            seen.add((id(place.owner), place.part))
            yield place


def _without_exchange(core: fdl.Buildable) -> fdl.Buildable:
    if core.__fn_or_cls__ is not layers.AllToAllAttention:
        return core
    inner: fdl.Buildable = as_node(graph.get(core, "core"))
    return inner


def _exchanging_core(core: fdl.Buildable) -> fdl.Buildable:
    return fdl.Config(layers.AllToAllAttention, core=core)


def _ring_core(core: fdl.Buildable) -> fdl.Buildable:
    # A ring has the settings of the core that it replaces, by the same names.
    if core.__fn_or_cls__ is layers.RingAttention:
        return core
    settings = dict(core.__arguments__)
    for name in ("kernels", "max_documents"):  # of the kernels that are no part of a ring
        settings.pop(name, None)
    node = fdl.Config(layers.RingAttention, **settings)
    mask = graph.get(node, "mask")
    if getattr(mask, "__fn_or_cls__", type(mask)) is not layers.Causal:
        # Zigzag, the default, balances the work of causal masks, where the ends of rows have more
        # of it than their beginnings. For other masks contiguous parts are balanced.
        node.order = fdl.Config(layers.Contiguous)
    return node
