"""Adafactor: second moments of a matrix from those of its rows and columns."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from luthier.optim.layouts import Axes, Layout, Layouts, OptimizerStage, complete
from luthier.optim.masks import DECAYED, ParameterMask
from luthier.optim.optimizer import Optimizer, assemble
from luthier.optim.schedules import Schedule, runtime
from luthier.optim.stages import (
    Arrays,
    MomentumState,
    Transformation,
    add_decayed_weights,
    bias_correction,
    clip_update_rms,
    clipping,
    pass_through,
    zeros_like,
)


class Decay(Protocol):
    """The decay of second moments, as the share of the newest gradient."""

    def __call__(self, count: jax.Array) -> jax.Array:
        """Return the share of the newest gradient, given the number of updates so far (int32)."""


@dataclasses.dataclass(frozen=True)
class PowerDecay:
    r"""A memory that grows with the number of steps: $1 - \hat\beta_t = \max(s, t^{-c})$.

    Args:
      exponent: $c$.
      least_share: The least share of the newest gradient, $s$; 0 lets the memory grow for ever.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import optim
      >>> print(optim.PowerDecay(exponent=0.5)(jnp.int32(3)))
      0.5

    Source: Shazeer and Stern, 2018, arXiv:1804.04235, section 7.2; the limit is from Zhai et al.,
      2022, arXiv:2106.04560, section 3.4.
    """

    RANGES: ClassVar[dict[str, str]] = {"exponent": "0 < x", "least_share": "0 <= x <= 1"}

    exponent: float = 0.8
    least_share: float = 0.0

    def __call__(self, count: jax.Array) -> jax.Array:
        """Return the share of the newest gradient after `count` updates.

        Args:
          count: The number of updates so far, an int32 scalar.

        Returns:
          A float32 scalar from 0 to 1.
        """
        # 1 at the first step, so that the zeros of the initial state have no weight: the reason why
        # this decay needs no bias correction.
        least = runtime(self.least_share, count)
        t = (count + 1).astype(least.dtype)
        return jnp.maximum(least, t ** -runtime(self.exponent, count))


@dataclasses.dataclass(frozen=True)
class AdamDecay:
    r"""Adam's memory, corrected for its bias: $1 - \hat\beta_t = (1 - \beta) / (1 - \beta^t)$.

    Args:
      b2: $\beta$.

    Source: Shazeer and Stern, 2018, arXiv:1804.04235, section 7.1.
    """

    RANGES: ClassVar[dict[str, str]] = {"b2": "0 <= x < 1"}

    b2: float = 0.99

    def __call__(self, count: jax.Array) -> jax.Array:
        """Return the share of the newest gradient after `count` updates.

        Args:
          count: The number of updates so far, an int32 scalar.

        Returns:
          A float32 scalar from 0 to 1.
        """
        share = runtime(1 - self.b2, count)
        return share / bias_correction(share, count)


class FactoredState(NamedTuple):
    """Mean squares by parameter name: of rows and columns, or of every entry.

    `rows` has lost the larger of the two factored dimensions, `columns` the smaller; what is not
    factored is in `entries`.
    """

    rows: dict[str, jax.Array]
    columns: dict[str, jax.Array]
    entries: dict[str, jax.Array]

    def axes(self, layouts: Layouts) -> FactoredState:
        """Return the logical axes that the factors keep of their parameter's."""

        # Asked again which dimensions were factored, with a least size of 0: an entry in `rows`
        # was large enough when it was made, and a layout does not know the setting.
        def lacking(lost: int) -> dict[str, Axes | None]:
            return {n: _without(layouts[n], self.dims()(layouts[n], 0)[lost]) for n in self.rows}

        whole = {n: Axes(a) if (a := layouts[n].axes) else None for n in self.entries}
        return type(self)(lacking(1), lacking(0), whole)  # type: ignore[arg-type]

    @staticmethod
    def dims() -> FactoredDims:
        """Return the rule that chose the dimensions."""
        return LargestDims()


class LastFactoredState(FactoredState):
    """Mean squares by parameter name, of the rows and columns of the last two dimensions."""

    # A subclass and not a field: a state is a tree of arrays, in which the rule would be a leaf.
    __slots__ = ()

    @staticmethod
    def dims() -> FactoredDims:
        """Return the rule that chose the dimensions."""
        return LastDims()


class FactoredDims(Protocol):
    """Chooses the two dimensions of a parameter whose mean squares are kept apart."""

    state: ClassVar[type[FactoredState]]
    """Class of the state, which names the rule."""

    def __call__(self, layout: Layout, least: int) -> tuple[int, ...]:
        """Return the dimensions of the columns and of the rows; none to keep every entry.

        Args:
          layout: The structure of the parameter.
          least: The least size of a dimension that is factored.
        """


@dataclasses.dataclass(frozen=True)
class LargestDims:
    """The two largest dimensions of each layer, the smaller one first, as in Optax."""

    state: ClassVar[type[FactoredState]] = FactoredState

    def __call__(self, layout: Layout, least: int) -> tuple[int, ...]:
        """Return the dimensions to factor; see `FactoredDims`.

        Args:
          layout: The layout of the parameter.
          least: Smallest dimension that is factored.

        Returns:
          Two dimensions, or none where the parameter is not factored.
        """
        # The sort is stable, so of equal sizes the last ones are taken, the same at every call.
        by_size = sorted(layout.own_dims, key=lambda d: layout.shape[d])[-2:]
        return _fitting(layout, tuple(by_size), least)


@dataclasses.dataclass(frozen=True)
class LastDims:
    """The last two dimensions of each layer, as in Pax: heads and their elements, for a query.

    Source: praxis 1.4.0, `optimizers.ShardedAdafactor`.
    """

    # Needed to continue or compare runs of Pax: on a query kernel [embed, heads, head_dim] the two
    # largest dimensions would be others, and so the whole second moment.

    state: ClassVar[type[FactoredState]] = LastFactoredState

    def __call__(self, layout: Layout, least: int) -> tuple[int, ...]:
        """Return the dimensions to factor; see `FactoredDims`.

        Args:
          layout: The layout of the parameter.
          least: Smallest dimension that is factored.

        Returns:
          Two dimensions, or none where the parameter is not factored.
        """
        return _fitting(layout, layout.own_dims[-2:], least)


def _without(layout: Layout, dim: int) -> Axes | None:
    if layout.axes is None:
        return None
    return Axes(tuple(axis for d, axis in enumerate(layout.axes) if d != dim))


def _fitting(layout: Layout, dims: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Return two dimensions, or nothing where there are fewer or one is too small."""
    fit = len(dims) == 2 and min(layout.shape[d] for d in dims) >= least
    return dims if fit else ()


def scale_by_factored_rms(
    decay: Decay, eps: float, least_factored_dim: int, dims: FactoredDims = LargestDims()
) -> OptimizerStage:
    r"""Divide by the root of the mean square, kept by row and column where there are matrices.

    With $s_t = 1 - \hat\beta_t$ from `decay`, over two dimensions of each layer, i and j:

    $$ R_t = (1 - s_t) R_{t-1} + s_t\, \mathrm{mean}_j(g^2_{ij} + \epsilon), \quad
       C_t = (1 - s_t) C_{t-1} + s_t\, \mathrm{mean}_i(g^2_{ij} + \epsilon), \quad
       u_{ij} = g_{ij} / \sqrt{R_i C_j / \mathrm{mean}(R)} $$

    Args:
      decay: Decay of the mean squares.
      eps: Added to squares, $\epsilon$.
      least_factored_dim: Parameters with no two dimensions of this size keep every entry.
      dims: Rule that chooses the dimensions.

    Source: Shazeer and Stern, 2018, arXiv:1804.04235, algorithm 4.
    """

    def init(parameters: Arrays, layouts: Layouts | None = None) -> FactoredState:
        known, full = complete(parameters, layouts), zeros_like(parameters)
        factored = {n: dims(known[n], least_factored_dim) for n in parameters}
        # Means of zeros, and not zeros of a computed shape: the factors have by construction the
        # shapes of the means that `update` takes. `rows` loses d[1]: the larger dimension with
        # `LargestDims`, the last one with `LastDims`.
        return dims.state(
            {n: jnp.mean(full[n], d[1]) for n, d in factored.items() if d},
            {n: jnp.mean(full[n], d[0]) for n, d in factored.items() if d},
            {n: full[n] for n, d in factored.items() if not d},
        )

    def update(
        gradients: Arrays,
        state: FactoredState,
        parameters: Any = None,
        *,
        count: jax.Array,
        layouts: Layouts,
        **_: Any,
    ) -> tuple[Any, FactoredState]:
        share, small = decay(count), runtime(eps, count)
        rows, columns, entries, updates = {}, {}, {}, {}
        for n, g in gradients.items():
            # Algorithm 4 adds eps to the squares, before the means: no mean is ever zero, and the
            # roots below need no bound.
            square = g * g + small
            if n in state.entries:
                entries[n] = state.entries[n] + share * (square - state.entries[n])
                updates[n] = g * jax.lax.rsqrt(entries[n])
                continue
            # Named for `LargestDims`; with `LastDims` they are the last but one and the last, and
            # either may be larger. The formula is the same: R C / mean(R) is symmetric.
            smaller, larger = dims(layouts[n], least_factored_dim)
            rows[n] = state.rows[n] + share * (square.mean(larger) - state.rows[n])
            columns[n] = state.columns[n] + share * (square.mean(smaller) - state.columns[n])
            row = jnp.expand_dims(rows[n], larger)
            column = jnp.expand_dims(columns[n], smaller)
            # R C / mean(R) with the division first: for gradients of 1e-10 the product of two means
            # of squares would underflow float32. For the same reason there are two roots, of which
            # the product is taken, and not one root of a product.
            relative = row / row.mean(smaller, keepdims=True)
            updates[n] = g * jax.lax.rsqrt(relative) * jax.lax.rsqrt(column)
        return updates, dims.state(rows, columns, entries)

    return OptimizerStage(init, update)  # type: ignore[arg-type]


def scale_by_parameter_rms(least: float) -> Transformation:
    r"""Scale each update with its parameter.

    $$ u \leftarrow u \max(\epsilon_2, \mathrm{rms}(\theta)) $$

    Args:
      least: The least scale, $\epsilon_2$.

    Source: Shazeer and Stern, 2018, arXiv:1804.04235, section 8.
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
        floor = runtime(least, count)

        def scale(name: str, dtype: Any) -> jax.Array:
            # Zeros (a fresh bias) would never move without the floor.
            rms = jnp.sqrt(layouts[name].mean_square(parameters[name].astype(dtype)))
            return jnp.maximum(floor, rms)

        return {n: u * scale(n, u.dtype) for n, u in updates.items()}, state

    return Transformation(optax.init_empty_state, update)


def average_updates(decay: float) -> Transformation:
    r"""Replace the update by its moving average: $m_t = \beta m_{t-1} + (1 - \beta) u_t$.

    Args:
      decay: $\beta$.

    Source: Shazeer and Stern, 2018, arXiv:1804.04235, section 5.
    """

    def update(
        updates: Arrays, state: MomentumState, parameters: Any = None, *, count: jax.Array, **_: Any
    ) -> tuple[Any, MomentumState]:
        share = runtime(1 - decay, count)
        averages = {n: m + share * (updates[n] - m) for n, m in state.trace.items()}
        return averages, MomentumState(averages)

    return Transformation(lambda parameters: MomentumState(zeros_like(parameters)), update)


def adafactor(
    learning_rate: Schedule | float,
    decay: Decay = PowerDecay(),
    eps: float = 1e-30,
    least_factored_dim: int = 128,
    max_update_rms: float | None = 1.0,
    least_parameter_rms: float | None = 1e-3,
    momentum: float | None = None,
    weight_decay: float = 0.0,
    decay_mask: ParameterMask = DECAYED,
    clip_norm: float | None = None,
    factored_dims: FactoredDims = LargestDims(),
) -> Optimizer:
    r"""Adafactor: adaptive steps with a memory that is small beside the parameters.

    With $u_t$ of `scale_by_factored_rms`, for each parameter of each layer:

    $$ \hat u_t = \frac{u_t}{\max(1, \mathrm{rms}(u_t) / d)}
                  \max(\epsilon_2, \mathrm{rms}(\theta_{t-1})), \quad
       \theta_t = \theta_{t-1} - \eta_t (\hat u_t + \lambda \theta_{t-1}) $$

    Args:
      learning_rate: The learning rate, $\eta$, or a schedule over the number of updates; relative
        to the parameter where `least_parameter_rms` is set.
      decay: Decay of the second moments.
      eps: Added to squared gradients.
      least_factored_dim: Smallest dimension that is factored. Parameters with fewer than two
        dimensions of this size keep second moments of every entry; the layers of a scanned stack do
        not count as a dimension.
      max_update_rms: The clipping threshold, $d$; None for none.
      least_parameter_rms: The least scale, $\epsilon_2$; None for absolute learning rates.
      momentum: Decay of the average of updates; None for no average, and no memory for it.
      weight_decay: The decay, $\lambda$.
      decay_mask: The parameters that decay; by default not biases, norms and embeddings.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.
      factored_dims: Rule that chooses the two dimensions to factor.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> optimizer = optim.adafactor(learning_rate=0.1)
      >>> parameters = {"mlp.kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"mlp.kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> print(np.asarray(updates["mlp.kernel"]).round(3))
      [[-0.1  0.1]
       [-0.1 -0.1]]

    Source: Shazeer and Stern, 2018, arXiv:1804.04235, algorithms 4 and 5.

    Deviation: the average and the decay are of what the learning rate is multiplied with, as in the
      other recipes; Optax averages products with it, and does not multiply the decay by it.
    """
    # Algorithm 5: factored root mean square, clip of the update (which stands in for a first moment
    # as the cure for outdated second moments), then the scale of the parameter. A setting of None
    # leaves a stage without state in its place, so that the names of the states stay the same.
    scale = least_parameter_rms
    stages = [
        clipping(clip_norm),
        scale_by_factored_rms(decay, eps, least_factored_dim, factored_dims),
        pass_through() if max_update_rms is None else clip_update_rms(max_update_rms),
        pass_through() if scale is None else scale_by_parameter_rms(scale),
        pass_through() if momentum is None else average_updates(momentum),
        add_decayed_weights(weight_decay, decay_mask),
    ]
    return assemble(stages, learning_rate, {"decay_mask": decay_mask})


adafactor.RANGES = {  # type: ignore[attr-defined]
    "eps": "0 < x",
    "least_factored_dim": "1 <= x",
    "max_update_rms": "0 < x",
    "least_parameter_rms": "0 <= x",
    "momentum": "0 <= x < 1",
    "weight_decay": "0 <= x",
    "clip_norm": "0 < x",
}
