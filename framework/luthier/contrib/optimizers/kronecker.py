"""Preconditioners with two factors for each matrix: what Shampoo and SOAP share.

Letters: m fan in, n fan out of a kernel; layers of a scanned stack are matrices of their own. There
is no kept JAX library with either: the published ones date from 2022, or are not packaged.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from luthier.optim.layouts import Axes, Layouts, OptimizerStage
from luthier.optim.masks import ParameterMask
from luthier.optim.optimizer import Optimizer, as_schedule, assemble
from luthier.optim.partition import matrices_in, route
from luthier.optim.schedules import Schedule
from luthier.optim.stages import Arrays, Transformation, add_decayed_weights, clipping, zeros_like

Sides = dict[str, jax.Array]
"""Square matrices [*stacked, d, d] by parameter name; sides beyond the largest size are absent."""


class KroneckerState(NamedTuple):
    """Moments of the gradient, and for both sides of a matrix its statistics and what they give.

    `left` and `right` are the averages of $G G^T$ and $G^T G$; `left_map` and `right_map` are the
    matrices that gradients are multiplied with: eigenvectors (SOAP) or inverse roots (Shampoo).
    """

    first_moment: dict[str, jax.Array]
    second_moment: dict[str, jax.Array]
    left: Sides
    right: Sides
    left_map: Sides
    right_map: Sides

    def axes(self, layouts: Layouts) -> KroneckerState:
        """Return the logical axes: of square matrices, their first side goes as its parameter's."""
        moments = {n: Axes(a) if (a := layouts[n].axes) else None for n in self.first_moment}
        left = {n: layouts[n].matrix_axes[0] for n in self.left}
        right = {n: layouts[n].matrix_axes[1] for n in self.right}
        return KroneckerState(moments, moments, left, right, left, right)  # type: ignore[arg-type]


def begin(parameters: Arrays, layouts: Layouts, largest_dim: int) -> KroneckerState:
    """Return zeros, and unit matrices as maps, with sides up to `largest_dim`."""

    def squares(side: int) -> Sides:
        found = {}
        for name, p in zeros_like(parameters).items():
            layout = layouts[name]
            size = layout.matrix_shape[side]
            if size <= largest_dim:
                stacked = layout.shape[: layout.num_stacked]
                found[name] = jnp.zeros((*stacked, size, size), p.dtype)
        return found

    def units(sides: Sides) -> Sides:
        return {n: x + jnp.eye(x.shape[-1], dtype=x.dtype) for n, x in sides.items()}

    left, right = squares(0), squares(1)
    moments = zeros_like(parameters), zeros_like(parameters)
    return KroneckerState(*moments, left, right, units(left), units(right))


RANGES = {
    "b1": "0 <= x < 1",
    "b2": "0 <= x < 1",
    "statistics_decay": "0 <= x < 1",
    "eps": "0 < x",
    "every": "1 <= x",
    "largest_dim": "1 <= x",
    "weight_decay": "0 <= x",
    "clip_norm": "0 < x",
}


def statistics(state: KroneckerState, matrices: Arrays, share: jax.Array) -> tuple[Sides, Sides]:
    """Return the averages of both sides with the newest gradients' `share` in them."""
    left = {n: x + share * (matrices[n] @ matrices[n].mT - x) for n, x in state.left.items()}
    right = {n: x + share * (matrices[n].mT @ matrices[n] - x) for n, x in state.right.items()}
    return left, right


def turned(x: jax.Array | None) -> jax.Array | None:
    """Return the transposed matrices, or nothing for a side that is not preconditioned."""
    return None if x is None else x.mT


def multiply(left: jax.Array | None, x: jax.Array, right: jax.Array | None) -> jax.Array:
    """Return the product of what there is."""
    x = x if left is None else left @ x
    return x if right is None else x @ right


def beside_adam(
    stage: OptimizerStage,
    adam: Transformation,
    learning_rate: Schedule | float,
    weight_decay: float,
    masks: dict[str, ParameterMask],
    clip_norm: float | None,
) -> Optimizer:
    """Return the optimizer of `stage` for the kernels in the mask `matrices`, `adam` for the rest.

    Args:
      stage: What directs the update of kernels.
      adam: What directs all other updates.
      learning_rate: The learning rate of both.
      weight_decay: The decay of both.
      masks: The masks `matrices` and `decay_mask`.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.
    """
    rate = as_schedule(learning_rate)
    parts = {
        "matrices": (matrices_in(masks["matrices"]), stage),
        "rest": (lambda name, layout: True, adam),
    }
    stages = [
        clipping(clip_norm),
        route(parts),
        add_decayed_weights(weight_decay, masks["decay_mask"]),
    ]
    return assemble(stages, rate, masks)
