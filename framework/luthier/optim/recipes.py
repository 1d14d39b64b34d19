"""Recipes: complete optimizers under the names of their papers."""

from __future__ import annotations

from luthier.optim.masks import DECAYED, ParameterMask
from luthier.optim.optimizer import Optimizer, assemble
from luthier.optim.schedules import Schedule
from luthier.optim.stages import (
    accumulate_momentum,
    accumulate_nesterov_momentum,
    add_decayed_weights,
    clipping,
    scale_by_adam,
)


def adamw(
    learning_rate: Schedule | float,
    b1: float = 0.9,
    b2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    decay_mask: ParameterMask = DECAYED,
    clip_norm: float | None = 1.0,
) -> Optimizer:
    r"""Adam with decoupled weight decay.

    With $u_t$ of `scale_by_adam` on the clipped gradient:

    $$ \theta_t = \theta_{t-1} - \eta_t (u_t + \lambda \theta_{t-1}) $$

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates.
      b1: Decay of the first moment.
      b2: Decay of the second moment.
      eps: Added to the root of the second moment.
      weight_decay: The decay, $\lambda$.
      decay_mask: The parameters that decay; by default not biases, norms and embeddings.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> optimizer = optim.adamw(learning_rate=0.1)
      >>> parameters = {"mlp.kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"mlp.kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> print(np.asarray(updates["mlp.kernel"]).round(3))
      [[-0.11  0.09]
       [-0.11 -0.11]]

    Source: Loshchilov and Hutter, 2019, arXiv:1711.05101, algorithm 2.

    Deviation: weight decay is multiplied by the learning rate, as PyTorch and Optax do.
    """
    # Stages of ours and not `optax.adamw`, which computes 1 - b2 and 1 - b2 ** t in float32 inside
    # the step: that drifts where b2 is near one, and gives other bits for a constant than for a
    # scalar that is a runtime argument, so that a packed trial would differ from the same trial by
    # itself.
    stages = [
        clipping(clip_norm),
        scale_by_adam(b1, b2, eps),
        # After Adam's division, which makes it decoupled: in front of it this would be L2.
        add_decayed_weights(weight_decay, decay_mask),
    ]
    return assemble(stages, learning_rate, {"decay_mask": decay_mask})


def sgd(
    learning_rate: Schedule | float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    decay_mask: ParameterMask = DECAYED,
    clip_norm: float | None = None,
) -> Optimizer:
    r"""Stochastic gradient descent with momentum and L2 regularization.

    $$ s_t = g_t + \lambda \theta_{t-1} + \mu s_{t-1}, \quad \theta_t = \theta_{t-1} - \eta_t s_t $$

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates.
      momentum: The decay of the sum of gradients, $\mu$.
      weight_decay: The strength of the regularization, $\lambda$, added after clipping.
      decay_mask: The parameters that it is for; by default not biases, norms and embeddings.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> optimizer = optim.sgd(learning_rate=0.1)
      >>> parameters = {"mlp.kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"mlp.kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> print(np.asarray(updates["mlp.kernel"]).round(3))
      [[-0.05  0.05]
       [-0.01 -0.02]]

    Source: Sutskever et al., 2013, ICML, equation 1.

    Deviation: the learning rate is taken out of the sum, as PyTorch and Optax do.
    """
    # The penalty enters the momentum, as the gradient of an L2 term does; without the momentum the
    # order would not matter. It is added after the clip, which is about the loss alone.
    stages = [
        clipping(clip_norm),
        add_decayed_weights(weight_decay, decay_mask),
        accumulate_momentum(momentum),
    ]
    return assemble(stages, learning_rate, {"decay_mask": decay_mask})


def nesterov(
    learning_rate: Schedule | float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    decay_mask: ParameterMask = DECAYED,
    clip_norm: float | None = None,
) -> Optimizer:
    r"""Stochastic gradient descent with Nesterov momentum and L2 regularization.

    With $h_t = g_t + \lambda \theta_{t-1}$:

    $$ s_t = h_t + \mu s_{t-1}, \quad \theta_t = \theta_{t-1} - \eta_t (h_t + \mu s_t) $$

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates.
      momentum: The decay of the sum of gradients, $\mu$.
      weight_decay: The strength of the regularization, $\lambda$, added after clipping.
      decay_mask: The parameters that it is for; by default not biases, norms and embeddings.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> optimizer = optim.nesterov(learning_rate=0.1)
      >>> parameters = {"mlp.kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"mlp.kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> print(np.asarray(updates["mlp.kernel"]).round(3))
      [[-0.095  0.095]
       [-0.019 -0.038]]

    Source: Sutskever et al., 2013, ICML, equations 3 and 4, in the variables of Bengio et al.,
      2013, arXiv:1212.0901, equation 7.
    """
    stages = [
        clipping(clip_norm),
        add_decayed_weights(weight_decay, decay_mask),
        accumulate_nesterov_momentum(momentum),
    ]
    return assemble(stages, learning_rate, {"decay_mask": decay_mask})


# Ranges are attributes of the functions, read by `luthier.graph.validation`. The functions
# themselves check nothing: a swept value is a tracer there.
_CLIPPED_AND_DECAYED = {"weight_decay": "0 <= x", "clip_norm": "0 < x"}
_MOMENTUM = {"momentum": "0 <= x < 1", **_CLIPPED_AND_DECAYED}
_ADAM = {"b1": "0 <= x < 1", "b2": "0 <= x < 1", "eps": "0 < x", **_CLIPPED_AND_DECAYED}
adamw.RANGES = _ADAM  # type: ignore[attr-defined]
sgd.RANGES = _MOMENTUM  # type: ignore[attr-defined]
nesterov.RANGES = _MOMENTUM  # type: ignore[attr-defined]
