"""Gemma 1 to 3: scaled embeddings, norms of 1 + w, GeGLU, and from 2 on alternating windows.

Gemma Team 2024, arXiv 2403.08295 and arXiv 2408.00118; Gemma Team 2025, arXiv 2503.19786.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fiddle as fdl
import jax

from luthier import layers, models
from luthier.graph import power, value


class _Parts:
    """The nodes that all blocks of a Gemma share.

    The blocks differ in window, rotary base and core only; all else is one node for all of them, so
    that one override applies to local and global layers.
    """

    def __init__(
        self,
        *,
        num_heads: Any,
        num_kv_heads: Any,
        head_dim: Any,
        hidden_dim: Any,
        stddev: Any = 0.02,
        epsilon: Any = 1e-6,
    ):
        self.initial = fdl.Config(layers.Normal, stddev=stddev)
        self.linear = fdl.Partial(layers.Linear, kernel=self.initial)
        # The weight of a norm is stored as its difference from 1, as in the published checkpoints.
        self.norm = fdl.Partial(
            layers.RMSNorm, epsilon=epsilon, scale=fdl.Config(layers.Zeros), offset=1.0
        )
        self.heads = {
            "num_heads": value(num_heads, name="num_heads"),
            "num_kv_heads": value(num_kv_heads, name="num_kv_heads"),
            "head_dim": value(head_dim, name="head_dim"),
        }
        self.mlp = fdl.Partial(
            layers.GatedMlp,
            hidden_dim=hidden_dim,
            activation=jax.nn.gelu,
            gate=self.linear,
            up=self.linear,
            down=self.linear,
        )

    def block(self, kind: Any, rotary: Any, core: Any, query_key: Any = None) -> fdl.Partial:
        attention = fdl.Partial(
            layers.Attention,
            **self.heads,
            projection=self.linear,
            output=self.linear,
            rotary=rotary,
            core=core,
            query_key=query_key,
        )
        return fdl.Partial(kind, attention=attention, mlp=self.mlp, norm=self.norm)

    def decoder(
        self,
        block: fdl.Partial | Sequence[fdl.Partial],
        *,
        vocab_size: Any,
        dim: Any,
        num_layers: Any,
        cap: Any = None,
        pad_to_multiple: Any = 1,
    ) -> fdl.Partial[models.Decoder]:
        dim = value(dim, name="dim")
        return fdl.Partial(
            models.Decoder,
            vocab_size=vocab_size,
            dim=dim,
            num_layers=num_layers,
            block=block,
            norm=self.norm,
            embedding=fdl.Partial(
                layers.Embedding,
                table=self.initial,
                pad_to_multiple=pad_to_multiple,
                scale=power(dim, 0.5),
            ),
            unembedding=fdl.Partial(layers.TiedUnembedding, cap=cap),
        )


def gemma(
    *,
    vocab_size: Any = 256_000,
    dim: Any,
    num_layers: Any,
    rotary_base: Any = 10_000.0,
    pad_to_multiple: Any = 1,
    **sizes: Any,
) -> fdl.Partial[models.Decoder]:
    """Return the template of a Gemma 1.

    Args:
      vocab_size: Tokens of the vocabulary.
      dim: Size of the residual stream.
      num_layers: Number of blocks.
      rotary_base: Base of the rotary frequencies.
      pad_to_multiple: Rows of the embedding table are a multiple of this.
      **sizes: `num_heads`, `num_kv_heads`, `head_dim` and `hidden_dim` (half of the published
        feed-forward dims, which count gate and up together); `stddev` of initial kernels and
        `epsilon` of the norms.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    parts = _Parts(**sizes)
    rotary = fdl.Config(layers.Rotary, base=rotary_base)
    block = parts.block(layers.PreNormBlock, rotary, fdl.Config(layers.AutoAttention))
    ends = {"vocab_size": vocab_size, "pad_to_multiple": pad_to_multiple}
    return parts.decoder(block, dim=dim, num_layers=num_layers, **ends)


def gemma2(
    *,
    vocab_size: Any = 256_000,
    dim: Any,
    num_layers: Any,
    window: Any = 4096,
    query_scalar: Any = 256,
    attention_cap: Any = 50.0,
    logits_cap: Any = 30.0,
    rotary_base: Any = 10_000.0,
    pad_to_multiple: Any = 1,
    **sizes: Any,
) -> fdl.Partial[models.Decoder]:
    """Return the template of a Gemma 2: alternating local and global layers, all scores capped.

    Args:
      vocab_size: Tokens of the vocabulary.
      dim: Size of the residual stream.
      num_layers: Number of blocks; the first is local.
      window: Tokens that a token sees in a local layer, itself included.
      query_scalar: Attention scores are divided by its square root.
      attention_cap: Cap of attention scores.
      logits_cap: Cap of the logits.
      rotary_base: Base of the rotary frequencies.
      pad_to_multiple: Rows of the embedding table are a multiple of this.
      **sizes: As for `gemma`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    parts = _Parts(**sizes)
    rotary = fdl.Config(layers.Rotary, base=rotary_base)
    terms = {
        "scale": power(value(query_scalar, name="query_scalar"), -0.5),
        "cap": value(attention_cap, name="attention_cap"),
    }
    masks = (fdl.Config(layers.Window, size=window), fdl.Config(layers.Causal))
    cores = [fdl.Config(layers.AutoAttention, mask=mask, **terms) for mask in masks]
    blocks = [parts.block(layers.SandwichBlock, rotary, core) for core in cores]
    ends = {"vocab_size": vocab_size, "pad_to_multiple": pad_to_multiple, "cap": logits_cap}
    return parts.decoder(blocks, dim=dim, num_layers=num_layers, **ends)


def gemma3(
    *,
    vocab_size: Any = 262_144,
    dim: Any,
    num_layers: Any,
    window: Any,
    locals_per_global: int = 5,
    query_scalar: Any = 256,
    local_rotary_base: Any = 10_000.0,
    global_rotary_base: Any = 1_000_000.0,
    global_rotary_scaling: fdl.Config | None = None,
    pad_to_multiple: Any = 1,
    **sizes: Any,
) -> fdl.Partial[models.Decoder]:
    """Return the template of a Gemma 3's language model: normalized queries and keys, no caps.

    Args:
      vocab_size: Tokens of the vocabulary.
      dim: Size of the residual stream.
      num_layers: Number of blocks; each run of local ones is followed by a global one.
      window: Tokens that a token sees in a local layer, itself included.
      locals_per_global: Local layers before each global one.
      query_scalar: Attention scores are divided by its square root.
      local_rotary_base: Base of the rotary frequencies of local layers.
      global_rotary_base: Base of the rotary frequencies of global layers.
      global_rotary_scaling: Scaling of the frequencies of global layers; None for none.
      pad_to_multiple: Rows of the embedding table are a multiple of this.
      **sizes: As for `gemma`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    parts = _Parts(**sizes)
    scale = power(value(query_scalar, name="query_scalar"), -0.5)
    query_key = fdl.Partial(layers.HeadNorms, norm=parts.norm)
    near = parts.block(
        layers.SandwichBlock,
        fdl.Config(layers.Rotary, base=local_rotary_base),
        fdl.Config(layers.AutoAttention, mask=fdl.Config(layers.Window, size=window), scale=scale),
        query_key,
    )
    far = parts.block(
        layers.SandwichBlock,
        fdl.Config(layers.Rotary, base=global_rotary_base, scaling=global_rotary_scaling),
        fdl.Config(layers.AutoAttention, scale=scale),
        query_key,
    )
    ends = {"vocab_size": vocab_size, "pad_to_multiple": pad_to_multiple}
    blocks = [near] * locals_per_global + [far]
    return parts.decoder(blocks, dim=dim, num_layers=num_layers, **ends)


def gemma_2b() -> fdl.Partial[models.Decoder]:
    """Return Gemma 1 of 2.5 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> parameters = planner.model_parameters(decoders.gemma_2b())
      >>> planner.count_parameters(parameters).total
      2506172416
    """
    heads = {"num_heads": 8, "num_kv_heads": 1, "head_dim": 256}
    return gemma(dim=2048, num_layers=18, hidden_dim=16_384, **heads)


def gemma_7b() -> fdl.Partial[models.Decoder]:
    """Return Gemma 1 of 8.5 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    heads = {"num_heads": 16, "num_kv_heads": 16, "head_dim": 256}
    return gemma(dim=3072, num_layers=28, hidden_dim=24_576, **heads)


def gemma2_2b() -> fdl.Partial[models.Decoder]:
    """Return Gemma 2 of 2.6 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    heads = {"num_heads": 8, "num_kv_heads": 4, "head_dim": 256}
    return gemma2(dim=2304, num_layers=26, hidden_dim=9216, **heads)


def gemma2_9b() -> fdl.Partial[models.Decoder]:
    """Return Gemma 2 of 9.2 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    heads = {"num_heads": 16, "num_kv_heads": 8, "head_dim": 256}
    return gemma2(dim=3584, num_layers=42, hidden_dim=14_336, **heads)


def gemma2_27b() -> fdl.Partial[models.Decoder]:
    """Return Gemma 2 of 27.2 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    heads = {"num_heads": 32, "num_kv_heads": 16, "head_dim": 128}
    # Scores are divided by the root of dim / num_heads here, not of the size of a head.
    return gemma2(dim=4608, num_layers=46, hidden_dim=36_864, query_scalar=144, **heads)


def gemma3_270m() -> fdl.Partial[models.Decoder]:
    """Return Gemma 3 of 268 million parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    heads = {"num_heads": 4, "num_kv_heads": 1, "head_dim": 256}
    return gemma3(dim=640, num_layers=18, hidden_dim=2048, window=512, **heads)


def gemma3_1b() -> fdl.Partial[models.Decoder]:
    """Return Gemma 3 of 1.0 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    heads = {"num_heads": 4, "num_kv_heads": 1, "head_dim": 256}
    return gemma3(dim=1152, num_layers=26, hidden_dim=6912, window=512, **heads)


def gemma3_4b() -> fdl.Partial[models.Decoder]:
    """Return the language model of Gemma 3 of 3.9 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    heads = {"num_heads": 8, "num_kv_heads": 4, "head_dim": 256}
    return _gemma3_large(dim=2560, num_layers=34, hidden_dim=10_240, **heads)


def gemma3_12b() -> fdl.Partial[models.Decoder]:
    """Return the language model of Gemma 3 of 11.8 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    heads = {"num_heads": 16, "num_kv_heads": 8, "head_dim": 256}
    return _gemma3_large(dim=3840, num_layers=48, hidden_dim=15_360, **heads)


def gemma3_27b() -> fdl.Partial[models.Decoder]:
    """Return the language model of Gemma 3 of 27.0 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    # As in Gemma 2 27B, the scalar is dim / num_heads.
    sizes = {"num_heads": 32, "num_kv_heads": 16, "head_dim": 128, "query_scalar": 168}
    return _gemma3_large(dim=5376, num_layers=62, hidden_dim=21_504, **sizes)


def _gemma3_large(**sizes: Any) -> fdl.Partial:
    longer = fdl.Config(layers.LinearScaling, factor=8.0)
    return gemma3(vocab_size=262_208, window=1024, global_rotary_scaling=longer, **sizes)
