"""Ring attention: every place holds a part of each row, and keys and values go round.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, R = H / G, K head_dim. Inside of
the ring L and S count the tokens of one place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.context_parallel import blocks
from luthier.layers.attention.context_parallel.orders import Order, Zigzag
from luthier.layers.attention.context_parallel.rounds import Ring, Rows
from luthier.layers.attention.cores import EinsumAttention
from luthier.layers.dropout import DropoutKeys
from luthier.layers.parameters import wide
from luthier.layers.positions import Tokens
from luthier.parallel import current_layout


@dataclasses.dataclass(frozen=True)
class RingAttention(EinsumAttention):
    """The attention of `EinsumAttention` over rows that are shared out along their length.

    No place sees whole rows: keys and values go round the ring of the mesh axes that share out
    `length`, and each place attends to one part of them at a time. Blocks in which no query sees a
    key are skipped, be it for a causal mask, a window or documents. Where nothing shares out the
    length, or it does not divide the rows (a decoder's new tokens), this is `EinsumAttention`.

    A row holds one document after the other, never interleaved.

    Args:
      mask: Which keys a query may look at.
      scale: Factor of the scores; None means 1 / sqrt(K).
      cap: What scores stay below; None means no cap.
      dropout: Probability of dropping a weight; None means no dropout.
      order: Which tokens each place holds.

    Source: Liu, Zaharia and Abbeel 2023, arXiv 2310.01889, algorithm 1.
    """

    RANGES: ClassVar[dict[str, str]] = EinsumAttention.RANGES
    order: Order = Zigzag()

    def __call__(
        self,
        query_BLHK: jax.Array,
        key_BSGK: jax.Array,
        value_BSGK: jax.Array,
        query: Tokens,
        key: Tokens,
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
    ) -> jax.Array:
        """Attend; see `EinsumAttention`.

        Raises:
          BadInput: A place's part of the rows cannot be cut into the pieces of the order, the
            bias is not made of positions alone, or the layer is in a pipeline.
        """
        layout = current_layout()
        axes = () if layout is None else layout.mesh_axes("length")
        lengths = query_BLHK.shape[1], key_BSGK.shape[1]
        places = 1 if layout is None else math.prod(layout.sizes[axis] for axis in axes)
        if layout is None or places == 1 or any(length % places for length in lengths):
            return super().__call__(query_BLHK, key_BSGK, value_BSGK, query, key, dropout, bias)
        if jax.sharding.get_abstract_mesh().manual_axes:
            # JAX cannot lower the residuals of a mapped function within another one.
            what = "RingAttention cannot run inside of a pipeline"
            raise BadInput(Problem(what, remedy="use all_to_all or sequence with pipelines"))
        _check_pieces(lengths, places, axes, self.order)
        make_bias, parameters = _open(bias)
        ring = Ring(layout, axes, places, self.mask, self.order, make_bias)
        data = None
        if self.dropout is not None and dropout is not None:
            data = jax.random.key_data(dropout.token_keys_BL)
        B, L, H, K = query_BLHK.shape
        query_BLGRK = query_BLHK.reshape(B, L, key_BSGK.shape[2], -1, K)
        rows = Rows(query_BLGRK, key_BSGK, value_BSGK, query, key, data)
        settings = self._settings(query_BLHK, data is not None)
        return ring(rows, parameters, settings).reshape(B, L, H, K)

    def _settings(self, query_BLHK: jax.Array, drops: bool) -> blocks.Settings:
        kind = wide(query_BLHK.dtype)
        scale = query_BLHK.shape[-1] ** -0.5 if self.scale is None else self.scale
        drop: Any = self.dropout if drops else None
        return blocks.Settings(
            jnp.asarray(scale, kind),
            None if self.cap is None else jnp.asarray(self.cap, kind),
            None if drop is None else jnp.asarray(1.0 - drop, jnp.float32),
        )


def _check_pieces(lengths: Sequence[int], places: int, axes: tuple[str, ...], order: Order) -> None:
    pieces = places * order.num_pieces
    uneven = [length for length in lengths if length % pieces]
    if uneven:
        what = f"rows of {uneven[0]} tokens cannot be cut into {pieces} equal pieces, "
        what += f"{order.num_pieces} for each place on {', '.join(axes)}"
        remedy = f"use rows of a multiple of {pieces} tokens, or order=Contiguous()"
        raise BadInput(Problem(f"{type(order).__name__}: {what}", remedy=remedy))


def _open(bias: Bias | None) -> tuple[blocks.MakeBias, Any]:
    """Return a bias as a function of its parameters and of tokens, and its parameters."""
    if bias is None:
        return _no_bias, None
    if not isinstance(bias, nnx.Module):
        what = f"RingAttention cannot use {type(bias).__name__}, made for whole rows"
        remedy = "use AllToAllAttention, or a bias that is made of positions, such as Alibi"
        raise BadInput(Problem(what, remedy=remedy))
    graphdef, state = nnx.split(bias)
    values, treedef = jax.tree.flatten(state)

    def make_bias(values: Any, query: Tokens, key: Tokens) -> jax.Array:
        merged: Any = nnx.merge(graphdef, jax.tree.unflatten(treedef, values))
        found: jax.Array = merged(query, key)
        return found

    return make_bias, tuple(values)


def _no_bias(parameters: Any, query: Tokens, key: Tokens) -> jax.Array:
    raise AssertionError("there is no bias")
