"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from luthier.contrib.optimizers.kronecker import (
    RANGES,
    KroneckerState,
    Sides,
    begin,
    beside_adam,
    multiply,
    statistics,
    turned,
)
from luthier.optim.layouts import Layouts, OptimizerStage, complete
from luthier.optim.masks import DECAYED, MATRICES, ParameterMask
from luthier.optim.optimizer import Optimizer
from luthier.optim.schedules import Schedule, runtime
from luthier.optim.stages import Arrays, bias_correction, scale_by_adam


def scale_by_soap(
    b1: float, b2: float, statistics_decay: float, eps: float, every: int, largest_dim: int
) -> OptimizerStage:
    r"""Run Adam in the eigenbasis of Shampoo's preconditioner.

    With eigenvectors $Q_L$, $Q_R$ of the averages $L$ of $G G^T$ and $R$ of $G^T G$:

    $$ M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \quad
       V_t = \beta_2 V_{t-1} + (1 - \beta_2) (Q_L^T G_t Q_R)^2, \quad
       U_t = Q_L \frac{Q_L^T \hat M_t Q_R}{\sqrt{\hat V_t} + \epsilon} Q_R^T $$

    Every so many steps one step of orthogonal iteration renews the eigenvectors: the Q of the QR
    decomposition of $L Q_L$, with columns in the order of their eigenvalues. The first gradient
    gives the first eigenvectors and no update, so that no gradient is rotated by itself.

    Args:
      b1: $\beta_1$.
      b2: $\beta_2$.
      statistics_decay: Decay of $L$ and $R$.
      eps: $\epsilon$.
      every: Steps between two renewals.
      largest_dim: Sides beyond this size keep the standard basis.

    Returns:
      A stage. Its state holds the two moments of every parameter, and for a kernel with sides of
      m and n entries matrices [m, m] and [n, n], all float32.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import optim
      >>> from luthier.contrib import optimizers
      >>> stage = optimizers.scale_by_soap(
      ...     b1=0.9, b2=0.95, statistics_decay=0.95, eps=1e-8, every=1, largest_dim=8
      ... )
      >>> optimizer = optim.assemble([stage], learning_rate=0.1)
      >>> sorted(optimizer.init({"kernel": jnp.ones((2, 2))})._fields)
      ['num_updates', 'stages']

    Source: Vyas et al., 2024, arXiv:2409.11321, algorithms 3 and 4, and for the first step and the
      order of columns the authors' program.
    """

    def init(parameters: Arrays, layouts: Layouts | None = None) -> KroneckerState:
        return begin(parameters, complete(parameters, layouts), largest_dim)

    def update(
        gradients: Arrays,
        state: KroneckerState,
        parameters: Any = None,
        *,
        count: jax.Array,
        layouts: Layouts,
        **_: Any,
    ) -> tuple[Any, KroneckerState]:
        # Adam with its second moment in a rotated basis. The first moment stays in the standard
        # basis and is rotated at each step, so that a change of basis does not touch it; the second
        # moment of rotated entries cannot be rotated, only reordered with the columns
        # (`_iterated`).
        #
        # The step at count 0 makes the bases and no update, so Adam's own count is one less; the
        # moments must not take that gradient in either, which `started` sees to.
        new1, new2 = runtime(1 - b1, count), runtime(1 - b2, count)
        before = jnp.maximum(count - 1, 0)
        unbias1, unbias2 = bias_correction(new1, before), bias_correction(new2, before)
        small, share = runtime(eps, count), runtime(1 - statistics_decay, count)
        first, second, updates = {}, {}, {}
        matrices = {n: layouts[n].to_matrices(g) for n, g in gradients.items()}
        for n, g in matrices.items():
            layout, left, right = layouts[n], state.left_map.get(n), state.right_map.get(n)
            m = layout.to_matrices(state.first_moment[n])
            v = layout.to_matrices(state.second_moment[n])
            m_next = m + new1 * (g - m)
            v_next = v + new2 * (multiply(turned(left), g, right) ** 2 - v)
            rotated = multiply(turned(left), m_next / unbias1, right)
            unit = rotated / (jnp.sqrt(v_next / unbias2) + small)
            # Back to the standard basis: Q_L U Q_R^T.
            step = multiply(left, unit, turned(right))
            started = count > 0
            first[n], second[n] = jnp.where(started, m_next, m), jnp.where(started, v_next, v)
            updates[n] = layout.from_matrices(jnp.where(started, step, 0))
        # Statistics and bases come after the update: this gradient is rotated by the bases of
        # before, which do not know it. No bias correction: eigenvectors do not depend on the scale.
        lefts, rights = statistics(state, matrices, share)
        due = jnp.where(count == 0, 2, jnp.where(count % every == 0, 1, 0))
        bases = lefts, rights, state.left_map, state.right_map, second
        # One branch runs: nothing, a step of iteration, or a full decomposition at the very start.
        left_map, right_map, second = jax.lax.switch(due, [_unchanged, _iterated, _solved], *bases)
        first, second = (
            {n: layouts[n].from_matrices(x) for n, x in moment.items()}
            for moment in (first, second)
        )
        return updates, KroneckerState(first, second, lefts, rights, left_map, right_map)

    return OptimizerStage(init, update)  # type: ignore[arg-type]


Bases = tuple[Sides, Sides, Sides]
"""Left and right eigenvectors, and the second moments [*stacked, m, n] in them."""


def _unchanged(
    lefts: Sides, rights: Sides, left_map: Sides, right_map: Sides, second: Sides
) -> Bases:
    return left_map, right_map, second


def _solved(lefts: Sides, rights: Sides, left_map: Sides, right_map: Sides, second: Sides) -> Bases:
    # `eigh` sorts ascending; the iteration below keeps its columns with the largest value first.
    # The second moments are still zero here, so their order does not matter.
    def vectors(sides: Sides) -> Sides:
        return {n: jnp.linalg.eigh(x)[1][..., ::-1] for n, x in sides.items()}

    return vectors(lefts), vectors(rights), second


def _iterated(
    lefts: Sides, rights: Sides, left_map: Sides, right_map: Sides, second: Sides
) -> Bases:
    # One step of orthogonal iteration (algorithm 4): multiply the basis by the statistics and make
    # it orthogonal again. From a basis that was right some steps ago this is nearly as good as a
    # new decomposition, and QR is much cheaper than that.
    #
    # Eigenvalues may have changed places meanwhile. QR keeps the first columns closest to where
    # they were, so columns are sorted by their current values first, and the second moments with
    # them, along the dimension of the side in question: entry (i, j) belongs to the i-th column of
    # Q_L and the j-th of Q_R. Copies, because the mappings passed in belong to the old state.
    second, maps = dict(second), (dict(left_map), dict(right_map))
    for axis, sides, bases in ((-2, lefts, maps[0]), (-1, rights, maps[1])):
        for n, x in sides.items():
            values = jnp.sum(bases[n] * (x @ bases[n]), axis=-2)  # the diagonal of Q^T L Q
            order = jnp.argsort(-values, axis=-1)
            across, down = order[..., None, :], order[..., None]
            second[n] = jnp.take_along_axis(second[n], down if axis == -2 else across, axis=axis)
            bases[n] = jnp.linalg.qr(x @ jnp.take_along_axis(bases[n], across, axis=-1))[0]
    return *maps, second


def soap(
    learning_rate: Schedule | float,
    b1: float = 0.95,
    b2: float = 0.95,
    statistics_decay: float = 0.95,
    eps: float = 1e-8,
    every: int = 10,
    largest_dim: int = 10000,
    matrices: ParameterMask = MATRICES,
    weight_decay: float = 0.01,
    decay_mask: ParameterMask = DECAYED,
    clip_norm: float | None = 1.0,
) -> Optimizer:
    r"""SOAP for the kernels of linear maps, AdamW for all other parameters.

    With $U_t$ of `scale_by_soap` or `scale_by_adam` on the clipped gradient:

    $$ \theta_t = \theta_{t-1} - \eta_t (U_t + \lambda \theta_{t-1}) $$

    Its memory is two square matrices more for each side of a kernel. Tall kernels have few samples
    for one side in the first steps: begin with a warmup.

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates.
      b1: Decay of the first moment.
      b2: Decay of the second moment, in the eigenbasis.
      statistics_decay: Decay of the preconditioner's statistics.
      eps: Added to the root of the second moment.
      every: Steps between two renewals of the eigenbasis.
      largest_dim: Sides of kernels beyond this size keep the standard basis.
      matrices: The kernels that are preconditioned; by default not embeddings and outputs.
      weight_decay: The decay, $\lambda$.
      decay_mask: The parameters that decay; by default not biases, norms and embeddings.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier.contrib import optimizers
      >>> optimizer = optimizers.soap(learning_rate=0.1)
      >>> parameters = {"kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> updates["kernel"].shape
      (2, 2)

    Source: Vyas et al., 2024, arXiv:2409.11321, algorithm 3.
    """
    # The same moments for both parts, as a kernel beyond `largest_dim` on both sides is Adam's too,
    # but one step behind: `scale_by_soap` makes no update at count 0.
    stage = scale_by_soap(b1, b2, statistics_decay, eps, every, largest_dim)
    adam = scale_by_adam(b1, b2, eps)
    masks = {"matrices": matrices, "decay_mask": decay_mask}
    return beside_adam(stage, adam, learning_rate, weight_decay, masks, clip_norm)


soap.RANGES = RANGES  # type: ignore[attr-defined]
