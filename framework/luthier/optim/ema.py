"""An exponential moving average of the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from luthier.optim.schedules import runtime


@dataclasses.dataclass(frozen=True)
class Ema:
    r"""A moving average that forgets the first parameters quickly.

    $$ a_{t+1} = a_t + c_t (\theta_{t+1} - a_t), \qquad c_t = \max(1 - d, \frac{W}{W + 1 + t}) $$

    With $W = 9$ the decay $1 - c_t$ is $\min(d, (1 + t) / (10 + t))$.

    Args:
      decay: The decay after the warmup, $d$.
      warmup_steps: Time constant of the rise of the decay, $W$; 0 for a constant decay.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import optim
      >>> ema = optim.Ema(decay=0.5)
      >>> average = ema.init({"bias": jnp.zeros(2)})
      >>> print(ema.update(average, {"bias": jnp.ones(2)}, step=jnp.int32(0))["bias"])
      [0.9 0.9]

    Source: Polyak and Juditsky, 1992, SIAM J. Control Optim. 30(4); the warmup is that of
      TensorFlow's `ExponentialMovingAverage`.
    """

    RANGES: ClassVar[dict[str, str]] = {"decay": "0 <= x < 1", "warmup_steps": "0 <= x"}

    decay: float = 0.999
    warmup_steps: int = 9

    def init(self, parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the average before the first update, a copy.

        Args:
          parameters: Parameters by name.

        Returns:
          Arrays by name, of the shapes of the parameters, float32 or wider.
        """
        # A copy even where the dtype is right already: average and parameters are leaves of one
        # training state, which a step donates, and one buffer cannot be donated twice. Float32 for
        # narrow parameters: bfloat16 has eight bits, so that a thousandth of a difference would
        # round to nothing.
        return {
            name: jnp.array(p, jnp.promote_types(p.dtype, jnp.float32), copy=True)
            for name, p in parameters.items()
        }

    def update(
        self, average: Mapping[str, jax.Array], parameters: Mapping[str, jax.Array], step: ArrayLike
    ) -> dict[str, jax.Array]:
        """Return the next average.

        Args:
          average: The average so far, by parameter name.
          parameters: The parameters after the update.
          step: Updates before this one, int32.

        Returns:
          Arrays by name, of the shapes and types of the average.
        """
        # Written as a step towards the parameters and not as d a + (1 - d) p: only the small
        # coefficient is rounded, and parameters that stand still leave the average exactly where it
        # is.
        warmup = runtime(self.warmup_steps, step)
        forget = warmup / (warmup + 1 + jnp.asarray(step).astype(warmup.dtype))
        # The complement is taken of the Python float: 1 - 0.9999 in float32 is off by 1e-4 of
        # itself.
        share = jnp.maximum(runtime(1 - self.decay, step), forget)
        return {name: a + share * (parameters[name] - a) for name, a in average.items()}
