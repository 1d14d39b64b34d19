"""Logical axis rules: the mesh axes that split each dimension, as a value in the graph."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence

from luthier.errors import Problem
from luthier.parallel.mesh import Mesh

Table = Mapping[str, Sequence[str]]
"""Logical axis name to the mesh axes that split it; no mesh axes means replicated."""

RESIDUAL_LENGTH = "residual_length"
"""The length of the residual stream. Its rule lists mesh axes in addition to those of `length`.

The sequence-parallel form of tensor parallelism splits it over `tensor` as well.
"""


def parameter_rules() -> dict[str, tuple[str, ...]]:
    """Return the rules for parameters that fit most models: FSDP by embed, tensor by the rest.

    Experts and the layers of a stack are split by axes of their own.

    Returns:
      Mesh axes by logical axis; no mesh axes means that the dimension is not split.

    Example:
      >>> from luthier import parallel
      >>> parallel.parameter_rules()["embed"]
      ('fsdp',)
    """
    # Kernels of a transformer have `embed` on one side, so that FSDP splits all of them, and
    # another axis on the other side for tensor parallelism.
    return {
        "embed": ("fsdp",),
        "experts": ("expert",),
        "vocab": ("tensor",),
        "heads": ("tensor",),
        "kv_heads": ("tensor",),
        "mlp": ("tensor",),
        "head_dim": (),
        "length": (),
        "layers": ("stage",),
    }


def activation_rules_table() -> dict[str, tuple[str, ...]]:
    """Return the rules for activations and batches that fit most models.

    The batch is split over all mesh axes but those for the length, the width and the layers.

    Returns:
      Mesh axes by logical axis; no mesh axes means that the dimension is not split.

    Example:
      >>> from luthier import parallel
      >>> parallel.activation_rules_table()["batch"]
      ('replica', 'data', 'fsdp', 'expert')
    """
    # `embed` is not split: the residual stream is whole on each device, and only between two
    # products (heads, mlp, vocab) activations are split by tensor parallelism.
    return {
        "batch": ("replica", "data", "fsdp", "expert"),
        "length": ("sequence",),
        RESIDUAL_LENGTH: (),  # further axes; see `RESIDUAL_LENGTH`
        "experts": ("expert",),
        "embed": (),
        "vocab": ("tensor",),
        "heads": ("tensor",),
        "kv_heads": ("tensor",),
        "mlp": ("tensor",),
        "head_dim": (),
    }


@dataclasses.dataclass(frozen=True)
class Rules:
    """Mesh axes that split each logical axis.

    A graph that wants single rules to be settable by path holds the tables themselves:
    `Config(Rules, parameters=parameter_rules(), activations=activation_rules_table())`.

    Args:
      parameters: Logical axis to mesh axes, for parameters and the optimizer's state.
      activations: The same for batches and for what layers compute.
    """

    parameters: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=parameter_rules)
    activations: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=activation_rules_table
    )


@dataclasses.dataclass(frozen=True)
class Parallelism:
    """Parallelism of an experiment: its mesh and its sharding rules.

    Args:
      mesh: Numbers of devices along each axis.
      rules: Mesh axes that split each logical axis.
    """

    mesh: Mesh = Mesh()
    rules: Rules = dataclasses.field(default_factory=Rules)


def mesh_axes_of(logical: str | None, table: Table, sizes: Mapping[str, int]) -> Sequence[str]:
    """Return the mesh axes that split a logical axis.

    A name without a rule that is a mesh axis means this mesh axis: annotations of Flax
    (`nnx.with_partitioning(init, (None, "tensor"))`) name either kind.

    Args:
      logical: Name of the logical axis; None is not split.
      table: Logical axis to mesh axes.
      sizes: Mesh axis to number of devices.
    """
    if logical is None:
        return ()
    return table.get(logical, (logical,) if logical in sizes else ())


def axis_product(mesh_axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Return the number of shards that mesh axes together cut a dimension into.

    Args:
      mesh_axes: Names of mesh axes.
      sizes: Mesh axis to number of devices; an axis that is not in it counts as 1.

    Returns:
      The product of their sizes; 1 for no axes.

    Example:
      >>> from luthier import parallel
      >>> parallel.axis_product(("data", "fsdp"), {"data": 2, "fsdp": 4})
      8
    """
    return math.prod(sizes.get(axis, 1) for axis in mesh_axes)


def table_problems(table: Table, sizes: Mapping[str, int], path: str) -> list[Problem]:
    """Return the problems of a table of rules, whether or not a rule is used.

    Args:
      table: Logical axis to mesh axes.
      sizes: The existing mesh axes.
      path: Path of the table in the graph.
    """
    problems = []
    for logical, mesh_axes in table.items():
        where = f"{path}.{logical}"
        # A string would be read as a sequence of one-letter axes.
        if isinstance(mesh_axes, str):
            remedy = f"write ({mesh_axes!r},)"
            problems.append(
                Problem(f"{mesh_axes!r} is not a tuple of mesh axes", where, "", remedy)
            )
            continue
        for axis in mesh_axes:
            if axis not in sizes:
                near = difflib.get_close_matches(axis, sizes, n=2)
                has = f"it has {', '.join(sizes)}"
                problems.append(Problem(f"the mesh has no axis {axis!r}", where, "", has, near))
    return problems
