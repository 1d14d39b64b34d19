"""Preconditioners with two factors for each matrix: the code that Shampoo and SOAP share.

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

# The stages are ours because no maintained JAX library has them; they are compared with references
# in NumPy and float64. Comparisons to 1e-6 use matrices of well separated singular values: where
# two are nearly equal, no implementation in float32 knows the eigenvectors any better.


class KroneckerState(NamedTuple):
    """Moments of the gradient, and for both sides of a matrix its statistics and their maps.

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
        """Return the logical axes: a square matrix is sharded along its first side."""
        # A kernel of 2048 x 8192 has squares of 8192 x 8192, four times its size: without axes of
        # their own they would be whole on every device, beside a parameter that is sharded.
        moments = {n: Axes(a) if (a := layouts[n].axes) else None for n in self.first_moment}
        left = {n: layouts[n].matrix_axes[0] for n in self.left}
        right = {n: layouts[n].matrix_axes[1] for n in self.right}
        return KroneckerState(moments, moments, left, right, left, right)  # type: ignore[arg-type]


def begin(parameters: Arrays, layouts: Layouts, largest_dim: int) -> KroneckerState:
    """Return zeros, and unit matrices as maps, with sides up to `largest_dim`."""

    def squares(side: int) -> Sides:
        zeros = {}
        for name, p in zeros_like(parameters).items():
            layout = layouts[name]
            size = layout.matrix_shape[side]
            # Beyond the limit a side has no entry at all. Sizes are static, so the absence is known
            # while tracing, and products with it are left out instead of multiplying by a unit.
            if size <= largest_dim:
                stacked = layout.shape[: layout.num_stacked]
                zeros[name] = jnp.zeros((*stacked, size, size), p.dtype)
        return zeros

    # Before the first statistics the maps change nothing. (Both optimizers compute new ones at
    # count 0; the unit keeps a state that was never updated meaningful.)
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
    """Return the averages of both sides, in which the newest gradients have the weight `share`."""
    # From the gradient and not from the momentum: they estimate its second moments.
    left = {n: x + share * (matrices[n] @ matrices[n].mT - x) for n, x in state.left.items()}
    right = {n: x + share * (matrices[n].mT @ matrices[n] - x) for n, x in state.right.items()}
    return left, right


def turned(x: jax.Array | None) -> jax.Array | None:
    """Return the transposed matrices, or nothing for a side that is not preconditioned."""
    return None if x is None else x.mT


def multiply(left: jax.Array | None, x: jax.Array, right: jax.Array | None) -> jax.Array:
    """Return the product of the factors that are present."""
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
      stage: Gives the direction of the update of kernels.
      adam: Gives the direction of all other updates.
      learning_rate: The learning rate of both.
      weight_decay: The decay of both.
      masks: The masks `matrices` and `decay_mask`.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.
    """
    # One learning rate and one decay for both parts: the updates of both have the size of Adam's.
    # (`optim.muon` splits after the clip in the same way, but with a rate for each part.)
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
