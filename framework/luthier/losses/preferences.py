"""Losses of preferences between two responses, as nodes. Shapes: B pairs.

With the policy $\\pi$, the reference $\\rho$, the chosen response $c$ and the rejected one $r$, all
are functions of the log ratio's margin

    h = (log pi(c) - log rho(c)) - (log pi(r) - log rho(r)),

where the log probability of a response is the sum over its tokens. Nothing is divided.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp


class PreferenceLoss(Protocol):
    """A loss of the margin by which a policy prefers the chosen response."""

    def __call__(self, margins_B: jax.Array) -> jax.Array:
        """Return the loss of every pair.

        Args:
          margins_B: Margins h: the log ratio of the chosen response minus that of the rejected
            one [B].

        Returns:
          [B], in the type of the margins.
        """

    def rewards(self, log_ratios_B: jax.Array) -> jax.Array:
        """Return the implied rewards of responses, given log pi - log rho, [B].

        Args:
          log_ratios_B: log pi - log rho of responses [B].

        Returns:
          [B].
        """


@dataclasses.dataclass(frozen=True)
class DPO:
    r"""Direct preference optimization.

    $$ -(1 - s) \log \sigma(\beta h) - s \log \sigma(-\beta h) $$

    Args:
      beta: Strength of the tie to the reference, $\beta$.
      label_smoothing: Probability s that a label is wrong; None leaves the term out.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import losses
      >>> print(np.asarray(losses.DPO(beta=0.1)(jnp.array([0.0, 10.0]))).round(3))
      [0.693 0.313]

    Source: Rafailov et al. 2023, arXiv:2305.18290, equation 7; the smoothing: Mitchell 2023, "A
      note on DPO with noisy preferences".
    """

    RANGES: ClassVar[dict[str, str]] = {"beta": "0 < x", "label_smoothing": "0 <= x < 0.5"}
    beta: float = 0.1
    label_smoothing: float | None = None

    def __call__(self, margins_B: jax.Array) -> jax.Array:
        """Return the loss of every pair.

        Args:
          margins_B: Margins h: the log ratio of the chosen response minus that of the rejected
            one [B].

        Returns:
          [B], in the type of the margins.
        """
        # `log_sigmoid`, and not the logarithm of a sigmoid, which is log 0 for margins of -100.
        logits_B = self.beta * margins_B
        loss_B = -jax.nn.log_sigmoid(logits_B)
        if self.label_smoothing is None:
            return loss_B
        # -log sigma(-x) = x - log sigma(x), so (1 - s) (-log sigma(x)) + s (-log sigma(-x)) is
        # -log sigma(x) + s x.
        return loss_B + self.label_smoothing * logits_B

    def rewards(self, log_ratios_B: jax.Array) -> jax.Array:
        """Return `beta (log pi - log rho)` [B], given the log_ratios_B (equation 5).

        Args:
          log_ratios_B: log pi - log rho of responses [B].

        Returns:
          [B].
        """
        return self.beta * log_ratios_B


@dataclasses.dataclass(frozen=True)
class IPO:
    r"""Identity preference optimization: the margin is drawn to a fixed size, not to infinity.

    $$ (h - \frac{1}{2 \beta})^2 $$

    Args:
      beta: Strength of the tie to the reference, the paper's $\tau$.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> print(losses.IPO(beta=0.1)(jnp.array([0.0, 5.0])))
      [25.  0.]

    Source: Azar et al. 2023, arXiv:2310.12036, equation 17.
    """

    RANGES: ClassVar[dict[str, str]] = {"beta": "0 < x"}
    beta: float = 0.1

    def __call__(self, margins_B: jax.Array) -> jax.Array:
        """Return the loss of every pair.

        Args:
          margins_B: Margins h: the log ratio of the chosen response minus that of the rejected
            one [B].

        Returns:
          [B], in the type of the margins.
        """
        return jnp.square(margins_B - 1 / (2 * self.beta))

    def rewards(self, log_ratios_B: jax.Array) -> jax.Array:
        """Return `beta (log pi - log rho)` [B], given the log_ratios_B.

        Args:
          log_ratios_B: log pi - log rho of responses [B].

        Returns:
          [B].
        """
        return self.beta * log_ratios_B


@dataclasses.dataclass(frozen=True)
class PreferenceHinge:
    r"""The hinge `max(0, 1 - beta h)`: pairs with a large enough margin have no loss.

    Args:
      beta: Strength of the tie to the reference, $\beta$.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> print(losses.PreferenceHinge(beta=0.1)(jnp.array([0.0, 10.0])))
      [1. 0.]

    Source: Zhao et al. 2023, arXiv:2305.10425, equation 5, on the margin of Rafailov et al. 2023.

    Deviation: The margin is of log ratios to the reference, and not of log probabilities.
    """

    RANGES: ClassVar[dict[str, str]] = {"beta": "0 < x"}
    beta: float = 0.1

    def __call__(self, margins_B: jax.Array) -> jax.Array:
        """Return the loss of every pair.

        Args:
          margins_B: Margins h: the log ratio of the chosen response minus that of the rejected
            one [B].

        Returns:
          [B], in the type of the margins.
        """
        return jax.nn.relu(1 - self.beta * margins_B)

    def rewards(self, log_ratios_B: jax.Array) -> jax.Array:
        """Return `beta (log pi - log rho)` [B], given the log_ratios_B.

        Args:
          log_ratios_B: log pi - log rho of responses [B].

        Returns:
          [B].
        """
        return self.beta * log_ratios_B
