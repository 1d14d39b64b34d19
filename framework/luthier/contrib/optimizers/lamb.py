"""LAMB: Adam whose step is in proportion to the parameter, layer by layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from luthier.optim.layouts import Layouts
from luthier.optim.masks import DECAYED, EVERYTHING, ParameterMask
from luthier.optim.optimizer import Optimizer, assemble
from luthier.optim.schedules import Schedule
from luthier.optim.stages import (
    Arrays,
    Transformation,
    add_decayed_weights,
    clipping,
    scale_by_adam,
)


def scale_by_trust_ratio(mask: ParameterMask) -> Transformation:
    r"""Give the update of each single parameter the norm of the parameter.

    $$ u \leftarrow u\, \|\theta\|_2 / \|u\|_2, \text{ unchanged where either norm is } 0 $$

    Args:
      mask: The parameters that are scaled.

    Source: You et al., 2020, arXiv:1904.00962, algorithm 2, with $\phi(z) = z$.
    """

    def update(
        updates: Arrays, state: Any, parameters: Any = None, *, layouts: Layouts, **_: Any
    ) -> tuple[Any, Any]:
        def scaled(name: str, u: jax.Array) -> jax.Array:
            # Norms are of each layer of a stack, not of the stack: LAMB's adaptation is layer-wise.
            # A parameter that starts at zero (a bias) would have ratio 0 and never move, and 0 / 0
            # is NaN: either norm of 0 leaves the update as it is. Both branches of a `where` are
            # computed, so the divisor is made safe first.
            own, step = layouts[name].norm(parameters[name].astype(u.dtype)), layouts[name].norm(u)
            defined = (own > 0) & (step > 0)
            return u * jnp.where(defined, own / jnp.where(defined, step, 1), 1)

        return {n: scaled(n, u) if mask(n) else u for n, u in updates.items()}, state

    return Transformation(optax.init_empty_state, update)


def lamb(
    learning_rate: Schedule | float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    decay_mask: ParameterMask = DECAYED,
    trust_mask: ParameterMask = EVERYTHING,
    clip_norm: float | None = 1.0,
) -> Optimizer:
    r"""LAMB, for very large batches.

    With $u_t$ of `scale_by_adam` on the clipped gradient, for each parameter of each layer:

    $$ r_t = u_t + \lambda \theta_{t-1}, \quad
       \theta_t = \theta_{t-1} - \eta_t \frac{\|\theta_{t-1}\|}{\|r_t\|} r_t $$

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates.
      b1: Decay of the first moment.
      b2: Decay of the second moment.
      eps: Added to the root of the second moment.
      weight_decay: The decay, $\lambda$.
      decay_mask: The parameters that decay; by default not biases, norms and embeddings.
      trust_mask: The parameters whose step is in proportion to them; by default all.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier.contrib import optimizers
      >>> optimizer = optimizers.lamb(learning_rate=0.1)
      >>> parameters = {"kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> updates["kernel"].shape
      (2, 2)

    Source: You et al., 2020, arXiv:1904.00962, algorithm 2.
    """
    # The decay comes before the ratio: algorithm 2 normalizes the sum of both, so that the decay is
    # relative to the direction and does not change the size of the step.
    stages = [
        clipping(clip_norm),
        scale_by_adam(b1, b2, eps),
        add_decayed_weights(weight_decay, decay_mask),
        scale_by_trust_ratio(trust_mask),
    ]
    masks = {"decay_mask": decay_mask, "trust_mask": trust_mask}
    return assemble(stages, learning_rate, masks)


lamb.RANGES = {  # type: ignore[attr-defined]
    "b1": "0 <= x < 1",
    "b2": "0 <= x < 1",
    "eps": "0 < x",
    "weight_decay": "0 <= x",
    "clip_norm": "0 < x",
}
