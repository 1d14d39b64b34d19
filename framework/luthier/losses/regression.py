"""Losses of forecasts and other numbers, as nodes. Shapes: ... any dimensions, Q quantile levels.

Everything is per value and nothing is divided: the caller weights and sums. Values are taken to
float32 (float64 stays).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp


class RegressionLoss(Protocol):
    """Compares predictions with targets, value by value."""

    def __call__(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the loss of every target.

        Args:
          predictions: Predicted values [...], or quantiles [..., Q].
          targets: Values [...].

        Returns:
          Float32 or wider [...].
        """

    def point(self, predictions: jax.Array) -> jax.Array:
        """Return the point forecast of each prediction.

        Args:
          predictions: Predicted values [...], or quantiles [..., Q].

        Returns:
          Values [...].
        """


@dataclasses.dataclass(frozen=True)
class SquaredError:
    """The squared error `(y - t)^2`: its best prediction is the mean.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> print(losses.SquaredError()(jnp.array([1.0, 3.0]), jnp.array([1.0, 1.0])))
      [0. 4.]

    Source: Legendre 1805, Nouvelles méthodes pour la détermination des orbites des comètes.
    """

    def __call__(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the loss of every target.

        Args:
          predictions: Predicted values [...].
          targets: Values [...].

        Returns:
          Float32 or wider [...].
        """
        return jnp.square(_wide(predictions) - _wide(targets))

    def point(self, predictions: jax.Array) -> jax.Array:
        """Return the predictions.

        Args:
          predictions: Predicted values [...].

        Returns:
          [...].
        """
        return predictions


@dataclasses.dataclass(frozen=True)
class AbsoluteError:
    """The absolute error `|y - t|`: its best prediction is the median.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> print(losses.AbsoluteError()(jnp.array([1.0, 3.0]), jnp.array([1.0, 1.0])))
      [0. 2.]

    Source: Koenker and Bassett 1978, Econometrica 46(1), page 33.
    """

    def __call__(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the loss of every target.

        Args:
          predictions: Predicted values [...].
          targets: Values [...].

        Returns:
          Float32 or wider [...].
        """
        return jnp.abs(_wide(predictions) - _wide(targets))

    def point(self, predictions: jax.Array) -> jax.Array:
        """Return the predictions.

        Args:
          predictions: Predicted values [...].

        Returns:
          [...].
        """
        return predictions


@dataclasses.dataclass(frozen=True)
class Huber:
    r"""Squared error near the target, absolute error far from it.

    $$ e^2 / 2 \text{ if } |e| \le \delta, \text{ else } \delta (|e| - \delta / 2) $$

    Args:
      delta: Error at which one turns into the other, in the unit of the targets.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> print(losses.Huber(delta=1.0)(jnp.array([1.5, 3.0]), jnp.array([1.0, 1.0])))
      [0.125 1.5  ]

    Source: Huber 1964, Annals of Mathematical Statistics 35(1), page 73.
    """

    RANGES: ClassVar[dict[str, str]] = {"delta": "0 < x"}
    delta: float = 1.0

    def __call__(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the loss of every target.

        Args:
          predictions: Predicted values [...].
          targets: Values [...].

        Returns:
          Float32 or wider [...].
        """
        # With n = min(|e|, delta) both branches are n (|e| - n / 2), without a select: e^2 of a far
        # value could overflow in the branch that is not taken, and make the gradient NaN.
        error = jnp.abs(_wide(predictions) - _wide(targets))
        near = jnp.minimum(error, self.delta)
        return near * (error - 0.5 * near)

    def point(self, predictions: jax.Array) -> jax.Array:
        """Return the predictions.

        Args:
          predictions: Predicted values [...].

        Returns:
          [...].
        """
        return predictions


@dataclasses.dataclass(frozen=True)
class Quantiles:
    r"""The mean pinball loss of several quantiles.

    $$ \frac{1}{Q} \sum_q \max(q\,(t - y_q), (q - 1)\,(t - y_q)) $$

    Args:
      levels: The quantiles q, each between 0 and 1; the model gives one output for each, in
        this order.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> loss = losses.Quantiles((0.25, 0.75))
      >>> print(loss(jnp.array([[1.0, 2.0]]), jnp.array([1.0])))
      [0.125]

    Source: Koenker and Bassett 1978, Econometrica 46(1), equation 1.1.
    """

    levels: Sequence[float] = (0.1, 0.5, 0.9)

    def __call__(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the loss of every target.

        Args:
          predictions: Predicted quantiles [..., Q].
          targets: Values [...].

        Returns:
          Float32 or wider [...].
        """
        # Of q e and (q - 1) e the larger one is the pinball loss, for either sign of e.
        error = _wide(targets)[..., None] - _wide(predictions)
        levels = jnp.asarray(self.levels, error.dtype)
        return jnp.maximum(levels * error, (levels - 1) * error).mean(-1)

    def point(self, predictions: jax.Array) -> jax.Array:
        """Return the quantile nearest to the median.

        Args:
          predictions: Predicted quantiles [..., Q].

        Returns:
          [...].
        """
        nearest = min(range(len(self.levels)), key=lambda i: abs(self.levels[i] - 0.5))
        return predictions[..., nearest]


def _wide(x: Any) -> jax.Array:
    # Before the subtraction: bfloat16 would round the difference, and then the square of it again.
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
