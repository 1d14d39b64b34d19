"""Experts as one module, whose parameters have a leading `experts` axis.

Shapes: E experts, `...` any leading dimensions, D dim.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.parameters import AXES, Template, create
from luthier.parallel import Rules, activation_rules
from luthier.parallel.activations import current_layout

EXPERTS = "experts"
"""The logical axis of experts."""

_COUNTED = re.compile(r"active_(\d+)_of_(\d+)")

ACTIVE_SHARE = "active_share"
"""The metadata key of the share of a parameter that one token meets, on average."""


def create_each(
    template: Template, num_experts: int, active: Any, rngs: nnx.Rngs, **inherited: Any
) -> nnx.Module:
    """Make experts of one template, each with a key of its own.

    Args:
      template: Of one expert, called with `rngs` and what is inherited.
      num_experts: E.
      active: How many experts one token goes to, on average.
      rngs: Supplies one key; each expert's is folded in from it.
      **inherited: Sizes and dtypes.

    Returns:
      One module. Its parameters have a leading `experts` axis and know which share of them is
      active.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3.1 (weights with an expert dimension).
    """
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    keys = fold(rngs.params(), jnp.arange(num_experts, dtype=jnp.uint32))
    graphdef: Any = None

    def init(key: jax.Array) -> Any:
        nonlocal graphdef
        graphdef, state = nnx.split(create(template, rngs=nnx.Rngs(key), **inherited))
        return nnx.to_pure_dict(state)

    values = jax.vmap(init)(keys)
    experts = nnx.merge(graphdef, values)
    for _, variable in nnx.to_flat_state(nnx.state(experts)):
        axes = variable.get_metadata().get(AXES)
        told = {} if axes is None else {AXES: (EXPERTS, *axes)}
        variable.set_metadata(**told, **{ACTIVE_SHARE: active / num_experts})
    return experts


def apply_each(experts: nnx.Module, x: jax.Array, *, same: bool = False) -> jax.Array:
    """Let each expert map inputs of its own, or all of them the same.

    Args:
      experts: What `create_each` made.
      x: [E, ..., D]; [..., D] for all of them if `same`.
      same: Whether all experts get the same input.

    Returns:
      [E, ..., D].
    """
    graphdef, state = nnx.split(experts)

    def apply(state: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, state)(x)

    with _apart():
        return jax.vmap(apply, (0, None if same else 0))(state, x)


def _apart() -> AbstractContextManager[None]:
    """Keep mesh axes that share out the experts from what is computed for one of them."""
    layout = current_layout()
    taken = () if layout is None else layout.mesh_axes(EXPERTS)
    if layout is None or not taken:
        return nullcontext()
    table = {name: tuple(a for a in axes if a not in taken) for name, axes in layout.table}
    return activation_rules(layout.mesh, Rules(activations=table))


def counted(active: int, places: int) -> AbstractContextManager[Any]:
    """Say, to who counts FLOPs, how many of the places that are computed hold a choice at best.

    Args:
      active: Choices that there are to compute.
      places: Places that are computed.
    """
    return jax.named_scope(f"active_{min(active, places)}_of_{places}")


def share_of(name_stack: str) -> tuple[int, int] | None:
    """Return active and all places of an operation, if it was traced within `counted`.

    Args:
      name_stack: The names of the scopes around the operation.
    """
    match = _COUNTED.search(name_stack)
    return None if match is None else (int(match[1]), int(match[2]))
