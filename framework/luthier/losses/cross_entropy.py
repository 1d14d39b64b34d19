"""Cross-entropy of a categorical prediction. Shapes: B batch rows, L length, D dim, V vocabulary.

Everything is per token and nothing is divided: the caller weights and sums. Logits are taken to
float32 (float64 stays). Hyperparameters may be tracers; `None` leaves a term out of the program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from luthier.losses.chunking import Chunking, Fused, Whole, weighted_sum
from luthier.parallel import current_layout, current_platform, is_explicit, uncut


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenLosses:
    """The losses of each token.

    Args:
      nats_BL: -log p(target), float32: for reports.
      loss_BL: The same with label smoothing and z-loss, float32: for training.
      correct_BL: 1 where the target has the largest logit (the first one, among equals), float32.
        Nothing is computed for it where it is not used.
    """

    nats_BL: jax.Array
    loss_BL: jax.Array
    correct_BL: jax.Array


def cross_entropy(
    logits_BLV: jax.Array,
    targets_BL: jax.Array,
    *,
    z_loss: Any = None,
    label_smoothing: Any = None,
) -> TokenLosses:
    """Return the cross-entropy of every token.

    nats = log Z - l[target], with log Z = logsumexp(l);
    loss = (1 - s) nats + s mean_v(log Z - l[v]) + z (log Z)^2.

    Args:
      logits_BLV: Unnormalized log probabilities [..., V]. A class with logit -inf is not a class:
        it gets no share of the smoothing.
      targets_BL: Class ids, integers [...].
      z_loss: Weight z of the squared log normalizer, or None.
      label_smoothing: Probability s that is spread over all classes, or None.

    Returns:
      Per-token losses, each [...].

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import losses
      >>> logits_BLV = jnp.log(jnp.array([[[0.5, 0.25, 0.25]]]))
      >>> found = losses.cross_entropy(logits_BLV, jnp.array([[0]]))
      >>> print(np.asarray(found.nats_BL).round(3), found.correct_BL)
      [[0.693]] [[1.]]

    Source: label smoothing: Szegedy et al. 2015, arXiv:1512.00567, section 7. z-loss: Chowdhery et
    al. 2022, arXiv:2204.02311, section 5 (z = 1e-4).
    """
    # Float32, because log Z sums V exponentials: in bfloat16, each of 50,000 equal summands would
    # be lost once the sum is 256 times as large. The difference of log Z and a logit is taken, and
    # no array of log probabilities is made: that would be a second [B, L, V].
    stored_BLV = logits_BLV
    logits_BLV = logits_BLV.astype(jnp.promote_types(logits_BLV.dtype, jnp.float32))
    # Smoothing has a derivative of its own, which must be added before the sum is rounded.
    is_narrow = stored_BLV.dtype != logits_BLV.dtype and label_smoothing is None
    if is_narrow and current_platform() == "tpu":
        log_z_BL, target_logits_BL = _of_narrow(stored_BLV, targets_BL)
    else:
        log_z_BL = _log_normalizer(logits_BLV)
        target_logits_BL = _of_targets(logits_BLV, targets_BL)
    nats_BL = log_z_BL - target_logits_BL
    # `z_loss` and `label_smoothing` may be traced, so only None decides on the program: a weight
    # that is swept through zero keeps its term.
    loss_BL = nats_BL
    if label_smoothing is not None:
        # (1 - s) nats + s mean_v(log Z - l[v]) = nats + s (l[target] - mean_v l[v]): log Z cancels.
        # Sum and count are over real classes; -inf would make the mean -inf, and its gradient NaN.
        is_class_BLV = logits_BLV != -jnp.inf
        total_BL = jnp.sum(jnp.where(is_class_BLV, logits_BLV, 0), axis=-1)
        mean_BL = total_BL / jnp.sum(is_class_BLV, axis=-1)
        loss_BL = loss_BL + label_smoothing * (target_logits_BL - mean_BL)
    if z_loss is not None:
        loss_BL = loss_BL + z_loss * jnp.square(log_z_BL)
    correct_BL = (_first_largest(stored_BLV) == targets_BL).astype(nats_BL.dtype)
    return TokenLosses(nats_BL, loss_BL, correct_BL)


def _first_largest(logits_BLV: jax.Array) -> jax.Array:
    # XLA does not vectorize `argmax` on CPUs, where it took most of the time of an evaluation (3.2
    # of 7 ms for 64 x 48 x 258 logits). Two plain reductions, which have the same result, also for
    # ties and for NaN, take 0.5 ms; on accelerators they would read the logits once more.
    if is_explicit() or _is_on_accelerator():
        return jnp.argmax(logits_BLV, axis=-1)
    largest_BL1 = jnp.max(logits_BLV, axis=-1, keepdims=True)
    classes_BLV = jax.lax.broadcasted_iota(jnp.int32, logits_BLV.shape, logits_BLV.ndim - 1)
    is_largest_BLV = (logits_BLV == largest_BL1) | jnp.isnan(logits_BLV)
    return jnp.min(jnp.where(is_largest_BLV, classes_BLV, logits_BLV.shape[-1]), axis=-1)


def _log_normalizer(logits_BLV: jax.Array) -> jax.Array:
    # `logsumexp` reads the logits twice, for the largest and for the sum. On a GPU, a reduction of
    # pairs reads them once: 1 ms of a step of 68 ms of GPT-2 with 124M parameters on an H200. XLA
    # does not partition it, and on CPUs it is not vectorized.
    if current_platform() == "gpu" and not _is_split():
        return _in_one_pass(logits_BLV)
    return jax.nn.logsumexp(logits_BLV, axis=-1)


@jax.custom_jvp
def _in_one_pass(logits_BLV: jax.Array) -> jax.Array:
    # Pairs (m, s) stand for s e^m; a logit is (l, 1). Of two, the one with the smaller m is scaled
    # down, as in the online softmax of Milakov and Gimelshein 2018, arXiv:1805.02867.
    def combine(one: Any, other: Any) -> tuple[jax.Array, jax.Array]:
        (largest, total), (other_largest, other_total) = one, other
        factor = jnp.exp(-jnp.abs(largest - other_largest))
        is_first = largest >= other_largest
        scaled = jnp.where(is_first, other_total, total) * factor
        kept = jnp.where(is_first, total, other_total)
        return jnp.maximum(largest, other_largest), kept + scaled

    # The lowest number stands for -inf, because the difference of two infinities is NaN.
    lowest = jnp.asarray(jnp.finfo(logits_BLV.dtype).min, logits_BLV.dtype)
    pairs = (jnp.maximum(logits_BLV, lowest), jnp.ones_like(logits_BLV))
    neutral = (lowest, jnp.zeros_like(lowest))
    largest_BL, total_BL = jax.lax.reduce(pairs, neutral, combine, (logits_BLV.ndim - 1,))
    return jnp.where(largest_BL == lowest, -jnp.inf, largest_BL + jnp.log(total_BL))


@_in_one_pass.defjvp
def _in_one_pass_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (logits_BLV,), (change_BLV,) = primals, tangents
    log_z_BL = _in_one_pass(logits_BLV)
    probabilities_BLV = jnp.exp(logits_BLV - log_z_BL[..., None])
    return log_z_BL, jnp.sum(probabilities_BLV * change_BLV, axis=-1)


@jax.custom_jvp
def _of_narrow(stored_BLV: jax.Array, targets_BL: jax.Array) -> tuple[jax.Array, jax.Array]:
    # The normalizer, and the logits of the targets, in float32. If several operations read logits
    # in float32, XLA for TPUs keeps that copy in memory, beside the stored one. So what needs no
    # arithmetic reads them as they are stored, and each of the two exponentials converts them by
    # itself.
    largest_BL1 = jnp.max(stored_BLV, axis=-1, keepdims=True).astype(jnp.float32)
    largest_BL1 = jnp.where(jnp.isfinite(largest_BL1), largest_BL1, 0)  # as `logsumexp`
    total_BL = jnp.sum(jnp.exp(stored_BLV.astype(jnp.float32) - largest_BL1), axis=-1)
    target_logits_BL = _of_targets(stored_BLV, targets_BL).astype(jnp.float32)
    return jnp.log(total_BL) + largest_BL1[..., 0], target_logits_BL


@_of_narrow.defjvp
def _of_narrow_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (stored_BLV, targets_BL), (change_BLV, _) = primals, tangents
    found = log_z_BL, _ = _of_narrow(stored_BLV, targets_BL)
    # Without a barrier, XLA takes both conversions for one. Both derivatives are added before they
    # are rounded: the difference of a probability near one and one is lost in bfloat16.
    again_BLV = jax.lax.optimization_barrier(stored_BLV).astype(jnp.float32)
    change_BLV = change_BLV.astype(jnp.float32)
    change_z_BL = jnp.sum(jnp.exp(again_BLV - log_z_BL[..., None]) * change_BLV, axis=-1)
    return found, (change_z_BL, _compared(change_BLV, targets_BL))


def _of_targets(logits_BLV: jax.Array, targets_BL: jax.Array) -> jax.Array:
    # A lookup along a dimension that devices split would gather it. On accelerators, the gradient
    # of a lookup is an array of zeros [B, L, V] in memory, into which B L numbers are scattered; a
    # comparison with all classes is fused with the operations around it. So where the dimension is
    # split both ways compare, and on other accelerators the derivative does: the lookup reads one
    # number of V, and a sum over the comparison would slow down the kernel of the gradient that it
    # is fused with. On CPUs the lookup stays.
    if _is_split():
        return _compared(logits_BLV, targets_BL)
    if _is_on_accelerator():
        return _found(logits_BLV, targets_BL)
    return _taken(logits_BLV, targets_BL)


def _taken(logits_BLV: jax.Array, targets_BL: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits_BLV, targets_BL[..., None], axis=-1)[..., 0]


def _compared(logits_BLV: jax.Array, targets_BL: jax.Array) -> jax.Array:
    classes_BLV = jax.lax.broadcasted_iota(
        targets_BL.dtype,
        logits_BLV.shape,
        logits_BLV.ndim - 1,
        out_sharding=jax.typeof(logits_BLV).sharding if is_explicit() else None,
    )
    return jnp.sum(jnp.where(classes_BLV == targets_BL[..., None], logits_BLV, 0), axis=-1)


@jax.custom_jvp
def _found(logits_BLV: jax.Array, targets_BL: jax.Array) -> jax.Array:
    return _taken(logits_BLV, targets_BL)


@_found.defjvp
def _found_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (logits_BLV, targets_BL), (change_BLV, _) = primals, tangents
    return _found(logits_BLV, targets_BL), _compared(change_BLV, targets_BL)


def _is_split() -> bool:
    layout = current_layout()
    return is_explicit() or (layout is not None and bool(layout.mesh_axes("vocab")))


def _is_on_accelerator() -> bool:
    return current_platform() not in ("", "cpu")


def unembedded_cross_entropy(
    hidden_BLD: jax.Array,
    unembed: Callable[[jax.Array], jax.Array],
    targets_BL: jax.Array,
    *,
    z_loss: Any = None,
    label_smoothing: Any = None,
    chunking: Chunking = Whole(),
) -> TokenLosses:
    """Return the cross-entropy of every token without holding the logits of all of them.

    Args:
      hidden_BLD: The model's last hidden states [B, L, D].
      unembed: From hidden states [B, C, D] to logits [B, C, V]; may close over parameters.
      targets_BL: Class ids, integers [B, L].
      z_loss: As in `cross_entropy`.
      label_smoothing: As in `cross_entropy`.
      chunking: Number of positions whose logits are in memory at a time.

    Returns:
      Per-token losses, each [B, L], and gradients, as of `cross_entropy(unembed(hidden_BLD))`.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import losses
      >>> hidden_BLD, kernel_DV = jnp.ones((1, 2, 4)), jnp.zeros((4, 8))
      >>> targets_BL = jnp.zeros((1, 2), jnp.int32)
      >>> found = losses.unembedded_cross_entropy(hidden_BLD, lambda x: x @ kernel_DV, targets_BL)
      >>> print(np.asarray(found.nats_BL).round(3))  # log 8
      [[2.079 2.079]]
    """
    # The loss of a token needs only its own logits, so chunks of positions are exact. The product
    # with the unembedding is inside of the chunk: its result is what does not fit.

    def losses(hidden_BCD: jax.Array, targets_BC: jax.Array) -> TokenLosses:
        logits_BCV = uncut(unembed, hidden_BCD)
        return cross_entropy(logits_BCV, targets_BC, z_loss=z_loss, label_smoothing=label_smoothing)

    return chunking.map(losses, hidden_BLD, targets_BL)


def weighted_cross_entropy(
    hidden_BLD: jax.Array,
    unembed: Callable[[jax.Array], jax.Array],
    targets_BL: jax.Array,
    weights_BL: jax.Array,
    *,
    z_loss: Any = None,
    label_smoothing: Any = None,
    chunking: Chunking = Whole(),
) -> tuple[jax.Array, TokenLosses]:
    """Return the weighted sum of the losses of tokens, and the losses for reports.

    With `Fused` chunks, the gradient is computed with the sum, see there.

    Args:
      hidden_BLD: As in `unembedded_cross_entropy`.
      unembed: As in `unembedded_cross_entropy`.
      targets_BL: Class ids, integers [B, L].
      weights_BL: Weights of the tokens, floats [B, L].
      z_loss: As in `cross_entropy`.
      label_smoothing: As in `cross_entropy`.
      chunking: Number of positions whose logits are in memory at a time.

    Returns:
      The sum over the tokens, a scalar, and their losses, each [B, L]. Only the sum is sure to have
      a gradient.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> hidden_BLD, kernel_DV = jnp.ones((1, 2, 4)), jnp.zeros((4, 8))
      >>> targets_BL, weights_BL = jnp.zeros((1, 2), jnp.int32), jnp.array([[1.0, 0.0]])
      >>> total, _ = losses.weighted_cross_entropy(
      ...     hidden_BLD, lambda x: x @ kernel_DV, targets_BL, weights_BL
      ... )
      >>> print(total.round(3))  # log 8
      2.079
    """

    def losses(hidden_BCD: jax.Array, targets_BC: jax.Array) -> tuple[jax.Array, TokenLosses]:
        logits_BCV = uncut(unembed, hidden_BCD)
        found = cross_entropy(
            logits_BCV, targets_BC, z_loss=z_loss, label_smoothing=label_smoothing
        )
        return found.loss_BL, found

    if isinstance(chunking, Fused):
        return chunking.total(losses, weights_BL, hidden_BLD, targets_BL)
    loss_BL, found = chunking.map(losses, hidden_BLD, targets_BL)
    return weighted_sum(loss_BL, weights_BL), found
