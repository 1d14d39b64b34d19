"""Routers, and statistics of routing that layers collect for auxiliary losses.

The statistics are sums over tokens, so that those of microbatches add up. A layer calls `report`; a
task that needs them traces the model within `observing`, and without an observer nothing is
computed. A stack that runs layers inside of a traced loop puts `@carrying` on its `apply`, which
carries the reports out of the loop; a stack that cuts rows adds up those of the parts.

Shapes: E experts; a stack of layers puts its own dimensions first.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.dropout import DropoutKeys
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, Template, create, wide

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RoutingSums:
    """The routing of a layer, as sums over the tokens of a batch that are not padding.

    Args:
      tokens: Number of tokens, a scalar.
      choices_E: Number of tokens that chose each expert, before any was dropped.
      probabilities_E: Sum of the router's probabilities; the derivative of a load-balance loss
        passes through these.
      squared_log_z: Sum of the squared log normalizers of the router's logits.
      wanted: Number of choices.
      dropped: Number of choices that were dropped, because the expert had no place left.

    Source: Fedus et al. 2021, arXiv:2101.03961, equations 5 and 6 (choices and probabilities);
      Zoph et al. 2022, arXiv:2202.08906, equation 5 (log normalizers).
    """

    tokens: jax.Array
    choices_E: jax.Array
    probabilities_E: jax.Array
    squared_log_z: jax.Array
    wanted: jax.Array
    dropped: jax.Array


class _Given(NamedTuple):
    """The output of a layer for its stack, and the reports in it."""

    gift: Any
    seen: list[RoutingSums]


# A context variable and not a return value, because routers sit deep inside of modules that users
# write: blocks, wrappers, whole models would all have to pass the sums through. It is set and read
# while tracing only, in one thread.
_observer: contextvars.ContextVar[list[RoutingSums] | None] = contextvars.ContextVar(
    "observer", default=None
)


@contextlib.contextmanager
def observing() -> Iterator[list[RoutingSums]]:
    """Yield a list that collects the reports of layers that are traced within the context."""
    reports: list[RoutingSums] = []
    token = _observer.set(reports)
    try:
        yield reports
    finally:
        _observer.reset(token)


def report(sums: RoutingSums) -> None:
    """Report the routing of a layer to the observer, if there is one.

    Args:
      sums: Sums over the tokens of this batch.
    """
    # Without an observer (generation, a task without routing losses) the sums have no reader, and
    # the compiler removes what computes them.
    reports = _observer.get()
    if reports is not None:
        reports.append(sums)


def carrying(apply: Callable[..., tuple[T, Any]]) -> Callable[..., tuple[T, Any]]:
    """Make the `apply` of a stack carry the reports of its layers out of the loop.

    Args:
      apply: Called as `apply(self, layers, function, carry, own, rows)`; outputs of `function` must
        be returned with a leading layers axis, or for each layer.

    Returns:
      The same method.
    """

    # A report within a scan, a checkpoint or a `shard_map` is a tracer of that inner trace: put on
    # the outer observer's list, it would leak. So each layer gets an observer of its own, whose
    # list leaves the trace as an output beside that of the layer; the loop stacks both, and the
    # stacked sums are reported outside, to the outer observer. The number of reports of a layer is
    # part of the structure of its output, and the same in each iteration.
    @functools.wraps(apply)
    def carried(
        self: Any,
        layers: Any,
        function: Callable[..., Any],
        carry: T,
        own: Any = None,
        rows: Any = None,
    ) -> tuple[T, Any]:
        if _observer.get() is None:
            return apply(self, layers, function, carry, own, rows)

        def observed(layer: Any, index: jax.Array, carry: T, *rest: Any) -> tuple[T, _Given]:
            # Runs while the loop's body is traced, once for each kind of layer.
            with observing() as seen:
                carry, gift = function(layer, index, carry, *rest)
            return carry, _Given(gift, seen)

        carry, given = apply(self, layers, observed, carry, own, rows)
        return carry, _report_outside(given)

    return carried


def _report_outside(given: Any) -> Any:
    """Report the collected sums to the outer observer; return the outputs of the layers alone."""

    def take(each: _Given) -> Any:
        for sums in each.seen:
            report(sums)
        return each.gift

    return jax.tree.map(take, given, is_leaf=lambda each: isinstance(each, _Given))


def by_site(sums: RoutingSums) -> RoutingSums:
    """Return sums of several layers with one leading dimension: scalars [N], others [N, E].

    Args:
      sums: As a layer or a stack of layers reported them.
    """
    scalars = jax.tree.map(lambda x: jnp.reshape(x, -1), sums)
    E = sums.choices_E.shape[-1]
    return dataclasses.replace(
        scalars,
        choices_E=sums.choices_E.reshape(-1, E),
        probabilities_E=sums.probabilities_E.reshape(-1, E),
    )


# Routers by which tokens choose their experts.
#
# Shapes: B rows, L length, D embed, E experts, K choices of a token.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RoutedExperts:
    """The experts that tokens chose.

    Args:
      experts_BLK: Their numbers, the best first, int32 [B, L, K]; E for none.
      weights_BLK: Weights of their results, float32 [B, L, K].
      logits_BLE: The router's logits, float32 [B, L, E].
      probabilities_BLE: Its scores as probabilities, float32 [B, L, E].
    """

    experts_BLK: jax.Array
    weights_BLK: jax.Array
    logits_BLE: jax.Array
    probabilities_BLE: jax.Array


class Router(Protocol):
    """Lets every token choose its experts; a module, made with `num_experts`, sizes and `rngs`."""

    k: int

    def __call__(self, x_BLD: jax.Array, dropout: DropoutKeys | None = None) -> RoutedExperts:
        """Choose experts.

        Args:
          x_BLD: [B, L, D].
          dropout: Keys of the tokens at this site; None means no noise.

        Returns:
          The k experts of each token and their weights, [B, L, K] each.
        """


def renormalized(scores_BLK: jax.Array) -> jax.Array:
    """Return the scores of the chosen experts over their sum.

    Args:
      scores_BLK: Float32 [B, L, K].

    Returns:
      Float32 [B, L, K]; those of a token sum to 1.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> print(layers.renormalized(jnp.array([[[0.5, 0.125]]])))
      [[[0.8 0.2]]]

    Source: Lepikhin et al. 2020, arXiv:2006.16668, algorithm 1. Of softmax scores it is the same as
      the softmax over the chosen logits: Jiang et al. 2024, arXiv:2401.04088, section 2.1.
    """
    return scores_BLK / jnp.sum(scores_BLK, -1, keepdims=True)


def as_scored(scores_BLK: jax.Array) -> jax.Array:
    """Return the scores of the chosen experts as they are.

    Args:
      scores_BLK: Float32 [B, L, K].

    Returns:
      The same array.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> print(layers.as_scored(jnp.array([[[0.5, 0.125]]])))
      [[[0.5   0.125]]]

    Source: Fedus et al. 2021, arXiv:2101.03961, equation 2.
    """
    return scores_BLK


class RouterLogits(nnx.Module):
    """The router's linear map to one logit for each expert, in float32 at least.

    Args:
      jitter: Each element of the input is multiplied by a random number in 1 ± jitter in training;
        None for no noise.
      projection: Template of the map.
      num_experts: E.
      dim: D.
      dtype: Dtype of the computation, if it is wider than float32.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Fedus et al. 2021, arXiv:2101.03961, section 2.4 (float32, jitter).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("num_experts", "dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"jitter": "0 <= x < 1"}

    def __init__(
        self,
        jitter: Any = None,
        projection: Template = Linear,
        *,
        num_experts: int,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.jitter = jitter
        self.dtype = wide(dtype)
        # No axis for the outputs: a choice among all experts needs all logits of a token, so the
        # map is the same on every device of the `expert` axis. It is small.
        self.projection = create(
            projection,
            inputs=(dim,),
            outputs=(num_experts,),
            input_axes=("embed",),
            output_axes=(None,),
            dtype=self.dtype,
            param_dtype=param_dtype,
            rngs=rngs,
        )

    def __call__(self, x_BLD: jax.Array, dropout: DropoutKeys | None = None) -> jax.Array:
        """Return the logits [B, L, E].

        Args:
          x_BLD: [B, L, D].
          dropout: Keys of the tokens at this site; None means no noise.

        Returns:
          Float32 [B, L, E].
        """
        # Float32 throughout: rounding in bfloat16 makes ties among logits, and which expert wins a
        # tie is a jump of the whole function ("selective precision" of Fedus et al. 2021).
        x_BLD = x_BLD.astype(self.dtype)
        if self.jitter is not None and dropout is not None:
            noise_BLD = 2 * dropout.uniform(x_BLD.shape[2:]) - 1
            x_BLD = x_BLD * (1 + noise_BLD * jnp.asarray(self.jitter, self.dtype))
        return self.projection(x_BLD)


class TopK(nnx.Module):
    r"""A router by which each token goes to the k experts of the highest scores.

    $s_t = \mathrm{scores}(W x_t)$; of the k largest, the weights are $c\,w(s)$. Of equal scores the
    expert of the lower number is first.

    Args:
      k: Experts of a token.
      scores: Function from logits [..., E] to positive scores: `jax.nn.softmax` or
        `jax.nn.sigmoid`.
      weights: Function from the scores of the chosen experts to their weights: `renormalized` or
        `as_scored`.
      scale: c.
      logits: Template of the map to logits.
      num_experts: E.
      dim: D.
      dtype: Dtype of the computation, if it is wider than float32.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> router = layers.TopK(k=2, num_experts=4, dim=8, rngs=nnx.Rngs(0))
      >>> choice = router(jnp.ones((1, 3, 8)))
      >>> choice.experts_BLK.shape, choice.weights_BLK.shape
      ((1, 3, 2), (1, 3, 2))

    Source: Shazeer et al. 2017, arXiv:1701.06538, equations 3 to 5; Lepikhin et al. 2020,
      arXiv:2006.16668, section 2.2; Fedus et al. 2021, arXiv:2101.03961 (k = 1); DeepSeek-AI 2024,
      arXiv:2412.19437, equations 13 to 15 (sigmoid scores, scaled).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("num_experts", "dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"k": "1 <= x", "scale": "0 < x"}

    def __init__(
        self,
        k: int,
        scores: Callable[[jax.Array], jax.Array] = jax.nn.softmax,
        weights: Callable[[jax.Array], jax.Array] = renormalized,
        scale: Any = 1.0,
        logits: Template = RouterLogits,
        *,
        num_experts: int,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.k = k
        self.scores = scores
        self.weights = weights
        self.scale = scale
        sizes = {"num_experts": num_experts, "dim": dim}
        self.logits = create(logits, **sizes, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, x_BLD: jax.Array, dropout: DropoutKeys | None = None) -> RoutedExperts:
        """Let every token choose.

        Args:
          x_BLD: [B, L, D].
          dropout: Keys of the tokens at this site; None means no noise.

        Returns:
          The k experts of each token and their weights, [B, L, K] each.
        """
        # The choice has no derivative; the router learns through the weights of the chosen, and
        # through the probabilities of all, which the load-balance loss uses. Sigmoid scores do not
        # sum to one, so they are renormalized for the latter.
        logits_BLE = self.logits(x_BLD, dropout)
        scores_BLE = self.scores(logits_BLE)
        best_BLK, experts_BLK = jax.lax.top_k(scores_BLE, self.k)
        weights_BLK = self.weights(best_BLK) * jnp.asarray(self.scale, best_BLK.dtype)
        return RoutedExperts(experts_BLK, weights_BLK, logits_BLE, renormalized(scores_BLE))
