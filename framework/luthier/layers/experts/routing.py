"""Routers by which tokens choose their experts.

Shapes: B rows, L length, D embed, E experts, K choices of a token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.dropout import DropoutKeys
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, Template, create, wide


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Choice:
    """The experts that tokens chose.

    Args:
      experts_BLK: Their numbers, the best first, int32 [B, L, K]; E for none.
      weights_BLK: What their results count, float32 [B, L, K].
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

    def __call__(self, x_BLD: jax.Array, dropout: DropoutKeys | None = None) -> Choice:
        """Return the k experts of each token of x [B, L, D]."""


def renormalized(scores_BLK: jax.Array) -> jax.Array:
    """Return the scores of the chosen experts over their sum.

    Args:
      scores_BLK: Float32 [B, L, K].

    Source: Lepikhin et al. 2020, arXiv:2006.16668, algorithm 1. Of softmax scores it is the same as
      the softmax over the chosen logits: Jiang et al. 2024, arXiv:2401.04088, section 2.1.
    """
    return scores_BLK / jnp.sum(scores_BLK, -1, keepdims=True)


def as_scored(scores_BLK: jax.Array) -> jax.Array:
    """Return the scores of the chosen experts as they are.

    Args:
      scores_BLK: Float32 [B, L, K].

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
      dtype: Type that is computed in, if it is wider than float32.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

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
        """
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
      scores: From logits [..., E] to positive scores: `jax.nn.softmax` or `jax.nn.sigmoid`.
      weights: From the scores of the chosen to their weights: `renormalized` or `as_scored`.
      scale: c.
      logits: Template of the map to logits.
      num_experts: E.
      dim: D.
      dtype: Type that is computed in, if it is wider than float32.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

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

    def __call__(self, x_BLD: jax.Array, dropout: DropoutKeys | None = None) -> Choice:
        """Let every token choose.

        Args:
          x_BLD: [B, L, D].
          dropout: Keys of the tokens at this site; None means no noise.
        """
        logits_BLE = self.logits(x_BLD, dropout)
        scores_BLE = self.scores(logits_BLE)
        best_BLK, experts_BLK = jax.lax.top_k(scores_BLE, self.k)
        weights_BLK = self.weights(best_BLK) * jnp.asarray(self.scale, best_BLK.dtype)
        return Choice(experts_BLK, weights_BLK, logits_BLE, renormalized(scores_BLE))
