"""Attention by Splash, the Pallas kernels of JAX for TPUs: no scores in memory.

The kernels do no work for blocks of pairs that a causal mask or a window hides, and mask the pairs
of different documents within the others.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, K head_dim.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from luthier.errors import BadInput, Problem
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.blockwise import RESIDUALS, BlockwiseAttention
from luthier.layers.attention.kernels import INSTEAD, declared_attention, require_mask
from luthier.layers.attention.masks import AttentionMask, Causal, SameDocument, Window, pair_share
from luthier.layers.declared import is_abstract, visible
from luthier.layers.dropout import DropoutKeys
from luthier.layers.parameters import wide
from luthier.layers.positions import Tokens
from luthier.parallel import current_layout, current_platform

LANES = 128


@dataclasses.dataclass(frozen=True)
class SplashAttention:
    """The attention of `EinsumAttention` by the Splash kernels of JAX, on TPUs.

    Rows hold any number of documents, the tokens of each adjacent. The kernels have sinks, but
    neither biases nor dropout. The new tokens of a decoder attend as in `BlockwiseAttention`; so
    does the abstract form of the kernels, which stands in for them in plans. Where the mesh splits
    the length of rows, wrap it in `AllToAllAttention`.

    What the backward pass needs of the forward pass is named `attention_residuals`, for policies of
    remat: see `BlockwiseAttention`. On CPUs the kernels are interpreted, which is for tests.

    Args:
      mask: `Causal`, `Window` or `SameDocument`.
      scale: Factor of the scores; None means 1 / sqrt(K).
      cap: Upper bound of the scores; None means no cap.
      block_size: Most queries, and most keys, of a block; rounded down to a multiple of 128 that
        divides the length.

    Raises:
      BadInput: The mask is of another kind.

    Source: Dao 2023, arXiv 2307.08691 (the algorithm); `jax.experimental.pallas.ops.tpu
      .splash_attention`.
    Deviation: Queries are scaled before the product, in their own type, and not the scores after
      it. In bfloat16 that rounds once more, unless the scale is a power of two.
    """

    EXECUTION: ClassVar[tuple[str, ...]] = ("block_size",)
    RANGES: ClassVar[dict[str, str]] = {"cap": "0 < x", "block_size": "128 <= x"}

    mask: AttentionMask = Causal()
    scale: float | None = None
    cap: float | None = None
    block_size: int = 512

    def __post_init__(self) -> None:
        require_mask(self)

    def lacking(self, device: Any) -> str:
        """Return why a device cannot run these kernels; an empty string if it can.

        Args:
          device: A device of JAX, present or described.

        Returns:
          A reason, or an empty string.
        """
        if is_abstract() or device.platform == "tpu":
            return ""
        return f"{device.device_kind} has no Splash attention"

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
        """Attend.

        Args:
          query_BLHK: [B, L, H, K].
          key_BSGK: [B, S, G, K]; query head h uses key head h // (H / G).
          value_BSGK: [B, S, G, K].
          query: Positions and segments of the queries.
          key: Positions and segments of the keys; where S is L, those of the queries.
          dropout: Not used.
          bias: Must be None.
          sinks_H: The scores of the heads' sinks [H], float32 or wider; None means no sinks.

        Returns:
          [B, L, H, K] in the type of the queries; zero for queries that may see nothing.

        Raises:
          BadInput: The kernels do not have this length or bias, or the mesh splits the length.
        """
        length = query_BLHK.shape[1]
        # Smaller blocks than on TPUs would have: the abstract form must need no more memory than
        # the kernels, whose scores never leave the chip.
        plain = BlockwiseAttention(self.mask, self.scale, self.cap, block_size=LANES)
        if bias is not None:
            remedy = f"drop the bias, or {INSTEAD}"
            raise BadInput(Problem("SplashAttention adds no bias to scores", remedy=remedy))
        if length != key_BSGK.shape[1]:
            return plain(query_BLHK, key_BSGK, value_BSGK, query, key, sinks_H=sinks_H)
        if length % LANES:
            what = f"SplashAttention has no rows of {length} tokens"
            remedy = f"make rows a multiple of {LANES} tokens, or {INSTEAD}"
            raise BadInput(Problem(what, remedy=remedy))
        if is_abstract():
            # Two products going forward; the kernel for queries has three, that for keys four.
            statistics = 4 * math.prod(query_BLHK.shape[:3])

            def form(*arguments: Any) -> jax.Array:
                return plain(*arguments[:5], sinks_H=arguments[5] if arguments[5:] else None)

            attend = declared_attention(form, self.mask, 7, statistics)
            sinks = () if sinks_H is None else (sinks_H,)
            return attend(query_BLHK, key_BSGK, value_BSGK, query, key, *sinks)
        is_token_BL11 = (key.segments_BL > 0)[:, :, None, None]
        scale = query_BLHK.shape[-1] ** -0.5 if self.scale is None else self.scale
        kind = wide(query_BLHK.dtype)
        scaled_BLHK = (query_BLHK.astype(kind) * scale).astype(query_BLHK.dtype)
        with visible(pair_share(self.mask, length, length)):
            context_BLHK = self._shards(scaled_BLHK, key_BSGK, value_BSGK, key.segments_BL, sinks_H)
        # To the kernel padding is one more document, with segment 0.
        return jnp.where(is_token_BL11, context_BLHK, jnp.zeros((), context_BLHK.dtype))

    def _shards(
        self,
        query_BLHK: jax.Array,
        key_BLGK: jax.Array,
        value_BLGK: jax.Array,
        segments: jax.Array,
        sinks_H: jax.Array | None,
    ) -> jax.Array:
        """Attend on each device to its own rows and heads: the compiler cannot split a kernel."""
        # Sinks by rows, so that their gradient is summed over the rows of all devices out here.
        sinks_BH = None
        if sinks_H is not None:
            sinks_BH = _widened(jnp.broadcast_to(sinks_H, (query_BLHK.shape[0], *sinks_H.shape)))
        layout = current_layout()
        if layout is None:
            return self._attend(query_BLHK, key_BLGK, value_BLGK, segments, sinks_BH)
        if layout.mesh_axes("length"):
            remedy = f"use fiddler:all_to_all, or {INSTEAD}"
            raise BadInput(Problem("SplashAttention attends to whole rows only", remedy=remedy))
        rows, heads = layout.mesh_axes("batch"), layout.mesh_axes("heads")
        sizes = [math.prod(layout.sizes[axis] for axis in axes) for axes in (rows, heads)]
        # What the axes do not divide is computed by all of their devices: see `AllToAllAttention`.
        if query_BLHK.shape[0] % sizes[0]:
            rows = ()
        if query_BLHK.shape[2] % sizes[1]:
            heads = ()
        if not rows and not heads:
            return self._attend(query_BLHK, key_BLGK, value_BLGK, segments, sinks_BH)
        groups = key_BLGK.shape[2]
        if heads and groups % sizes[1]:
            times = math.lcm(groups, sizes[1]) // groups
            key_BLGK, value_BLGK = (jnp.repeat(x, times, 2) for x in (key_BLGK, value_BLGK))
        array = PartitionSpec(rows or None, None, heads or None)
        by_heads = PartitionSpec(rows or None, heads or None)
        specs = array, array, array, PartitionSpec(rows or None), by_heads
        # The kernels of jax 0.10 do not declare over which axes their results vary.
        run = layout.shard_map(self._attend, (*rows, *heads), specs, array, check_vma=False)
        found: jax.Array = run(query_BLHK, key_BLGK, value_BLGK, segments, sinks_BH)
        return found

    def _attend(
        self,
        query_BLHK: jax.Array,
        key_BLGK: jax.Array,
        value_BLGK: jax.Array,
        segments: jax.Array,
        sinks_BH: jax.Array | None,
    ) -> jax.Array:
        # Imported here: Pallas takes half a second, and only TPUs need it.
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        _, length, num_heads, _ = query_BLHK.shape
        # Mask and cap are parts of the kernel, so they must be numbers: `int` and `float` raise for
        # a hoisted leaf, which then stays a constant.
        shape = length, length
        if isinstance(self.mask, SameDocument):
            mask: Any = splash.FullMask(shape)
        elif isinstance(self.mask, Window):
            # Distances of places are those of positions, since documents are adjacent.
            mask = splash.LocalMask(shape, (int(self.mask.size) - 1, 0), 0)
        else:
            mask = splash.CausalMask(shape)
        attend = splash.make_splash_mha(
            splash.MultiHeadMask([mask] * num_heads),
            block_sizes=self._blocks(length),
            attn_logits_soft_cap=None if self.cap is None else float(self.cap),
            head_shards=1,
            q_seq_shards=1,
            residual_checkpoint_name=RESIDUALS,
            interpret=(current_platform() or jax.default_backend()) != "tpu",
        )
        heads_first = (x.swapaxes(1, 2) for x in (query_BLHK, key_BLGK, value_BLGK))
        ids = splash.SegmentIds(segments, segments)
        context_BHLK = jax.vmap(attend)(*heads_first, ids, sinks_BH)
        return context_BHLK.swapaxes(1, 2)

    def _blocks(self, length: int) -> Any:
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        sizes = range(LANES, max(self.block_size, LANES) + 1, LANES)
        size = max(size for size in sizes if length % size == 0)
        names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
        fields: dict[str, Any] = {f"block_{name}": size for name in names}
        return splash.BlockSizes(**fields)


# An identity whose cotangent has its type. Before jax 0.12 that of the kernel is in the type of the
# queries, in which it would be summed over all rows.
@jax.custom_vjp
def _widened(x: jax.Array) -> jax.Array:
    return x


_widened.defvjp(lambda x: (x, x), lambda x, change: (change.astype(x.dtype),))
