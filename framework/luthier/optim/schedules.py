"""Hyperparameters as arrays that the compiler does not know.

A hyperparameter is a Python number, a traced array, or an object with `__jax_array__`, arithmetic
and a complement `1 - x` of its own (a hoisted leaf of a sweep). All of them must give the same
bits. A compiler that knows a number rewrites with it: XLA turns a division by a constant into a
multiplication by its reciprocal, evaluates `log1p` of a constant with another library than the
device's, and fuses differently.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from luthier.errors import BadInput, Problem

Hyperparameter = Any
"""A float, a traced scalar, or a scalar object with `__jax_array__`."""


def runtime(value: Hyperparameter, count: ArrayLike) -> jax.Array:
    """Return a hyperparameter as an array whose value is opaque to the compiler.

    It is selected by a condition that always holds and that only the running program can know.
    (`jax.lax.optimization_barrier` does not do: XLA removes it on the CPU before it simplifies.)
    Write complements on the raw object: `runtime(1 - b2, count)`.

    Args:
      value: The hyperparameter.
      count: An int32 that is never negative and not known to the compiler, such as the number of
        updates so far.

    Returns:
      The value, float32 (float64 under `jax_enable_x64`), of the shape of `count`.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import optim
      >>> print(optim.runtime(0.5, jnp.int32(3)))
      0.5
    """
    # `count < 0` is false in every run, but only the running program knows it; so the compiler has
    # to keep the select, and treats a Python float and a traced scalar alike from here on. The
    # price is one select of a scalar for each hyperparameter and step.
    array = jnp.asarray(value, jnp.result_type(float))
    return jnp.where(jnp.asarray(count) < 0, jnp.zeros_like(array), array)


# Schedules: hyperparameters as functions of the number of updates so far.
#
# All are branch-free, so every argument may be traced, and pure, so the value that is logged is the
# value that is used. In the formulas $t$ is the step, $W$ the warmup and $T$ the total.

_LENGTHS = {"warmup_steps": "0 <= x", "total_steps": "0 < x"}


class Schedule(Protocol):
    """A hyperparameter as a function of the step."""

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the value at `step` (int32, 0 for the first update), float32.

        Args:
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          The value, float32, of the shape of `step`.
        """


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same value at every step.

    Args:
      value: The value.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.Constant(0.1)
      >>> print(np.asarray(schedule(jnp.array([0, 100]))).round(3))
      [0.1 0.1]
    """

    RANGES: ClassVar[dict[str, str]] = {"value": "0 <= x"}

    value: float

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the value at a step.

        Args:
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          Float32, of the shape of `step`.
        """
        return runtime(self.value, step)


@dataclasses.dataclass(frozen=True)
class Warmup(abc.ABC):
    r"""A linear rise to the peak, then a fall to the end; subclasses say along which curve.

    $$ \eta_t = \begin{cases} s + (p - s)\, t / W & t < W \\
       e + (p - e)\, f(\min(1, \frac{t - W}{T - W})) & t \ge W \end{cases} $$

    Args:
      peak: The highest value, $p$, reached at `warmup_steps`.
      warmup_steps: Number of warmup steps, $W$.
      total_steps: Step at which the end is reached, $T$, with the warmup in it.
      end: Value from then on, $e$.
      start: Value at step 0 if there is a warmup, $s$.
    """

    RANGES: ClassVar[dict[str, str]] = {**_LENGTHS, "peak": "0 <= x", "end": "0 <= x"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("warmup_steps < total_steps",)
    READ_WHEN: ClassVar[dict[str, str]] = {"start": "warmup_steps > 0"}

    peak: float
    warmup_steps: int
    total_steps: int
    end: float = 0.0
    start: float = 0.0

    @abc.abstractmethod
    def remaining(self, progress: jax.Array, step: ArrayLike) -> jax.Array:
        """Return the remaining fraction of the fall, $f$, at a progress from 0 to 1."""

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the value at `step`, float32."""
        # Both pieces are computed at every step and one is selected: warmup and length may be
        # swept, so no piece can be cut off in Python, and a `cond` would cost more than the
        # arithmetic.
        warmup, total = runtime(self.warmup_steps, step), runtime(self.total_steps, step)
        remaining = self.remaining(_progress(step, warmup, total), step)
        decayed = _between(self.end, self.peak, remaining, step)
        return _warmed_up(self.start, self.peak, warmup, step, decayed)


@dataclasses.dataclass(frozen=True)
class WarmupCosine(Warmup):
    r"""A linear rise to the peak, then half a cosine down: $f(x) = \frac12 (1 + \cos \pi x)$.

    Its settings are those of `Warmup`.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.WarmupCosine(peak=1.0, warmup_steps=10, total_steps=110)
      >>> print(np.asarray(schedule(jnp.array([0, 5, 10, 60, 110]))).round(3))
      [0.  0.5 1.  0.5 0. ]

    Source: Loshchilov and Hutter, 2017, arXiv:1608.03983, equation 5.
    """

    def remaining(self, progress: jax.Array, step: ArrayLike) -> jax.Array:
        """Return the remaining fraction of the fall.

        Args:
          progress: Progress of the fall from 0 to 1.
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          From 1 at the start to 0 at the end, of the shape of `progress`.
        """
        return 0.5 * (1 + jnp.cos(jnp.pi * progress))


@dataclasses.dataclass(frozen=True)
class WarmupLinear(Warmup):
    r"""A linear rise to the peak, then a linear fall: $f(x) = 1 - x$.

    Its settings are those of `Warmup`.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.WarmupLinear(peak=1.0, warmup_steps=10, total_steps=110)
      >>> print(np.asarray(schedule(jnp.array([0, 5, 10, 60, 110]))).round(3))
      [0.  0.5 1.  0.5 0. ]
    """

    def remaining(self, progress: jax.Array, step: ArrayLike) -> jax.Array:
        """Return the remaining fraction of the fall.

        Args:
          progress: Progress of the fall from 0 to 1.
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          From 1 at the start to 0 at the end, of the shape of `progress`.
        """
        return 1 - progress


@dataclasses.dataclass(frozen=True)
class WarmupPolynomial(Warmup):
    r"""A linear rise to the peak, then a fall by a power: $f(x) = (1 - x)^q$.

    Its further settings are those of `Warmup`.

    Args:
      power: The power, $q$.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.WarmupPolynomial(peak=1.0, warmup_steps=10, total_steps=110)
      >>> print(np.asarray(schedule(jnp.array([0, 5, 10, 60, 110]))).round(3))
      [0.   0.5  1.   0.25 0.  ]

    Source: Devlin et al., 2019, arXiv:1810.04805, whose program has it with a power of 1.
    """

    RANGES: ClassVar[dict[str, str]] = {**Warmup.RANGES, "power": "0 < x"}

    power: float = 2.0

    def remaining(self, progress: jax.Array, step: ArrayLike) -> jax.Array:
        """Return the remaining fraction of the fall.

        Args:
          progress: Progress of the fall from 0 to 1.
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          From 1 at the start to 0 at the end, of the shape of `progress`.
        """
        return (1 - progress) ** runtime(self.power, step)


@dataclasses.dataclass(frozen=True)
class WarmupStableDecay:
    r"""A linear rise to the peak, the peak for most of the run, and a linear fall at its end.

    A run can be extended from a checkpoint of the stable part. With $D$ the steps of the fall:

    $$ \eta_t = \begin{cases} s + (p - s)\, t / W & t < W \\
       e + (p - e)\, \min(1, \max(0, \frac{T - t}{D})) & t \ge W \end{cases} $$

    Args:
      peak: The highest value, $p$.
      warmup_steps: Number of warmup steps, $W$.
      decay_steps: Number of decay steps, $D$.
      total_steps: Step at which the end is reached, $T$, with the warmup in it.
      end: Value from then on, $e$.
      start: Value at step 0 if there is a warmup, $s$.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.WarmupStableDecay(
      ...     peak=1.0, warmup_steps=10, decay_steps=20, total_steps=110
      ... )
      >>> print(np.asarray(schedule(jnp.array([0, 10, 90, 100, 110]))).round(3))
      [0.  1.  1.  0.5 0. ]

    Source: Hu et al., 2024, arXiv:2404.06395, equation 1; the linear fall is from Hagele et al.,
      2024, arXiv:2405.18392, section 3.
    """

    RANGES: ClassVar[dict[str, str]] = {
        **_LENGTHS,
        "decay_steps": "0 <= x",
        "peak": "0 <= x",
        "end": "0 <= x",
    }
    RELATIONS: ClassVar[tuple[str, ...]] = ("warmup_steps + decay_steps <= total_steps",)
    READ_WHEN: ClassVar[dict[str, str]] = {"start": "warmup_steps > 0"}

    peak: float
    warmup_steps: int
    decay_steps: int
    total_steps: int
    end: float = 0.0
    start: float = 0.0

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the value at a step.

        Args:
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          Float32, of the shape of `step`.
        """
        warmup, total = runtime(self.warmup_steps, step), runtime(self.total_steps, step)
        # The fall is counted from the end, so that a longer run keeps its length.
        fall_begins = total - runtime(self.decay_steps, step)
        decayed = _between(self.end, self.peak, 1 - _progress(step, fall_begins, total), step)
        return _warmed_up(self.start, self.peak, warmup, step, decayed)


@dataclasses.dataclass(frozen=True)
class InverseSquareRoot:
    r"""A linear rise to the peak, then a fall with the square root of the step; it never ends.

    $$ \eta_t = p \min(t / W, \sqrt{W / t}) $$

    Args:
      peak: The highest value, $p$, reached at `warmup_steps`.
      warmup_steps: Number of warmup steps, $W$.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.InverseSquareRoot(peak=1.0, warmup_steps=100)
      >>> print(np.asarray(schedule(jnp.array([0, 50, 100, 400]))).round(3))
      [0.  0.5 1.  0.5]

    Source: Vaswani et al., 2017, arXiv:1706.03762, equation 3.
    """

    RANGES: ClassVar[dict[str, str]] = {"peak": "0 <= x", "warmup_steps": "0 < x"}

    peak: float
    warmup_steps: int

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the value at a step.

        Args:
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          Float32, of the shape of `step`.
        """
        warmup = runtime(self.warmup_steps, step)
        # At step 0 the other term of the minimum is 0; the bound only keeps 1 / 0 out of it.
        fall = jnp.sqrt(warmup / jnp.maximum(_real(step), 1))
        return runtime(self.peak, step) * jnp.minimum(_real(step) / warmup, fall)


@dataclasses.dataclass(frozen=True)
class Exponential:
    r"""A fall by a constant factor in every interval.

    $$ \eta_t = \max(e,\ v\, r^{t / D}) $$

    Args:
      initial: Value at step 0, $v$.
      rate: Factor for every `decay_steps`, $r$.
      decay_steps: Steps of an interval, $D$.
      end: The lowest value, $e$.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.Exponential(initial=1.0, rate=0.5, decay_steps=10)
      >>> print(np.asarray(schedule(jnp.array([0, 10, 20]))).round(3))
      [1.   0.5  0.25]
    """

    RANGES: ClassVar[dict[str, str]] = {
        "initial": "0 <= x",
        "rate": "0 < x",
        "decay_steps": "0 < x",
        "end": "0 <= x",
    }

    initial: float
    rate: float
    decay_steps: int
    end: float = 0.0

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the value at a step.

        Args:
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          Float32, of the shape of `step`.
        """
        # A real number of intervals, so that the rate falls at every step and not in stairs.
        intervals = _real(step) / runtime(self.decay_steps, step)
        value = runtime(self.initial, step) * runtime(self.rate, step) ** intervals
        return jnp.maximum(runtime(self.end, step), value)


@dataclasses.dataclass(frozen=True)
class Cycles:
    r"""Half a cosine down, again and again: warm restarts.

    Cycle $i$ lasts $L_i = L f^i$ steps. With $x$ the part of it that is done:

    $$ \eta_t = e + (p g^i - e)\, \tfrac12 (1 + \cos \pi x) $$

    After the last cycle the value stays at the end.

    Args:
      peak: Value at the start of the first cycle, $p$.
      cycle_steps: Steps of the first cycle, $L$.
      num_cycles: Number of cycles.
      length_factor: Ratio of the length of each cycle to that of the one before, $f$.
      peak_factor: Ratio of the peak of each cycle to that of the one before, $g$.
      end: Value at the end of each cycle, $e$.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.Cycles(peak=1.0, cycle_steps=10, num_cycles=2)
      >>> print(np.asarray(schedule(jnp.array([0, 5, 10, 15, 20]))).round(3))
      [1.  0.5 1.  0.5 0. ]

    Source: Loshchilov and Hutter, 2017, arXiv:1608.03983, equation 5 and section 3.
    """

    RANGES: ClassVar[dict[str, str]] = {
        "peak": "0 <= x",
        "cycle_steps": "1 <= x",
        "num_cycles": "1 <= x",
        "length_factor": "0 < x",
        "peak_factor": "0 < x",
        "end": "0 <= x",
    }
    READ_WHEN: ClassVar[dict[str, str]] = {
        "length_factor": "num_cycles > 1",
        "peak_factor": "num_cycles > 1",
    }

    peak: float
    cycle_steps: int
    num_cycles: int
    length_factor: float = 1.0
    peak_factor: float = 1.0
    end: float = 0.0

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the value at a step.

        Args:
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          Float32, of the shape of `step`.
        """
        # A loop over the cycles in place of the closed form log_f(1 + t (f - 1) / L): that divides
        # by zero at f = 1, which a sweep over f may include, and its rounding near a restart could
        # put a step into the wrong cycle. Cycles are few; the loop is unrolled into selects.
        t, length = _real(step), runtime(self.cycle_steps, step)
        begin, peak = jnp.zeros_like(t), runtime(self.peak, step)
        ends = begin + length
        for _ in range(self.num_cycles - 1):
            over = t >= ends
            length = jnp.where(over, length * runtime(self.length_factor, step), length)
            peak = jnp.where(over, peak * runtime(self.peak_factor, step), peak)
            begin = jnp.where(over, ends, begin)
            ends = begin + length
        share = 0.5 * (1 + jnp.cos(jnp.pi * _progress(step, begin, ends)))
        end = runtime(self.end, step)
        return end + (peak - end) * share


@dataclasses.dataclass(frozen=True)
class Join:
    """Schedules one after the other, each from its own step 0.

    Args:
      schedules: The schedules; one more than there are boundaries.
      boundaries: The step at which each schedule but the first begins, ascending.

    Raises:
      BadInput: There is not one boundary less than there are schedules.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.Join([optim.Constant(1.0), optim.Constant(0.1)], boundaries=[100])
      >>> print(np.asarray(schedule(jnp.array([0, 99, 100]))).round(3))
      [1.  1.  0.1]
    """

    schedules: Sequence[Schedule]
    boundaries: Sequence[int]

    def __post_init__(self) -> None:
        """Check the lengths, which are never traced."""
        _one_less("Join", "schedules", self.schedules, self.boundaries)

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the value at a step.

        Args:
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          Float32, of the shape of `step`.
        """
        value = self.schedules[0](step)
        # From the first boundary to the last: each later schedule replaces the value where it has
        # begun. Schedules that have not begun are evaluated at their step 0, never at a negative
        # one, where `runtime` would return zeros and a square root NaN.
        for boundary, later in zip(self.boundaries, self.schedules[1:], strict=True):
            begin = runtime(boundary, step)
            own = jnp.maximum(_real(step) - begin, 0)
            value = jnp.where(_real(step) < begin, value, later(own.astype(jnp.int32)))
        return value


@dataclasses.dataclass(frozen=True)
class Piecewise:
    """Constant pieces.

    Args:
      values: The value of each piece; one more than there are boundaries.
      boundaries: The step at which each piece but the first begins, ascending.

    Raises:
      BadInput: There is not one boundary less than there are values.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> schedule = optim.Piecewise(values=[1.0, 0.1], boundaries=[100])
      >>> print(np.asarray(schedule(jnp.array([0, 99, 100]))).round(3))
      [1.  1.  0.1]
    """

    values: Sequence[float]
    boundaries: Sequence[int]

    def __post_init__(self) -> None:
        """Check the lengths, which are never traced."""
        _one_less("Piecewise", "values", self.values, self.boundaries)

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the value at a step.

        Args:
          step: The number of updates so far, an int or an int32 array; it may be traced.

        Returns:
          Float32, of the shape of `step`.
        """
        # Boundaries may be traced: no piece is picked by an index, all are selected from in turn.
        value = runtime(self.values[0], step)
        for boundary, later in zip(self.boundaries, self.values[1:], strict=True):
            value = jnp.where(_real(step) < runtime(boundary, step), value, runtime(later, step))
        return value


def _one_less(name: str, what: str, values: Sequence[Any], boundaries: Sequence[Any]) -> None:
    if len(values) != len(boundaries) + 1:
        problem = f"{name}: {len(values)} {what} and {len(boundaries)} boundaries"
        raise BadInput(Problem(problem, remedy=f"give one boundary less than {what}"))


def _real(step: ArrayLike) -> jax.Array:
    # Float32 holds every step up to 2**24 exactly. Beyond, a step is off by one part in 16 million.
    return jnp.asarray(step).astype(jnp.result_type(float))


def _progress(step: ArrayLike, begin: jax.Array, end: jax.Array) -> jax.Array:
    # At least one step, for a fall of no steps at all (`decay_steps` of 0): 0 / 0 would be NaN,
    # also where the other piece of the schedule is selected afterwards.
    return jnp.clip((_real(step) - begin) / jnp.maximum(end - begin, 1), 0, 1)


def _between(
    low: Hyperparameter, high: Hyperparameter, share: jax.Array, step: ArrayLike
) -> jax.Array:
    # In this form a share of 0 gives exactly `low`, so that a schedule that ends at 0 does.
    end = runtime(low, step)
    return end + (runtime(high, step) - end) * share


def _warmed_up(
    start: float, peak: Hyperparameter, warmup: jax.Array, step: ArrayLike, then: jax.Array
) -> jax.Array:
    # A warmup of 0 steps is never selected; the bound keeps 0 / 0 out of its gradient and of
    # debuggers that look for NaN.
    rise = _between(start, peak, _real(step) / jnp.maximum(warmup, 1), step)
    return jnp.where(_real(step) < warmup, rise, then)
