"""The step guard: rejects steps that would harm the parameters, and counts them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from luthier.optim.schedules import runtime

_LEAST_DEVIATION = 0.1  # of the mean


class GuardState(NamedTuple):
    """Counters and running statistics of the guard; all are scalars.

    Args:
      total_skipped: Steps rejected so far, int32.
      consecutive_skipped: Steps rejected since the last accepted one, int32.
      observed: Steps in the statistics, int32.
      mean: Running mean of the gradient norm, float32.
      variance: Running variance of the gradient norm, float32.
    """

    total_skipped: jax.Array
    consecutive_skipped: jax.Array
    observed: jax.Array
    mean: jax.Array
    variance: jax.Array


@dataclasses.dataclass(frozen=True)
class Guard:
    r"""Rejects steps whose loss or gradient is not finite, and steps whose gradient spikes.

    With the running mean $\mu$ and deviation $\sigma$ of the gradient norm, a step spikes if

    $$ \|g\| > \mu + k \max(\sigma, \mu / 10). $$

    The statistics are plain averages at first and forget with `decay` later. A spike enters them
    cut down to the limit, so that a lasting rise is accepted after a while; what is not finite
    does not enter. A norm whose square overflows float32 counts as not finite.

    Args:
      max_consecutive_skips: Rejected steps in a row after which the training loop stops the run.
      spike_factor: Limit in deviations above the mean, $k$; None for no limit on finite steps.
      decay: Decay of the statistics.
      warmup_steps: Steps that are observed before any can be a spike.

    Source: West, 1979, Communications of the ACM 22(9), for the weighted running variance; the
      rule for spikes is ours.
    """

    RANGES: ClassVar[dict[str, str]] = {
        "max_consecutive_skips": "1 <= x",
        "spike_factor": "0 < x",
        "decay": "0 <= x < 1",
        "warmup_steps": "0 <= x",
    }
    READ_WHEN: ClassVar[dict[str, str]] = {
        "decay": "spike_factor is not None",
        "warmup_steps": "spike_factor is not None",
    }

    max_consecutive_skips: int = 10
    spike_factor: float | None = None
    decay: float = 0.99
    warmup_steps: int = 100

    def init(self) -> GuardState:
        """Return the state before the first step.

        Returns:
          Zeros, scalars.
        """
        zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        return GuardState(none, none, none, zero, zero)

    def check(
        self, state: GuardState, loss: jax.Array, gradient_norm: jax.Array
    ) -> tuple[jax.Array, GuardState]:
        """Decide whether to apply a step; where it is rejected, the caller keeps the old state.

        Args:
          state: The guard's state.
          loss: The loss, a scalar.
          gradient_norm: The norm of the whole gradient before clipping, a scalar.

        Returns:
          Whether the step is accepted, a boolean scalar, and the next state of the guard.
        """
        # Everything is arithmetic on scalars and `where`, no branch and no value that the host
        # reads: the decision is part of the compiled step, which selects between the old and the
        # new state by it. So a rejected step costs no synchronization and no second program.
        finite = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
        # A placeholder where the norm is not finite; the statistics of such a step are discarded at
        # the end. The cast keeps the state's types, which a scan over steps requires.
        norm = jnp.where(finite, gradient_norm, state.mean).astype(state.mean.dtype)
        accepted, entering = finite, norm
        if self.spike_factor is not None:
            limit = self._limit(state, self.spike_factor)
            accepted = finite & (norm <= limit)
            # Cut down and not left out: if spikes did not enter at all, a run whose gradients have
            # grown for good would be rejected until it stops. This way the limit follows, by a
            # bounded amount a step.
            entering = jnp.minimum(norm, limit)
        # West's recurrences with the weight of the newest observation: 1 / (n + 1) gives plain
        # averages until that falls below 1 - decay, and an exponential average from then on. So
        # there is no bias of the zeros that the state starts from. (The `total_skipped` that
        # `runtime` gets is only a number that the compiler does not know.)
        share = jnp.maximum(
            runtime(1 - self.decay, state.total_skipped),
            1 / (state.observed + 1).astype(state.mean.dtype),
        )
        change = entering - state.mean
        mean = state.mean + share * change
        variance = (1 - share) * (state.variance + share * change * change)
        skipped = 1 - accepted.astype(jnp.int32)
        return accepted, GuardState(
            total_skipped=state.total_skipped + skipped,
            # Zero as soon as a step is accepted: the factor is 0 there.
            consecutive_skipped=(state.consecutive_skipped + 1) * skipped,
            observed=state.observed + finite.astype(jnp.int32),
            mean=jnp.where(finite, mean, state.mean).astype(state.mean.dtype),
            variance=jnp.where(finite, variance, state.variance).astype(state.variance.dtype),
        )

    def _limit(self, state: GuardState, factor: float) -> jax.Array:
        # The floor is for quiet stretches: when norms hardly vary, sigma goes to zero, and any
        # small increase would be many deviations.
        deviation = jnp.maximum(jnp.sqrt(state.variance), _LEAST_DEVIATION * state.mean)
        limit = state.mean + runtime(factor, state.total_skipped) * deviation
        # With no observation the mean is 0 and so is the limit: the very first step would count as
        # a spike even without a warmup.
        warm = state.observed.astype(limit.dtype) >= runtime(self.warmup_steps, state.total_skipped)
        return jnp.where(warm & (state.observed > 0), limit, jnp.inf)
