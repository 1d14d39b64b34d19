"""Adam whose update is capped, tensor by tensor: the optimizer of Pax's language models."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from luthier.optim.masks import EVERYTHING, ParameterMask
from luthier.optim.optimizer import Optimizer, assemble
from luthier.optim.schedules import Schedule, runtime
from luthier.optim.stages import (
    Arrays,
    Transformation,
    add_decayed_weights,
    bias_correction,
    clip_update_rms,
    clipping,
    pass_through,
    zeros_like,
)


class UnbiasedMoments(NamedTuple):
    """Weighted means of the gradient and of its square, by parameter name."""

    first_moment: dict[str, jax.Array]
    second_moment: dict[str, jax.Array]


def scale_by_unbiased_adam(b1: float, b2: float, eps: float, eps_root: float) -> Transformation:
    r"""Adam with decays that are corrected for the bias, instead of the moments.

    $$ d_t = \beta \frac{1 - \beta^{t-1}}{1 - \beta^t}, \quad
       m_t = d_t m_{t-1} + (1 - d_t) g_t, \quad
       u_t = \frac{m_t}{\sqrt{v_t + \epsilon_r} + \epsilon} $$

    and likewise $v_t$ of $g_t^2$. The same update as Adam's, in exact arithmetic, where
    $\epsilon_r = 0$.

    Args:
      b1: $\beta$ of the first moment.
      b2: $\beta$ of the second moment.
      eps: Added to the root, $\epsilon$.
      eps_root: Added under the root, $\epsilon_r$.

    Source: Shazeer and Stern, 2018, arXiv:1804.04235, section 7.1, for the decay; praxis 1.4.0,
      `optimizers.sharded_adam`.
    Deviation: $1 - d_t$ is computed as $(1 - \beta) / (1 - \beta^t)$, right to float32. An infinite
      gradient is not turned into NaN first; the update is NaN all the same.
    """

    def update(
        gradients: Arrays,
        state: UnbiasedMoments,
        parameters: Any = None,
        *,
        count: jax.Array,
        **_: Any,
    ) -> tuple[Any, UnbiasedMoments]:
        # (1 - beta) / (1 - beta^t) is 1 at the first step, so the moments are weighted means from
        # the start and need no correction, as Pax keeps them. Moments are moved towards the
        # gradient by that share, which rounds less than two products.
        new1, new2 = runtime(1 - b1, count), runtime(1 - b2, count)
        share1 = new1 / bias_correction(new1, count)
        share2 = new2 / bias_correction(new2, count)
        # Praxis has both constants: one under the root, and one beside it as in the paper of Adam.
        small, root = runtime(eps, count), runtime(eps_root, count)
        first, second, updates = {}, {}, {}
        for n, g in gradients.items():
            m, v = state.first_moment[n], state.second_moment[n]
            first[n], second[n] = m + share1 * (g - m), v + share2 * (g * g - v)
            updates[n] = first[n] / (jnp.sqrt(second[n] + root) + small)
        return updates, UnbiasedMoments(first, second)

    return Transformation(lambda p: UnbiasedMoments(zeros_like(p), zeros_like(p)), update)


def capped_adamw(
    learning_rate: Schedule | float,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    max_update_rms: float | None = 1.0,
    weight_decay: float = 1e-3,
    decay_mask: ParameterMask = EVERYTHING,
    clip_norm: float | None = 5.0,
) -> Optimizer:
    r"""Adam with decoupled weight decay and a cap on the root mean square of each update.

    With $u_t$ of `scale_by_unbiased_adam` on the clipped gradient, for each parameter of each
    layer:

    $$ \theta_t = \theta_{t-1} - \eta_t (u_t / \max(1, \mathrm{rms}(u_t) / d)
                  + \lambda \theta_{t-1}) $$

    The defaults are those of Pax's C4 language models, where all parameters decay.

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates.
      b1: Decay of the first moment.
      b2: Decay of the second moment.
      eps: Added to the root of the second moment.
      eps_root: Added under the root.
      max_update_rms: The cap, $d$; None for no cap.
      weight_decay: The decay, $\lambda$.
      decay_mask: The parameters that decay.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> optimizer = optim.capped_adamw(learning_rate=0.1)
      >>> parameters = {"mlp.kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"mlp.kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> print(np.asarray(updates["mlp.kernel"]).round(3))
      [[-0.1  0.1]
       [-0.1 -0.1]]

    Source: praxis 1.4.0, `optimizers.ShardedAdam`; the cap is from Shazeer and Stern, 2018,
      arXiv:1804.04235, section 6.
    """
    # The decay is added after the cap, so that it is not capped itself.
    stages = [
        clipping(clip_norm),
        scale_by_unbiased_adam(b1, b2, eps, eps_root),
        pass_through() if max_update_rms is None else clip_update_rms(max_update_rms),
        add_decayed_weights(weight_decay, decay_mask),
    ]
    return assemble(stages, learning_rate, {"decay_mask": decay_mask})


capped_adamw.RANGES = {  # type: ignore[attr-defined]
    "b1": "0 <= x < 1",
    "b2": "0 <= x < 1",
    "eps": "0 <= x",
    "eps_root": "0 <= x",
    "max_update_rms": "0 < x",
    "weight_decay": "0 <= x",
    "clip_norm": "0 < x",
}
