"""The parameters of a model, by abstract evaluation: no array is made and no device is needed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import Problem, ValidationError
from luthier.graph import Graph
from luthier.layers.parameters import outlined
from luthier.parallel import array_bytes, format_spec
from luthier.program.program import components_at_fault
from luthier.program.state import chosen, split
from luthier.program.step import create_model, model_of

VOCABULARY = "vocab"
"""The logical axis of input and output embeddings."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a model.

    Args:
      name: Its dotted name.
      shape: Its global shape.
      dtype: Its type.
      axes: A logical axis, or None, for every dimension; None if it declares no axes.
      spec: The mesh axes along each dimension, as `fsdp, -`; empty where no devices were given.
      initializer: The expression of its initializer; empty if that has none.
      scalars: The number of its elements.
      active: The elements that are used for one token, on average: of experts, the chosen ones.
      bytes: Its size in bytes, over all devices.
      is_trained: Whether `training.trainable` leaves it to the optimizer.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...] | None
    spec: str
    initializer: str
    scalars: int
    active: int
    bytes: int
    is_trained: bool = True


def model_parameters(graph: Graph, devices: Sequence[Any] | None = None) -> list[Parameter]:
    """Return the parameters of a model, in the order of their names.

    Args:
      graph: The graph of an experiment, or of a model alone, as recipes return it.
      devices: The devices that an experiment's parameters are sharded over; None leaves the mesh
        out, so that experiments for any number of devices can be counted anywhere.

    Returns:
      Name, shape, dtype, logical axes, initializer and bytes of each; its sharding where devices
      are given.

    Raises:
      BadInput: The model cannot be built or, with devices, sharded.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> planner.model_parameters(decoders.gpt2_small())[0].shape
      (12, 12, 64)
    """
    found: dict[str, Any] = {}

    # Shapes leave the trace as its result; names, axes and initializers are Python values of the
    # same trace, and leave it by `found`. The graph is built inside, because the node of a model
    # that is not a template makes its arrays as soon as it is built.
    def outline() -> dict[str, jax.Array]:
        built = graphs.build(graph)
        precision, trainable = programs.Precision(), None
        if isinstance(built, programs.Experiment):
            precision, trainable = built.precision, built.training.trainable
            model = model_of(built)
        else:
            model = _model(built)
        structure, parameters, _ = split(model)
        found["axes"], found["initializers"] = structure.axes(), structure.initializers()
        found["shares"] = structure.active_shares()
        found["trained"] = set(chosen(parameters, trainable))
        return precision.stored(parameters)

    with components_at_fault("the model cannot be built", "model", graph), outlined():
        shapes = jax.eval_shape(outline)
    specs = {} if devices is None else _specs(graph, devices)
    return [
        Parameter(
            name=name,
            shape=tuple(aval.shape),
            dtype=jnp.dtype(aval.dtype).name,
            axes=found["axes"].get(name),
            spec=specs.get(name, ""),
            initializer=found["initializers"].get(name, ""),
            scalars=math.prod(aval.shape),
            active=round(math.prod(aval.shape) * found["shares"].get(name, 1)),
            bytes=array_bytes(aval.shape, aval.dtype),
            is_trained=name in found["trained"],
        )
        for name, aval in sorted(shapes.items())
    ]


def _model(built: Any) -> Any:
    """Return the model of a template, or of a node that is a model already."""
    if isinstance(built, nnx.Module):
        return built
    if not callable(built):
        what = f"{type(built).__name__} is neither an experiment nor a model"
        raise ValidationError(Problem(what, remedy="give an experiment, or a recipe of a model"))
    model = create_model(built, seed=0)
    if not isinstance(model, nnx.Module):
        what = (
            f"the graph makes a {type(model).__name__}, which is neither an experiment nor a model"
        )
        raise ValidationError(Problem(what, remedy="give an experiment, or a recipe of a model"))
    return model


def _specs(graph: Graph, devices: Sequence[Any]) -> dict[str, str]:
    placements = programs.make(graph, devices).placements
    return {
        name.partition("/")[2]: format_spec(placement.spec)
        for name, placement in placements.items()
        if name.startswith("parameters/")
    }


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """Numbers of scalars in the parameters of a model.

    Args:
      total: All of them.
      active: Those that one token passes through, on average: of experts, the chosen ones.
      trained: Those that the optimizer changes.
      embedding: Those of arrays with a dimension for the vocabulary: input and output embeddings.
      by_part: All of them by the first part of the parameter's name.
      by_dtype: Their `count` and `bytes` by the type that is stored.
    """

    total: int
    active: int
    trained: int
    embedding: int
    by_part: Mapping[str, int]
    by_dtype: Mapping[str, Mapping[str, int]]


def count_parameters(found: Sequence[Parameter]) -> ParameterCounts:
    """Return the numbers of scalars in parameters.

    Args:
      found: The parameters.

    Returns:
      The number of scalars of the whole model, of its parts, and of those that one token uses,
      which are fewer than all with a mixture of experts.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> parameters = planner.model_parameters(decoders.llama_7b())
      >>> planner.count_parameters(parameters).total
      6738415616
    """
    by_part: dict[str, int] = {}
    for parameter in found:
        part = parameter.name.partition(".")[0]
        by_part[part] = by_part.get(part, 0) + parameter.scalars
    return ParameterCounts(
        total=sum(p.scalars for p in found),
        active=sum(p.active for p in found),
        trained=sum(p.scalars for p in found if p.is_trained),
        embedding=sum(p.scalars for p in found if VOCABULARY in (p.axes or ())),
        by_part=by_part,
        by_dtype=sums_by_dtype((p.shape, p.dtype) for p in found),
    )


def sums_by_dtype(arrays: Iterable[tuple[Sequence[int], Any]]) -> dict[str, dict[str, int]]:
    """Return the `count` of scalars and the `bytes` of arrays by dtype.

    Args:
      arrays: Shape and dtype of each.
    """
    found: dict[str, dict[str, int]] = {}
    for shape, dtype in arrays:
        row = found.setdefault(jnp.dtype(dtype).name, {"count": 0, "bytes": 0})
        row["count"] += math.prod(shape)
        row["bytes"] += array_bytes(shape, dtype)
    return found
