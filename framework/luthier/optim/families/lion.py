"""Lion: the sign of a momentum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from luthier.optim.masks import DECAYED, ParameterMask
from luthier.optim.optimizer import Optimizer, assemble
from luthier.optim.schedules import Schedule, runtime
from luthier.optim.stages import (
    Arrays,
    MomentumState,
    Transformation,
    add_decayed_weights,
    clipping,
    zeros_like,
)


def scale_by_lion(b1: float, b2: float) -> Transformation:
    r"""Take the sign of the gradient, smoothed.

    $$ u_t = \mathrm{sign}(\beta_1 m_{t-1} + (1 - \beta_1) g_t), \quad
       m_t = \beta_2 m_{t-1} + (1 - \beta_2) g_t $$

    Args:
      b1: Share of the memory in the update, $\beta_1$.
      b2: Decay of the memory, $\beta_2$.

    Source: Chen et al., 2023, arXiv:2302.06675, algorithm 2.
    """

    def update(
        gradients: Arrays,
        state: MomentumState,
        parameters: Any = None,
        *,
        count: jax.Array,
        **_: Any,
    ) -> tuple[Any, MomentumState]:
        # Two different mixtures of the same memory: the step looks at the newest gradient with
        # weight 1 - b1, the memory keeps it with the smaller 1 - b2. There is no bias correction:
        # the sign does not change with the size. A gradient that was always 0 gives sign(0) = 0, no
        # step.
        new1, new2 = runtime(1 - b1, count), runtime(1 - b2, count)
        old1, old2 = runtime(b1, count), runtime(b2, count)
        memory = state.trace
        updates = {n: jnp.sign(old1 * memory[n] + new1 * g) for n, g in gradients.items()}
        return updates, MomentumState(
            {n: old2 * memory[n] + new2 * g for n, g in gradients.items()}
        )

    return Transformation(lambda parameters: MomentumState(zeros_like(parameters)), update)


def lion(
    learning_rate: Schedule | float,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 0.1,
    decay_mask: ParameterMask = DECAYED,
    clip_norm: float | None = 1.0,
) -> Optimizer:
    r"""Lion with decoupled weight decay.

    With $u_t$ of `scale_by_lion` on the clipped gradient:

    $$ \theta_t = \theta_{t-1} - \eta_t (u_t + \lambda \theta_{t-1}) $$

    Every entry moves by the learning rate: use a third to a tenth of Adam's, and three to ten
    times its weight decay.

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates.
      b1: Share of the memory in the update.
      b2: Decay of the memory.
      weight_decay: The decay, $\lambda$.
      decay_mask: The parameters that decay; by default not biases, norms and embeddings.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> optimizer = optim.lion(learning_rate=0.01, weight_decay=0.0)
      >>> parameters = {"mlp.kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"mlp.kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> print(np.asarray(updates["mlp.kernel"]).round(3))
      [[-0.01  0.01]
       [-0.01 -0.01]]

    Source: Chen et al., 2023, arXiv:2302.06675, algorithm 2.
    """
    # The clip does not bound the step, which the sign does, but what enters the memory.
    stages = [
        clipping(clip_norm),
        scale_by_lion(b1, b2),
        add_decayed_weights(weight_decay, decay_mask),
    ]
    return assemble(stages, learning_rate, {"decay_mask": decay_mask})


lion.RANGES = {  # type: ignore[attr-defined]
    "b1": "0 <= x < 1",
    "b2": "0 <= x < 1",
    "weight_decay": "0 <= x",
    "clip_norm": "0 < x",
}
