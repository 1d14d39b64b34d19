"""Attention block by block in plain XLA: memory linear in the length of rows, on every device.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, R = H / G, K head_dim.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from luthier.layers.attention import blocks
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.cores import EinsumAttention
from luthier.layers.attention.masks import AttentionMask, pair_share
from luthier.layers.declared import visible
from luthier.layers.dropout import DropoutKeys
from luthier.layers.positions import Tokens
from luthier.parallel import ActivationLayout, current_layout, varying

RESIDUALS = "attention_residuals"
"""The name of what the backward pass needs of the forward pass, for policies of remat."""


@dataclasses.dataclass(frozen=True)
class BlockwiseAttention(EinsumAttention):
    """The attention of `EinsumAttention` with an online softmax over blocks of keys.

    No more scores are in memory than those of one block of queries with one block of keys; going
    backward, they are computed again. Blocks in which no query sees a key are skipped, be it for a
    causal mask, a window or documents. Where all scores fit into one block (short rows, a decoder's
    new token), this is `EinsumAttention`.

    The result and the logarithms of the softmax's sums are named `attention_residuals`. A policy of
    remat that keeps them, as `SaveNamed(names=["attention_residuals", ...])`, does not attend twice
    in the forward direction. It need not keep `attention_context` as well, which is the same array.

    Rows that are split along their length are supported: each device has its queries, and all keys
    of their rows.

    Args:
      mask: The attention mask: the keys that each query may look at.
      scale: Factor of the scores; None means 1 / sqrt(K).
      cap: Upper bound of the scores; None means no cap.
      dropout: Probability of dropping a weight; None means no dropout.
      block_size: Most queries, and most keys, whose scores are computed at a time.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> tokens = layers.Tokens.single(batch_size=1, length=300)
      >>> query_BLHK, key_BSGK = jnp.ones((1, 300, 4, 8)), jnp.ones((1, 300, 2, 8))
      >>> core = layers.BlockwiseAttention(block_size=128)
      >>> core(query_BLHK, key_BSGK, key_BSGK, tokens, tokens).shape
      (1, 300, 4, 8)

    Source: Rabe and Staats 2021, arXiv 2112.05682 (in blocks, with linear memory); Dao et al. 2022,
      arXiv 2205.14135, algorithms 1 and 4.
    """

    EXECUTION: ClassVar[tuple[str, ...]] = ("block_size",)
    RANGES: ClassVar[dict[str, str]] = {**EinsumAttention.RANGES, "block_size": "1 <= x"}
    block_size: int = 256

    def __call__(
        self,
        query_BLHK: jax.Array,
        key_BSGK: jax.Array,
        value_BSGK: jax.Array,
        query: Tokens,
        key: Tokens,
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
        *,
        sinks_H: jax.Array | None = None,
    ) -> jax.Array:
        """Attend; see `EinsumAttention`.

        Args:
          query_BLHK: Queries [B, L, H, K].
          key_BSGK: Keys [B, S, G, K]; query head h uses key head h // (H / G).
          value_BSGK: Values [B, S, G, K].
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].
          dropout: Keys of the tokens at this site; None means no dropout.
          bias: Makes the bias that is added to the scores; None means no bias.
          sinks_H: The scores of the heads' sinks [H], float32 or wider; None means no sinks.

        Returns:
          [B, L, H, K] in the type of the queries; zero for queries that may see nothing.

        Raises:
          BadInput: The bias is not made of positions alone.
        """
        B, L, H, K = query_BLHK.shape
        S, G = key_BSGK.shape[1:3]
        if self.block_size**2 >= L * S:
            return super().__call__(
                query_BLHK, key_BSGK, value_BSGK, query, key, dropout, bias, sinks_H=sinks_H
            )
        # Everything that may be traced goes in as an argument: a custom VJP may not close over
        # tracers of what is differentiated.
        make_bias, parameters = blocks.open_bias(bias, "BlockwiseAttention")
        data = None
        if self.dropout is not None and dropout is not None:
            data = jax.random.key_data(dropout.token_keys_BL)
        settings = blocks.ScoreSettings.of(self, query_BLHK, drops=data is not None)
        # Noise and biases are drawn and made for all heads at once.
        num_groups = G if data is None and bias is None else None
        run = _Blockwise(AttentionSplit.of(B, L, num_groups), self.mask, self.block_size, make_bias)
        sinks_GR = None if sinks_H is None else sinks_H.reshape(G, H // G)
        own = (query_BLHK.reshape(B, L, G, H // G, K), key_BSGK, value_BSGK, parameters, sinks_GR)
        context_BLGRK = run(own, (query, key, data, settings))
        return context_BLGRK.reshape(B, L, H, K)


@dataclasses.dataclass(frozen=True)
class AttentionSplit:
    """The mesh axes that split rows, the length of queries, and heads; keys are of whole rows."""

    layout: ActivationLayout | None
    rows: tuple[str, ...]
    length: tuple[str, ...]
    heads: tuple[str, ...]

    @classmethod
    def of(cls, num_rows: int, length: int, num_groups: int | None) -> AttentionSplit:
        """Return the axes that divide the sizes; the compiler splits what others do not.

        Args:
          num_rows: B.
          length: L.
          num_groups: G; None leaves heads to the compiler.
        """
        # Blocks are skipped by a branch on what their tokens are. Left to the compiler, each branch
        # of rows that are split would be one all-reduce of its condition; in a `shard_map`, every
        # device decides alone. No branch depends on heads, but within the loops over blocks the
        # compiler would exchange them for other dimensions, in each block: in a plan of
        # `fiddler:all_to_all(4)` on h100:8, 43 GB a step.
        layout = current_layout()
        if layout is None:
            return cls(None, (), (), ())
        axes = [layout.mesh_axes(name) for name in ("batch", "length", "kv_heads")]
        sizes = [math.prod(layout.sizes[axis] for axis in of) for of in axes]
        rows = () if num_rows % sizes[0] else axes[0]
        is_even = num_groups is not None and num_groups % sizes[2] == 0
        has_same = axes[2] == layout.mesh_axes("heads")
        heads = axes[2] if is_even and has_same else ()
        return cls(layout, rows, () if length % sizes[1] else axes[1], heads)

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes of all three."""
        return (*self.rows, *self.length, *self.heads)

    def map(self, function: Any, in_specs: Any, out_specs: Any) -> Any:
        """Return a function of whole arrays that applies a function to their shards.

        Args:
          function: The function of shards.
          in_specs: Trees of letters, for its arguments: `q` and `k` for queries and keys
            [B, L, H, ...], `l` and `s` for what both have for each token [B, L, ...], `h` for what
            heads have [H, ...], and `w` for what is whole.
          out_specs: The same for its results.
        """
        if self.layout is None or not self.axes:
            return function
        rows, length, heads = self.rows or None, self.length or None, self.heads or None
        specs = {
            "q": PartitionSpec(rows, length, heads),
            "k": PartitionSpec(rows, None, heads),
            "l": PartitionSpec(rows, length),
            "s": PartitionSpec(rows),
            "h": PartitionSpec(heads),
            "w": PartitionSpec(),
        }
        given, found = (jax.tree.map(specs.__getitem__, x) for x in (in_specs, out_specs))
        return self.layout.shard_map(function, self.axes, given, found)


@dataclasses.dataclass(frozen=True)
class _Blockwise:
    """Attention in blocks, and its derivative."""

    split: AttentionSplit
    mask: AttentionMask
    block_size: int
    make_bias: blocks.MakeBias | None

    def __call__(self, own: Any, others: Any) -> jax.Array:
        """Attend.

        Args:
          own: What is differentiated: queries [B, L, G, R, K], keys, values, bias's parameters,
            sinks [G, R].
          others: Tokens of queries and keys, data of dropout keys, settings.

        Returns:
          The weighted values [B, L, G, R, K] in the type of the queries.
        """
        # The forward pass is outside of the function with the derivative, which returns what it was
        # given. So the names are those of intermediate results of the layer, which a policy of
        # remat can see and keep: names within a custom VJP are hidden from `named_residuals`.
        found = self._forward(jax.lax.stop_gradient(own), others)
        found = jax.tree.map(lambda x: checkpoint_name(x, RESIDUALS), found)

        @jax.custom_vjp
        def attend(own: Any, others: Any, found: Any) -> Any:
            return found[0]

        def backward(kept: Any, change: Any) -> Any:
            return self._backward(change, *kept), None, None

        attend.defvjp(lambda *kept: (kept[2][0], kept), backward)
        context: jax.Array = attend(own, others, found)
        return context

    def _forward(self, own: Any, others: Any) -> Any:
        """Return the values [B, L, G, R, K] and their log weights [B, L, G, R]."""

        def attend(own: Any, others: Any) -> Any:
            pairs = self._pairs(own, others)
            kind = pairs.settings.scale.dtype
            start = blocks.nothing_seen(pairs.queries.query_BGRLK, kind, own[4])
            start = jax.tree.map(lambda x: varying(x, own, others), start)
            with visible(self._share(own)):
                context, log_weight = blocks.finish(blocks.see_tiles(start, pairs))
            context_BLGRK = context.transpose(0, 3, 1, 2, 4).astype(own[0].dtype)
            return context_BLGRK, log_weight.transpose(0, 3, 1, 2)

        return self.split.map(attend, _SPECS, ("q", "q"))(own, others)

    def _backward(self, change_BLGRK: jax.Array, own: Any, others: Any, found: Any) -> Any:
        """Return the cotangents of `own`."""

        def attend(change: Any, own: Any, others: Any, found: Any) -> Any:
            # Otherwise JAX would sum the cotangent of what is whole, the bias's parameters and keys
            # of rows that are split, over the devices in each block, by a collective in a branch
            # that some of them skip. Marked as varying, it is summed once, at the end.
            axes = self.split.axes
            whole = own
            own = jax.tree.map(lambda x: varying(x, own, others), own)
            pairs = self._pairs(own, others)
            kind = pairs.settings.scale.dtype
            context_BLGRK, log_weight_BLGR = found
            product_BLGR = jnp.einsum(
                "BLGRK,BLGRK->BLGR", change, context_BLGRK, preferred_element_type=kind
            )
            flow = blocks.Flow(
                change.transpose(0, 2, 3, 1, 4),
                product_BLGR.transpose(0, 2, 3, 1),
                log_weight_BLGR.transpose(0, 2, 3, 1),
            )

            def zeros(x: jax.Array) -> jax.Array:
                empty = jnp.zeros(x.shape, jnp.promote_types(x.dtype, kind))
                return varying(empty, own, others)

            queries, keys = pairs.queries, pairs.keys
            like = queries.query_BGRLK, (keys.key_BGSK, keys.value_BGSK), pairs.bias
            with visible(self._share(own)):
                of_query, of_pair, of_bias = blocks.see_tiles_backward(
                    jax.tree.map(zeros, like), flow, pairs
                )
            of_query = of_query.transpose(0, 3, 1, 2, 4)
            of_key, of_value = (x.swapaxes(1, 2) for x in of_pair)
            if self.split.length:
                of_key, of_value = jax.lax.psum((of_key, of_value), self.split.length)
            if axes:
                of_bias = jax.tree.map(lambda x: jax.lax.psum(x, axes), of_bias)
            of_sinks = None if own[4] is None else blocks.change_of_sinks(flow, own[4])
            if of_sinks is not None and (*self.split.rows, *self.split.length):
                of_sinks = jax.lax.psum(of_sinks, (*self.split.rows, *self.split.length))
            found = of_query, of_key, of_value, of_bias, of_sinks
            return jax.tree.map(lambda x, like: x.astype(like.dtype), found, whole)

        specs = ("q", *_SPECS, ("q", "q"))
        run = self.split.map(attend, specs, _SPECS[0])
        return run(change_BLGRK, own, others, found)

    def _pairs(self, own: Any, others: Any) -> blocks.Pairs:
        query_BLGRK, key_BSGK, value_BSGK, bias, _ = own
        query, key, data, settings = others
        dropout = None if data is None else DropoutKeys(jax.random.wrap_key_data(data))
        return blocks.Pairs(
            blocks.Queries(query_BLGRK.transpose(0, 2, 3, 1, 4), query, dropout),
            blocks.Keys(key_BSGK.swapaxes(1, 2), value_BSGK.swapaxes(1, 2), key),
            self.mask,
            self.block_size,
            settings,
            self.make_bias,
            bias,
        )

    def _share(self, own: Any) -> Any:
        return pair_share(self.mask, own[0].shape[1], own[1].shape[1])


_SPECS = (("q", "k", "k", "w", "h"), ("l", "s", "l", "w"))  # of `own` and of `others`
