"""The stages that recipes chain: transformations of gradients with traced hyperparameters.

They are Optax transformations that also read `count`, the number of updates so far, which
`assemble` hands to every stage; so one counter serves the whole optimizer. Optax's own do not
serve: `optax.adamw` refuses scalars that are objects, computes `1 - b2 ** t` in float32 (wrong by
2e-4 for b2 = 0.9999) and gives other bits for a constant than for a traced b2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from luthier.optim.layouts import Layouts, OptimizerStage, complete
from luthier.optim.masks import ParameterMask
from luthier.optim.schedules import Schedule, runtime

# Parameters are a flat mapping by name and not a tree: masks, parts and layouts are all by name.
Arrays = Mapping[str, jax.Array]
Transformation: TypeAlias = optax.GradientTransformationExtraArgs


class AdamState(NamedTuple):
    """Moving averages of the gradient and of its square, by parameter name."""

    first_moment: dict[str, jax.Array]
    second_moment: dict[str, jax.Array]


class MomentumState(NamedTuple):
    """The accumulated gradient by parameter name."""

    trace: dict[str, jax.Array]


def chain(transformations: Sequence[optax.GradientTransformation]) -> OptimizerStage:
    """Return transformations one after the other: `optax.chain` of a list, with layouts.

    Args:
      transformations: Any transformations of Optax or of ours, first one first.

    Returns:
      A transformation whose state is a tuple of the states of its parts, in their order.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> stages = [optim.clip_by_global_norm(1.0), optim.accumulate_momentum(0.9)]
      >>> optimizer = optim.assemble([optim.chain(stages)], learning_rate=1.0)
      >>> parameters = {"kernel": jnp.ones(2)}
      >>> state = optimizer.init(parameters)
      >>> updates, state = optimizer.update({"kernel": jnp.array([3.0, 4.0])}, state, parameters)
      >>> print(np.asarray(updates["kernel"]).round(3))
      [-0.6 -0.8]
    """
    # Not `optax.chain`: that calls `init(parameters)` alone, and stages here need layouts in it
    # too. `with_extra_args_support` returns a stage that takes extra arguments as it is, of ours
    # with its class, and wraps others so that they ignore `count` and `layouts`.
    stages = [optax.with_extra_args_support(stage) for stage in transformations]

    def init(parameters: Arrays, layouts: Layouts | None = None) -> tuple[Any, ...]:
        known = complete(parameters, layouts)
        return tuple(
            stage.init(parameters, layouts=known)  # type: ignore[call-arg]
            if isinstance(stage, OptimizerStage)
            else stage.init(parameters)
            for stage in stages
        )

    def update(
        updates: Any, state: tuple[Any, ...], parameters: Any = None, **extra: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        extra["layouts"] = complete(updates, extra.get("layouts"))
        states = []
        for stage, own in zip(stages, state, strict=True):
            updates, own = stage.update(updates, own, parameters, **extra)
            states.append(own)
        return updates, tuple(states)

    return OptimizerStage(init, update)  # type: ignore[arg-type]


def pass_through() -> Transformation:
    """Return the stage that changes nothing, in the place of one whose setting is None."""
    return optax.with_extra_args_support(optax.identity())


def global_norm(arrays: Arrays) -> jax.Array:
    r"""Return the norm of all arrays as one vector, $\|g\|_2$, accumulated in float32 or wider.

    Args:
      arrays: Gradients or parameters by name, of any shapes.

    Returns:
      A scalar, float32 or wider; 0 for no arrays.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import optim
      >>> print(optim.global_norm({"kernel": jnp.array([3.0]), "bias": jnp.array([4.0])}))
      5.0
    """
    # Widened before squaring: in bfloat16 a sum stops growing once it is 256 times its terms.
    # `start` gives an empty mapping the norm 0, as a float32 like any other.
    wide = (_widen(x) for x in arrays.values())
    return jnp.sqrt(sum((jnp.sum(x * x) for x in wide), start=jnp.float32(0)))


def clip_by_global_norm(max_norm: float) -> Transformation:
    r"""Scale all gradients down together if their norm is above a limit.

    $$ g \leftarrow g \min(1, c / \|g\|_2) $$

    Args:
      max_norm: The limit, $c$.

    Returns:
      A transformation without a state, from gradients by name to gradients of the same shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> stage = optim.clip_by_global_norm(1.0)
      >>> optimizer = optim.assemble([stage], learning_rate=1.0)
      >>> parameters = {"kernel": jnp.ones(2)}
      >>> state = optimizer.init(parameters)
      >>> updates, state = optimizer.update({"kernel": jnp.array([3.0, 4.0])}, state, parameters)
      >>> print(np.asarray(updates["kernel"]).round(3))
      [-0.6 -0.8]

    Source: Pascanu et al., 2013, arXiv:1211.5063, algorithm 1.
    """

    def update(
        gradients: Arrays, state: Any, parameters: Any = None, *, count: jax.Array, **_: Any
    ) -> tuple[Any, Any]:
        # A norm of 0 gives inf here and 1 after the minimum. One that is not finite makes the whole
        # gradient NaN or 0, which hides nothing: the guard looks at the norm before the clip.
        scale = jnp.minimum(1, runtime(max_norm, count) / global_norm(gradients))
        return {name: g * scale for name, g in gradients.items()}, state

    return Transformation(optax.init_empty_state, update)


def clipping(clip_norm: float | None) -> Transformation:
    """Return the stage that clips by the global norm, or does nothing where there is no limit."""
    # A stage in any case, so that the names of the states do not depend on it.
    return pass_through() if clip_norm is None else clip_by_global_norm(clip_norm)


def add_decayed_weights(weight_decay: float, mask: ParameterMask) -> Transformation:
    r"""Add a share of every parameter that is in the mask: $u \leftarrow u + \lambda \theta$.

    Args:
      weight_decay: The share, $\lambda$.
      mask: The parameters that decay.

    Returns:
      A transformation without a state. Its `update` needs the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> stage = optim.add_decayed_weights(0.1, optim.EVERYTHING)
      >>> optimizer = optim.assemble([stage], learning_rate=1.0)
      >>> parameters = {"kernel": jnp.ones(2)}
      >>> state = optimizer.init(parameters)
      >>> updates, state = optimizer.update({"kernel": jnp.array([3.0, 4.0])}, state, parameters)
      >>> print(np.asarray(updates["kernel"]).round(3))
      [-3.1 -4.1]
    """

    def update(
        updates: Arrays, state: Any, parameters: Any = None, *, count: jax.Array, **_: Any
    ) -> tuple[Any, Any]:
        # The mask is evaluated while tracing, by name: no array of booleans is ever multiplied in.
        decay = runtime(weight_decay, count)
        decayed = {n: u + decay * parameters[n] if mask(n) else u for n, u in updates.items()}
        return decayed, state

    return Transformation(optax.init_empty_state, update)


def clip_update_rms(max_rms: float) -> Transformation:
    r"""Scale the update of every single parameter down if its root mean square is above a limit.

    $$ u \leftarrow u / \max(1, \mathrm{rms}(u) / d) $$

    Args:
      max_rms: The limit, $d$.

    Returns:
      A transformation without a state, from gradients by name to gradients of the same shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> stage = optim.clip_update_rms(1.0)
      >>> optimizer = optim.assemble([stage], learning_rate=1.0)
      >>> parameters = {"kernel": jnp.ones(2)}
      >>> state = optimizer.init(parameters)
      >>> updates, state = optimizer.update({"kernel": jnp.array([3.0, 4.0])}, state, parameters)
      >>> print(np.asarray(updates["kernel"]).round(3))
      [-0.849 -1.131]

    Source: Shazeer and Stern, 2018, arXiv:1804.04235, section 6.
    """

    def update(
        updates: Arrays,
        state: Any,
        parameters: Any = None,
        *,
        count: jax.Array,
        layouts: Layouts,
        **_: Any,
    ) -> tuple[Any, Any]:
        # Of each layer of a scanned stack by itself, as if it were unrolled. (Paxml's cap takes
        # fused query, key and value kernels together; here each is a parameter of its own.)
        limit = runtime(max_rms, count)
        rms = {n: jnp.sqrt(layouts[n].mean_square(u)) for n, u in updates.items()}
        return {n: u / jnp.maximum(1, rms[n] / limit) for n, u in updates.items()}, state

    return Transformation(optax.init_empty_state, update)


def scale_by_adam(b1: float, b2: float, eps: float) -> Transformation:
    r"""Divide the mean of the gradient by the root of the mean of its square.

    $$ m_t = \beta_1 m_{t-1} + (1 - \beta_1) g_t, \quad
       v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2, \quad
       u_t = \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \epsilon} $$

    Args:
      b1: Decay of the first moment, $\beta_1$.
      b2: Decay of the second moment, $\beta_2$.
      eps: Added to the root, $\epsilon$.

    Returns:
      A transformation whose state holds two float32 arrays of the shape of each parameter.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> stage = optim.scale_by_adam(b1=0.9, b2=0.95, eps=1e-8)
      >>> optimizer = optim.assemble([stage], learning_rate=1.0)
      >>> parameters = {"kernel": jnp.ones(2)}
      >>> state = optimizer.init(parameters)
      >>> updates, state = optimizer.update({"kernel": jnp.array([3.0, 4.0])}, state, parameters)
      >>> print(np.asarray(updates["kernel"]).round(3))
      [-1. -1.]

    Source: Kingma and Ba, 2015, arXiv:1412.6980, algorithm 1.

    Deviation: $1 - \beta^t$ is computed as $-\mathrm{expm1}(t\, \mathrm{log1p}(-(1 - \beta)))$,
      right to float32 also near $\beta = 1$. Moments are float32 also for narrower parameters.
    """

    def init(parameters: Arrays) -> AdamState:
        return AdamState(zeros_like(parameters), zeros_like(parameters))

    def update(
        gradients: Arrays, state: AdamState, parameters: Any = None, *, count: jax.Array, **_: Any
    ) -> tuple[Any, AdamState]:
        # Complements are taken of the raw objects: near 1, float32 would lose half their digits.
        new1, new2 = runtime(1 - b1, count), runtime(1 - b2, count)
        # Both coefficients of an average are rounded from the exact ones, each by itself, as the
        # reference in float64 has them.
        old1, old2, small = runtime(b1, count), runtime(b2, count), runtime(eps, count)
        first = {n: old1 * state.first_moment[n] + new1 * g for n, g in gradients.items()}
        second = {n: old2 * state.second_moment[n] + new2 * (g * g) for n, g in gradients.items()}
        unbias1, unbias2 = bias_correction(new1, count), bias_correction(new2, count)
        updates = {
            name: (m / unbias1) / (jnp.sqrt(second[name] / unbias2) + small)
            for name, m in first.items()
        }
        return updates, AdamState(first, second)

    return Transformation(init, update)


def accumulate_momentum(momentum: float) -> Transformation:
    r"""Replace the gradient by its decaying sum: $u_t = g_t + \mu u_{t-1}$.

    Args:
      momentum: The decay, $\mu$.

    Returns:
      A transformation whose state holds one float32 array of the shape of each parameter.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> stage = optim.accumulate_momentum(0.9)
      >>> optimizer = optim.assemble([stage], learning_rate=1.0)
      >>> parameters = {"kernel": jnp.ones(2)}
      >>> state = optimizer.init(parameters)
      >>> updates, state = optimizer.update({"kernel": jnp.array([3.0, 4.0])}, state, parameters)
      >>> print(np.asarray(updates["kernel"]).round(3))
      [-3. -4.]

    Source: Sutskever et al., 2013, ICML, equation 1 (with the learning rate taken out of the sum).
    """

    def update(
        gradients: Arrays,
        state: MomentumState,
        parameters: Any = None,
        *,
        count: jax.Array,
        **_: Any,
    ) -> tuple[Any, MomentumState]:
        decay = runtime(momentum, count)
        trace = {n: g + decay * state.trace[n] for n, g in gradients.items()}
        return trace, MomentumState(trace)

    return Transformation(lambda parameters: MomentumState(zeros_like(parameters)), update)


def accumulate_nesterov_momentum(momentum: float) -> Transformation:
    r"""Look one step ahead of the decaying sum: $s_t = g_t + \mu s_{t-1}$, $u_t = g_t + \mu s_t$.

    Args:
      momentum: The decay, $\mu$.

    Returns:
      A transformation whose state holds one float32 array of the shape of each parameter.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> stage = optim.accumulate_nesterov_momentum(0.9)
      >>> optimizer = optim.assemble([stage], learning_rate=1.0)
      >>> parameters = {"kernel": jnp.ones(2)}
      >>> state = optimizer.init(parameters)
      >>> updates, state = optimizer.update({"kernel": jnp.array([3.0, 4.0])}, state, parameters)
      >>> print(np.asarray(updates["kernel"]).round(3))
      [-5.7 -7.6]

    Source: Sutskever et al., 2013, ICML, equations 3 and 4, in the variables of Bengio et al.,
      2013, arXiv:1212.0901, equation 7.
    """

    def update(
        gradients: Arrays,
        state: MomentumState,
        parameters: Any = None,
        *,
        count: jax.Array,
        **_: Any,
    ) -> tuple[Any, MomentumState]:
        decay = runtime(momentum, count)
        trace = {n: g + decay * state.trace[n] for n, g in gradients.items()}
        return {n: g + decay * trace[n] for n, g in gradients.items()}, MomentumState(trace)

    return Transformation(lambda parameters: MomentumState(zeros_like(parameters)), update)


def scale_by_learning_rate(learning_rate: Schedule) -> Transformation:
    r"""Turn a direction into an update: $u \leftarrow -\eta_t u$.

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates.
    """

    def update(
        updates: Arrays, state: Any, parameters: Any = None, *, count: jax.Array, **_: Any
    ) -> tuple[Any, Any]:
        rate = learning_rate(count)
        return {name: -rate * u for name, u in updates.items()}, state

    return Transformation(optax.init_empty_state, update)


def _widen(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def zeros_like(parameters: Arrays) -> dict[str, jax.Array]:
    """Return zeros of the shapes of `parameters`, float32 or wider."""
    return {
        name: jnp.zeros_like(p, dtype=jnp.promote_types(p.dtype, jnp.float32))
        for name, p in parameters.items()
    }


def bias_correction(complement: jax.Array, count: jax.Array) -> jax.Array:
    r"""Return $1 - \beta^{t+1}$ of $1 - \beta$ and $t$, right to float32 also near $\beta = 1$.

    Args:
      complement: $1 - \beta$.
      count: $t$, the number of updates so far.
    """
    # 1 - beta^t of a beta near one cancels: for b2 = 0.9999 float32 is wrong by 2e-4 of the result.
    # log1p and expm1 never form the 1; what they start from, 1 - beta, was taken in double.
    return -jnp.expm1((count + 1).astype(complement.dtype) * jnp.log1p(-complement))
