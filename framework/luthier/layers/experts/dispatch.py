"""How tokens get to the experts that they chose: by places, or all tokens to all experts.

Shapes: B rows, L length, D embed, E experts, K choices of a token, C places of an expert.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.experts.movement import collect, inverse, spread
from luthier.layers.experts.routing import Choice
from luthier.layers.experts.stacked import EXPERTS, apply_each, counted
from luthier.parallel import constrain

PLACE_AXES = (EXPERTS, "batch", None, "embed")
"""Experts first: their mesh axis is theirs, and the rows have the others."""


class Dispatch(Protocol):
    """Brings tokens to their experts and the results back."""

    def __call__(
        self, experts: nnx.Module, x_BLD: jax.Array, choice: Choice
    ) -> tuple[jax.Array, jax.Array]:
        """Apply the chosen experts.

        Args:
          experts: What `create_each` made.
          x_BLD: Tokens [B, L, D].
          choice: The experts of each token; a token of no expert takes no place.

        Returns:
          The weighted sum of the experts' results, float32 [B, L, D], and how many choices were
          dropped, a scalar.
        """


@dataclasses.dataclass(frozen=True)
class AllExperts:
    """Every expert computes every token, and the weights choose: the reference, at E / K the cost.

    Source: Jacobs et al. 1991, Adaptive mixtures of local experts, equation 1.
    """

    def __call__(
        self, experts: nnx.Module, x_BLD: jax.Array, choice: Choice
    ) -> tuple[jax.Array, jax.Array]:
        """Apply all experts; see `Dispatch`."""
        E, K = choice.logits_BLE.shape[-1], choice.experts_BLK.shape[-1]
        chosen_BLKE = jax.nn.one_hot(choice.experts_BLK, E, dtype=choice.weights_BLK.dtype)
        with counted(0, 1):
            weights_BLE = jnp.einsum("blke,blk->ble", chosen_BLKE, choice.weights_BLK)
        with counted(K, E):
            y_EBLD = apply_each(experts, x_BLD, same=True)
        y_EBLD = constrain(y_EBLD, (EXPERTS, "batch", "length", "embed"))
        with counted(0, 1):
            y_BLD = jnp.einsum("ebld,ble->bld", y_EBLD.astype(weights_BLE.dtype), weights_BLE)
        return y_BLD, jnp.zeros((), weights_BLE.dtype)


@dataclasses.dataclass(frozen=True)
class Capacity:
    """Every expert has a number of places in each row, and choices that find none are dropped.

    An expert has `C = ceil(factor K L / E)` places for a row of L tokens (at most L), so a row's
    result does not depend on the other rows, nor on how a batch is cut or shared out. First choices
    have priority over second ones, then earlier tokens over later ones. A dropped choice counts
    zero: the residual carries the token on. A token's result so depends on tokens before it, and
    for K > 1 on later ones too: to generate text, use `Dropless`.

    Args:
      factor: Places per choice, where the load is balanced; E / K never drops.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 2.2 (capacity, priority; groups here are
      rows); Fedus et al. 2021, arXiv:2101.03961, equation 3 (factor).
    Deviation: Tokens are moved by gathers, not by products with one-hot matrices: the same result
      for a small part of the FLOPs.
    """

    RANGES: ClassVar[dict[str, str]] = {"factor": "0 < x"}

    factor: Any = 1.25

    def __call__(
        self, experts: nnx.Module, x_BLD: jax.Array, choice: Choice
    ) -> tuple[jax.Array, jax.Array]:
        """Apply the chosen experts where there is place; see `Dispatch`."""
        L, E = choice.logits_BLE.shape[-2:]
        K = choice.experts_BLK.shape[-1]
        C = min(math.ceil(float(self.factor) * K * L / E), L)
        places_BLK = jax.vmap(lambda chosen: _places(chosen, E, C))(choice.experts_BLK)
        sources_BM = jax.vmap(lambda places: inverse(places, E * C))(places_BLK)
        x_BMD = jax.vmap(spread)(x_BLD, sources_BM, places_BLK)
        with counted(K * L, E * C):
            y_BMD = through_places(experts, x_BMD)
        y_BLKD = jax.vmap(collect)(y_BMD, sources_BM, places_BLK)
        weights_BLK = choice.weights_BLK
        with counted(0, 1):
            y_BLD = jnp.einsum("blkd,blk->bld", y_BLKD.astype(weights_BLK.dtype), weights_BLK)
        is_dropped_BLK = (choice.experts_BLK < E) & (places_BLK == E * C)
        return y_BLD, jnp.sum(is_dropped_BLK, dtype=weights_BLK.dtype)


def through_places(experts: nnx.Module, x_BMD: jax.Array) -> jax.Array:
    """Apply experts to the tokens at their places.

    Over an `expert` mesh axis this is an all-to-all before and another one after the experts.

    Args:
      experts: What `create_each` made.
      x_BMD: What the places of each row hold, [B, M, D] with M = E C.

    Returns:
      What the experts made of it, [B, M, D].
    """
    B, _, D = x_BMD.shape
    E = jax.tree.leaves(nnx.state(experts))[0].shape[0]
    x_BMD = constrain(x_BMD, ("batch", None, "embed"))
    x_EBCD = jnp.swapaxes(x_BMD.reshape(B, E, -1, D), 0, 1)
    y_EBCD = apply_each(experts, constrain(x_EBCD, PLACE_AXES))
    y_BECD = jnp.swapaxes(constrain(y_EBCD, PLACE_AXES), 0, 1)
    return constrain(y_BECD.reshape(B, -1, D), ("batch", None, "embed"))


def _places(experts_LK: jax.Array, num_experts: int, capacity: int) -> jax.Array:
    """Return the place of each choice of one row, `num_experts * capacity` where there is none."""
    E, C = num_experts, capacity
    experts_N = experts_LK.T.reshape(-1)  # all first choices before all second ones
    chosen_NE = jax.nn.one_hot(experts_N, E, dtype=jnp.int32)
    before_N = jnp.sum((jnp.cumsum(chosen_NE, 0) - 1) * chosen_NE, -1)
    has_place_N = (experts_N < E) & (before_N < C)
    places_N = jnp.where(has_place_N, experts_N * C + before_N, E * C)
    return places_N.reshape(experts_LK.shape[::-1]).T
