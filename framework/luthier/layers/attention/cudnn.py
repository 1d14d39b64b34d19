"""Attention by NVIDIA's cuDNN: no scores in memory, and no work for pairs that a mask hides.

cuDNN takes the offsets and lengths of the documents of a row (its packed layout), so no mask is
ever made. The alternatives, and why they are not used: a mask as a bias is read for every head, its
gradient is written, and no work is saved; tokamax 0.0.17 needs Python 3.12 and JAX 0.11.1, newer
than what this framework requires.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, K head_dim, M documents.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from luthier.errors import BadInput, Problem
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.blockwise import AttentionSplit
from luthier.layers.attention.cores import EinsumAttention
from luthier.layers.attention.kernels import INSTEAD, declared_attention, require_mask
from luthier.layers.attention.masks import AttentionMask, Causal, SameDocument, Window, pair_share
from luthier.layers.declared import is_abstract, visible
from luthier.layers.dropout import DropoutKeys
from luthier.layers.positions import Tokens
from luthier.parallel import current_layout, is_explicit

TYPES = (jnp.bfloat16, jnp.float16)
LARGEST_HEAD = 256
# Compute capabilities from which cuDNN has the kernel (with heads of up to 128), and from which it
# has the packed layout and larger heads. Source: NVIDIA cuDNN documentation, "Scaled dot product
# attention"; jax/_src/cudnn/fused_attention_stablehlo.py.
_AMPERE, _HOPPER = 8.0, 9.0
_LARGEST_HEAD_BEFORE_HOPPER = 128
_BLOCK = 128  # queries at a time, of the abstract form
# Before jax 0.12, offsets of keys counted the heads of the queries, so with fewer key heads cuDNN
# read the wrong places (https://github.com/jax-ml/jax/pull/39521); there, keys are repeated.
_COUNTS_KEY_HEADS = jax.__version_info__ >= (0, 12)


def largest_head(device: Any) -> int:
    """Return the largest head_dim of cuDNN's kernel on a GPU.

    Args:
      device: A device of JAX, present or described.
    """
    return LARGEST_HEAD if _capability(device) >= _HOPPER else _LARGEST_HEAD_BEFORE_HOPPER


def _capability(device: Any) -> float:
    """Return the compute capability of a device; zero where it is no GPU of NVIDIA."""
    try:
        return float(getattr(device, "compute_capability", 0.0))
    except ValueError:
        return 0.0


@dataclasses.dataclass(frozen=True)
class CudnnAttention:
    """The attention of `EinsumAttention` by cuDNN's fused kernels, in bfloat16 or float16.

    The tokens of a document must be adjacent. A row with more documents than `max_documents` gets
    only NaN, so that no wrong number passes for a right one. The kernel has no biases, caps,
    sinks or dropout. The few new tokens of a decoder attend by plain products; so does the abstract
    form of the kernel, which stands in for it where its device is absent: block by block, as flash
    attention does.

    Args:
      mask: `Causal`, `Window` or `SameDocument`.
      scale: Factor of the scores; None means 1 / sqrt(K).
      max_documents: M, most documents of a row. 1 is for rows of one document, which starts where
        the row does; more needs a GPU of compute capability 9.0. The kernel's time and the memory
        of its statistics, 4 M B L H bytes, grow with it.

    Raises:
      BadInput: The mask is of another kind.

    Source: Dao 2023, arXiv 2307.08691 (the algorithm); NVIDIA cuDNN documentation, "Scaled dot
      product attention".
    """

    EXECUTION: ClassVar[tuple[str, ...]] = ("max_documents",)
    RANGES: ClassVar[dict[str, str]] = {"max_documents": "1 <= x"}

    mask: AttentionMask = Causal()
    scale: float | None = None
    max_documents: int = 16

    def __post_init__(self) -> None:
        require_mask(self)

    def lacking(self, device: Any) -> str:
        """Return why a device cannot run this kernel; an empty string if it can.

        Args:
          device: A device of JAX, present or described.

        Returns:
          A reason, or an empty string.
        """
        # Within `abstract_forms` plain products stand in for the kernel, which any device has.
        return "" if is_abstract() else self.without_kernel(device)

    def without_kernel(self, device: Any) -> str:
        """Return why a device has no such kernel, whether or not another form can stand in for it.

        Args:
          device: A device of JAX, present or described.

        Returns:
          A reason, or an empty string.
        """
        since = _capability(device)
        if device.platform not in ("gpu", "cuda") or not since:
            return f"{device.device_kind} has no cuDNN"
        if since < _AMPERE:
            return f"{device.device_kind} has no cuDNN attention"
        if self.max_documents > 1 and since < _HOPPER:
            return f"{device.device_kind} has no cuDNN attention of several documents in a row"
        return ""

    def document_limit(self, device: Any) -> int | None:
        """Return the most documents of a row.

        Args:
          device: A device of JAX, which makes no difference here.

        Returns:
          `max_documents`.
        """
        return self.max_documents

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
          query_BLHK: [B, L, H, K], bfloat16 or float16.
          key_BSGK: [B, S, G, K]; query head h uses key head h // (H / G).
          value_BSGK: [B, S, G, K].
          query: Positions and segments of the queries.
          key: Positions and segments of the keys; where S is L, those of the queries.
          dropout: Not used.
          bias: Must be None.
          sinks_H: Must be None.

        Returns:
          [B, L, H, K] in the type of the queries; zero for queries that may see nothing.

        Raises:
          BadInput: cuDNN does not have this type or size of heads, biases or sinks; or the mesh
            splits the length.
        """
        self._check(query_BLHK, bias, sinks_H)
        layout = current_layout()
        if query_BLHK.shape[1] != key_BSGK.shape[1]:
            return self._in_blocks(query_BLHK, key_BSGK, value_BSGK, query, key)
        if layout is not None and layout.mesh_axes("length"):
            remedy = f"use fiddler:all_to_all, or {INSTEAD}"
            raise BadInput(Problem("CudnnAttention attends to whole rows only", remedy=remedy))
        if is_abstract():
            # Two products going forward; five backward, the scores once more among them.
            statistics = 4 * self.max_documents * math.prod(query_BLHK.shape[:3])
            attend = declared_attention(self._in_blocks, self.mask, 5, statistics)
            rows, length = query_BLHK.shape[:2]
            split = AttentionSplit.of(rows, length, key_BSGK.shape[2])
            arrays = (_row_major(x, split) for x in (query_BLHK, key_BSGK, value_BSGK))
            return _row_major(attend(*arrays, query, key), split)
        documents = documents_of(key.segments_BL, self.max_documents)
        is_token_BL11 = (key.segments_BL > 0)[:, :, None, None]
        # Padding belongs to no document, so cuDNN does not write its places: the result and the
        # gradients hold there what was in the memory before, perhaps NaN. Selecting zeros in the
        # result (`_only`) and in the gradients (`_read`) drops it. Multiplying by the mask would
        # not: 0 times NaN is NaN.
        query_BLHK, key_BSGK, value_BSGK = (
            _read(x, is_token_BL11) for x in (query_BLHK, key_BSGK, value_BSGK)
        )
        with visible(pair_share(self.mask, query_BLHK.shape[1], key_BSGK.shape[1])):
            context_BLHK = self._attend(query_BLHK, key_BSGK, value_BSGK, documents)
        context_BLHK = _only(context_BLHK, is_token_BL11)
        # How many documents a row has is known on the device only, where nothing can raise. NaN is
        # what a guard of the training loop stops at.
        fits_B111 = documents.fits_B[:, None, None, None]
        return jnp.where(fits_B111, context_BLHK, jnp.nan)

    def _check(self, query_BLHK: jax.Array, bias: Bias | None, sinks_H: jax.Array | None) -> None:
        problems = []
        if query_BLHK.dtype not in TYPES:
            what = f"CudnnAttention computes in bfloat16 or float16, not in {query_BLHK.dtype}"
            remedy = f"compute in bfloat16 (fiddler:bf16), or {INSTEAD}"
            problems.append(Problem(what, remedy=remedy))
        size = query_BLHK.shape[-1]
        if size % 8 or size > LARGEST_HEAD:
            what = f"CudnnAttention has no heads of {size}"
            remedy = f"make head_dim a multiple of 8 up to {LARGEST_HEAD}, or {INSTEAD}"
            problems.append(Problem(what, remedy=remedy))
        if bias is not None:
            remedy = f"drop the bias, or {INSTEAD}"
            problems.append(Problem("CudnnAttention adds no bias to scores", remedy=remedy))
        if sinks_H is not None:
            remedy = f"drop the sinks, or {INSTEAD}"
            problems.append(Problem("CudnnAttention has no sinks", remedy=remedy))
        if problems:
            raise BadInput(problems)

    def _attend(
        self,
        query_BLHK: jax.Array,
        key_BLGK: jax.Array,
        value_BLGK: jax.Array,
        documents: DocumentOffsets,
    ) -> jax.Array:
        # Private, because the public `jax.nn.dot_product_attention(implementation="cudnn")` has no
        # arguments for offsets, the packed layout: it takes one sequence length for each row.
        # Imported here, so that a change of the private name breaks this core alone.
        from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

        # Size of the window and scale are attributes of the call, not operands, so they must be
        # numbers: `int` and `float` raise for a hoisted leaf, which then stays a constant.
        is_causal = not isinstance(self.mask, SameDocument)
        window = int(self.mask.size) if isinstance(self.mask, Window) else None
        scale = query_BLHK.shape[-1] ** -0.5 if self.scale is None else float(self.scale)
        kind = MaskType.PADDING_CAUSAL if is_causal else MaskType.PADDING
        lengths = documents.lengths_BM
        offsets: jax.Array | None = documents.offsets_BN
        if self.max_documents == 1:
            # The plain layout, which GPUs before Hopper have, too.
            lengths, offsets = lengths[:, 0], None
        elif not _COUNTS_KEY_HEADS:
            repeats = query_BLHK.shape[2] // key_BLGK.shape[2]
            key_BLGK, value_BLGK = (jnp.repeat(x, repeats, 2) for x in (key_BLGK, value_BLGK))
        found: jax.Array = dot_product_attention(
            query_BLHK,
            key_BLGK,
            value_BLGK,
            q_seqlen=lengths,
            kv_seqlen=lengths,
            q_offsets=offsets,
            kv_offsets=offsets,
            scale=scale,
            mask_type=kind,
            sliding_window_length=window,
        )
        return found

    def _in_blocks(
        self,
        query_BLHK: jax.Array,
        key_BSGK: jax.Array,
        value_BSGK: jax.Array,
        query: Tokens,
        key: Tokens,
    ) -> jax.Array:
        """Attend by plain products, one block of queries at a time, recomputed going backward."""
        # The form that is traced for an absent GPU, to count FLOPs and memory: it must need about
        # the memory of the kernel, so no more than one block of scores is alive at a time, also
        # in the backward pass (`checkpoint`). `map` makes it one loop body, not L / 128 of them.
        plain = EinsumAttention(self.mask, self.scale)
        length, num_keys = query_BLHK.shape[1], key_BSGK.shape[1]
        if length < 2 * _BLOCK:
            return plain(query_BLHK, key_BSGK, value_BSGK, query, key)

        def attend(
            query_BLHK: jax.Array,
            key_BSGK: jax.Array,
            value_BSGK: jax.Array,
            query: Tokens,
            key: Tokens,
        ) -> jax.Array:
            def block(part: tuple[jax.Array, Tokens]) -> jax.Array:
                return plain(part[0], key_BSGK, value_BSGK, part[1], key)

            parts = jax.tree.map(_split, (query_BLHK, query))
            context_NBCHK = jax.lax.map(jax.checkpoint(block, prevent_cse=False), parts)
            rows, length, *rest = query_BLHK.shape
            return jnp.moveaxis(context_NBCHK, 0, 1).reshape(rows, -1, *rest)[:, :length]

        split = AttentionSplit.of(query_BLHK.shape[0], length, key_BSGK.shape[2])
        attend = split.map(attend, ("q", "k", "k", "l", "s"), "q")
        with visible(pair_share(self.mask, length, num_keys)):
            found: jax.Array = attend(query_BLHK, key_BSGK, value_BSGK, query, key)
        return found


class DocumentOffsets(NamedTuple):
    """The offsets and lengths of the documents of rows; N is M + 1.

    Args:
      lengths_BM: Tokens of each document, int32; -1 where a row has fewer.
      offsets_BN: The place where each begins, int32; -1 where a row has fewer, and at the end.
      fits_B: Whether these are all the documents of a row.
    """

    lengths_BM: jax.Array
    offsets_BN: jax.Array
    fits_B: jax.Array


def documents_of(segments_BL: jax.Array, max_documents: int) -> DocumentOffsets:
    """Return the offsets and lengths of the documents of rows.

    Args:
      segments_BL: Documents of the tokens, int32 [B, L]; 0 is padding. Tokens of one are adjacent.
      max_documents: M; with 1, the document must start where the row does.
    """
    # Segment numbers are arbitrary, so documents are numbered again: a document starts where a
    # token's segment differs from that of the token before, and `cumsum` of the starts counts
    # them. One comparison with 1 ... M then gives lengths and offsets as sums over the row, all of
    # static shape [B, M], without a sort or a scatter. -1 ends cuDNN's lists.
    before_BL = jnp.pad(segments_BL[:, :-1], ((0, 0), (1, 0)))
    is_token_BL = segments_BL > 0
    starts_BL = is_token_BL & (segments_BL != before_BL)
    number_BL = jnp.where(is_token_BL, jnp.cumsum(starts_BL, 1), 0)
    is_own_BML = number_BL[:, None] == jnp.arange(1, max_documents + 1)[:, None]
    lengths_BM = is_own_BML.sum(-1, dtype=jnp.int32)
    places_L = jnp.arange(segments_BL.shape[1], dtype=jnp.int32)
    offsets_BM = jnp.sum(jnp.where(is_own_BML & starts_BL[:, None], places_L, 0), -1)
    is_there_BM = lengths_BM > 0
    fits_B = number_BL.max(1) <= max_documents
    if max_documents == 1:
        fits_B &= offsets_BM[:, 0] == 0
        return DocumentOffsets(lengths_BM, offsets_BM, fits_B)
    offsets_BN = jnp.pad(
        jnp.where(is_there_BM, offsets_BM, -1), ((0, 0), (0, 1)), constant_values=-1
    )
    return DocumentOffsets(
        jnp.where(is_there_BM, lengths_BM, -1), offsets_BN.astype(jnp.int32), fits_B
    )


def _only(x: jax.Array, is_token: jax.Array) -> jax.Array:
    return jnp.where(is_token, x, jnp.zeros((), x.dtype))


# An identity with a derivative of its own. `jnp.where` on the way in would drop the gradients of
# padding as well, but would copy queries, keys and values in the forward pass, for numbers that the
# kernel does not read.
@jax.custom_vjp
def _read(x: jax.Array, is_token: jax.Array) -> jax.Array:
    """Return x as it is, so that nothing is copied; its gradient is that of tokens only."""
    return x


_read.defvjp(
    lambda x, is_token: (x, is_token), lambda is_token, change: (_only(change, is_token), None)
)


def _row_major(x_BLHK: jax.Array, split: AttentionSplit) -> jax.Array:
    """Return x as it is, stored as cuDNN takes and writes it: the last dimension is innermost."""
    # The compiler chooses a layout that suits the products of the abstract form best, and arrays
    # around the kernel, and their gradients, follow it: 3.6 of the 113 GB that a step of GPT-2
    # moved on an H100 were copies to such layouts, which no step with the kernel has.
    #
    # Applied to shards only: the partitioner does not know the operation, and gathers its operand.
    layout = split.layout
    if layout is not None:
        axes = {*layout.mesh_axes("batch"), *layout.mesh_axes("kv_heads")}
        if is_explicit() or not axes <= set(split.axes):
            return x_BLHK
    place = functools.partial(with_layout_constraint, layouts=Layout((0, 1, 2, 3)))
    found: jax.Array = split.map(place, ("k",), "k")(x_BLHK)
    return found


def _split(x_BL: jax.Array) -> jax.Array:
    """[B, L, ...] -> [N, B, C, ...], with zeros after the last of L."""
    rows, length, *rest = x_BL.shape
    x_BL = jnp.pad(x_BL, ((0, 0), (0, -length % _BLOCK), *((0, 0),) * len(rest)))
    return jnp.moveaxis(x_BL.reshape(rows, -1, _BLOCK, *rest), 1, 0)
