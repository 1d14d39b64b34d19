"""Shampoo: inverse roots of second moments on both sides of a gradient."""

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
)
from luthier.optim.layouts import Layouts, OptimizerStage, complete
from luthier.optim.masks import DECAYED, MATRICES, ParameterMask
from luthier.optim.optimizer import Optimizer
from luthier.optim.schedules import Schedule, runtime
from luthier.optim.stages import AdamState, Arrays, bias_correction, scale_by_adam


def scale_by_shampoo(
    b1: float, b2: float, statistics_decay: float, eps: float, every: int, largest_dim: int
) -> OptimizerStage:
    r"""Precondition both sides of a gradient, with the size of Adam's update.

    With averages $L$ of $G G^T$ and $R$ of $G^T G$, corrected for their bias, momentum $M$
    and Adam's update $U^A$ (`scale_by_adam`):

    $$ P = (L + \rho_L I)^{-1/4} M (R + \rho_R I)^{-1/4}, \quad
       U = P\, \|U^A\|_F / \|P\|_F $$

    where $\rho = \epsilon\, \mathrm{tr}(L) / m$. With one side only, its power is $-1/2$.
    The momentum is not corrected, as a common factor of $P$ cancels.

    Args:
      b1: Decay of the momentum, and Adam's $\beta_1$.
      b2: Adam's $\beta_2$.
      statistics_decay: Decay of $L$ and $R$.
      eps: Ridge in units of the mean eigenvalue, $\epsilon$; Adam's too.
      every: Steps between two computations of the roots.
      largest_dim: Sides beyond this size are not preconditioned.

    Returns:
      A stage. Its state holds the two moments of every parameter, and for a kernel with sides of
      m and n entries matrices [m, m] and [n, n], all float32.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import optim
      >>> from luthier.contrib import optimizers
      >>> stage = optimizers.scale_by_shampoo(
      ...     b1=0.9, b2=0.95, statistics_decay=0.95, eps=1e-8, every=1, largest_dim=8
      ... )
      >>> optimizer = optim.assemble([stage], learning_rate=0.1)
      >>> sorted(optimizer.init({"kernel": jnp.ones((2, 2))})._fields)
      ['num_updates', 'stages']

    Source: Gupta et al., 2018, arXiv:1802.09568, algorithm 1; averages, roots every few steps and
      the size of another optimizer's update are from Anil et al., 2020, arXiv:2002.09018.
    """
    # Shampoo gives the direction and Adam the size ("grafting" in Anil et al.): roots that are some
    # steps old have a wrong scale, and with Adam's size its learning rates carry over. The price is
    # Adam's second moment beside the squares.
    adam = scale_by_adam(b1, b2, eps)

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
        sized, moments = adam.update(
            gradients, AdamState(state.first_moment, state.second_moment), count=count
        )
        # Statistics are averages and not sums as in the original: a sum never forgets, and its
        # roots decay as 1 / sqrt(t) on top of the schedule. Like Adam's, the averages start at zero
        # and are divided by 1 - beta^t. That makes the maps in the state independent of the step;
        # the update is the same without it (the ridge is relative, and a factor of P cancels).
        matrices = {n: layouts[n].to_matrices(g) for n, g in gradients.items()}
        share, ridge = runtime(1 - statistics_decay, count), runtime(eps, count)
        lefts, rights = statistics(state, matrices, share)
        unbias = bias_correction(share, count)

        def roots() -> tuple[Sides, Sides]:
            # Both sides together have the power -1/2 of second moments, like Adam's root; a side
            # that is too large to have a factor leaves all of it to the other.
            def power(name: str) -> float:
                return -0.25 if name in lefts and name in rights else -0.5

            left = {n: _power(x / unbias, power(n), ridge) for n, x in lefts.items()}
            right = {n: _power(x / unbias, power(n), ridge) for n, x in rights.items()}
            return left, right

        # `cond` runs one branch, so that eigendecompositions, which are slow on accelerators, are
        # paid for every few steps only. (Under `vmap`, as in packed trials, both branches run each
        # step.)
        left_map, right_map = jax.lax.cond(
            count % every == 0, roots, lambda: (state.left_map, state.right_map)
        )
        updates = {}
        for n, m in moments.first_moment.items():
            # A kernel of two sides that are too large has no map: its step is along its momentum.
            layout = layouts[n]
            turned = multiply(left_map.get(n), layout.to_matrices(m), right_map.get(n))
            step = layout.from_matrices(turned)
            # Of each layer by itself. A zero gradient has no direction: 0 / 1 in place of 0 / 0.
            size = layout.norm(step)
            defined = jnp.where(size > 0, size, 1)
            updates[n] = step * (layout.norm(sized[n]) / defined)
        return updates, KroneckerState(
            moments.first_moment, moments.second_moment, lefts, rights, left_map, right_map
        )

    return OptimizerStage(init, update)  # type: ignore[arg-type]


def _power(x: jax.Array, exponent: float, ridge: jax.Array) -> jax.Array:
    """Return a positive power of symmetric matrices [..., d, d], with a ridge."""
    # By eigenvalues: one decomposition serves any power, and the clamp below needs them. (Anil et
    # al. use coupled Newton iterations.)
    values, vectors = jnp.linalg.eigh(x)
    least = ridge * jnp.mean(values, axis=-1, keepdims=True)
    # Rounding may leave eigenvalues below zero; where all are zero the map is the identity.
    raised = jnp.maximum(values, 0) + least
    powers = jnp.where(raised > 0, raised, 1) ** exponent
    # V diag(p) V^T: columns are scaled by broadcasting.
    return (vectors * powers[..., None, :]) @ vectors.mT


def shampoo(
    learning_rate: Schedule | float,
    b1: float = 0.9,
    b2: float = 0.95,
    statistics_decay: float = 0.95,
    eps: float = 1e-6,
    every: int = 10,
    largest_dim: int = 10000,
    matrices: ParameterMask = MATRICES,
    weight_decay: float = 0.1,
    decay_mask: ParameterMask = DECAYED,
    clip_norm: float | None = 1.0,
) -> Optimizer:
    r"""Shampoo for the kernels of linear maps, AdamW for all other parameters.

    With $U_t$ of `scale_by_shampoo` or `scale_by_adam` on the clipped gradient:

    $$ \theta_t = \theta_{t-1} - \eta_t (U_t + \lambda \theta_{t-1}) $$

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates.
      b1: Decay of the first moment.
      b2: Decay of the second moment, which gives updates their size.
      statistics_decay: Decay of the preconditioner's statistics.
      eps: Ridge of the preconditioner, and Adam's.
      every: Steps between two computations of the roots.
      largest_dim: Sides of kernels beyond this size are not preconditioned.
      matrices: The kernels that are preconditioned; by default not embeddings and outputs.
      weight_decay: The decay, $\lambda$.
      decay_mask: The parameters that decay; by default not biases, norms and embeddings.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier.contrib import optimizers
      >>> optimizer = optimizers.shampoo(learning_rate=0.1)
      >>> parameters = {"kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> updates["kernel"].shape
      (2, 2)

    Source: Gupta et al., 2018, arXiv:1802.09568, algorithm 1; Anil et al., 2020, arXiv:2002.09018.
    """
    # `b2` is only for the size of the update, `statistics_decay` for its direction; they are
    # settings of their own, though the defaults agree.
    stage = scale_by_shampoo(b1, b2, statistics_decay, eps, every, largest_dim)
    adam = scale_by_adam(b1, b2, eps)
    masks = {"matrices": matrices, "decay_mask": decay_mask}
    return beside_adam(stage, adam, learning_rate, weight_decay, masks, clip_norm)


shampoo.RANGES = RANGES  # type: ignore[attr-defined]
