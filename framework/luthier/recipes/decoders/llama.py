"""Llama 1 to 3.2: RMSNorm, rotary positions, gated MLP, grouped queries.

Touvron et al. 2023, arXiv 2302.13971 and arXiv 2307.09288; Grattafiori et al. 2024,
arXiv 2407.21783.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax

from luthier import layers, models
from luthier.graph import value


def llama(
    *,
    vocab_size: Any,
    dim: Any,
    num_layers: Any,
    num_heads: Any,
    hidden_dim: Any,
    num_kv_heads: Any = None,
    head_dim: Any = None,
    rotary_base: Any = 10_000.0,
    rotary_scaling: fdl.Config | None = None,
    unembedding: fdl.Partial | None = None,
    stddev: Any = 0.02,
    epsilon: Any = 1e-5,
    pad_to_multiple: Any = 1,
) -> fdl.Partial[models.Decoder]:
    """Return the template of a Llama.

    Args:
      vocab_size: Tokens of the vocabulary.
      dim: Size of the residual stream.
      num_layers: Number of blocks.
      num_heads: Query heads.
      hidden_dim: Size of the MLP.
      num_kv_heads: Key and value heads; None means as many as query heads.
      head_dim: Size of a head; None means `dim / num_heads`.
      rotary_base: Base of the rotary frequencies.
      rotary_scaling: Scaling of the frequencies, such as `Llama3Scaling`; None for none.
      unembedding: Template of the map to logits; None means a kernel of its own.
      stddev: Standard deviation of initial kernels and tables.
      epsilon: Epsilon of all norms.
      pad_to_multiple: Rows of the embedding table, and columns of the kernel to logits, are a
        multiple of this.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    # `initial`, `linear` and `norm` are one node each, used in many places: an override in one
    # place applies to all of them. Where a family differs (biases on queries only, as in Qwen 2),
    # its recipe replaces the node in these places.
    initial = fdl.Config(layers.Normal, stddev=stddev)
    linear = fdl.Partial(layers.Linear, kernel=initial)
    norm = fdl.Partial(layers.RMSNorm, epsilon=epsilon)
    # One shared value: table and kernel are padded alike.
    pad = value(pad_to_multiple, name="pad_to_multiple")
    if unembedding is None:
        unembedding = fdl.Partial(layers.Unembedding, kernel=initial, pad_to_multiple=pad)
    return fdl.Partial(
        models.Decoder,
        vocab_size=vocab_size,
        dim=dim,
        num_layers=num_layers,
        block=fdl.Partial(
            layers.PreNormBlock,
            attention=fdl.Partial(
                layers.Attention,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                projection=linear,
                output=linear,
                rotary=fdl.Config(layers.Rotary, base=rotary_base, scaling=rotary_scaling),
                core=fdl.Config(layers.AutoAttention),
            ),
            mlp=fdl.Partial(
                layers.GatedMlp,
                hidden_dim=hidden_dim,
                activation=jax.nn.silu,
                gate=linear,
                up=linear,
                down=linear,
            ),
            norm=norm,
        ),
        norm=norm,
        embedding=fdl.Partial(layers.Embedding, table=initial, pad_to_multiple=pad),
        unembedding=unembedding,
    )


def _llama1(dim: int, num_layers: int, num_heads: int, hidden_dim: int) -> fdl.Partial:
    sizes = {"dim": dim, "num_layers": num_layers, "num_heads": num_heads, "hidden_dim": hidden_dim}
    return llama(vocab_size=32_000, epsilon=1e-6, **sizes)


def llama_7b() -> fdl.Partial[models.Decoder]:
    """Return Llama 1 of 6.7 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> parameters = planner.model_parameters(decoders.llama_7b())
      >>> planner.count_parameters(parameters).total
      6738415616
    """
    return _llama1(4096, 32, 32, 11_008)


def llama_13b() -> fdl.Partial[models.Decoder]:
    """Return Llama 1 of 13.0 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _llama1(5120, 40, 40, 13_824)


def llama_33b() -> fdl.Partial[models.Decoder]:
    """Return Llama 1 of 32.5 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _llama1(6656, 60, 52, 17_920)


def llama_65b() -> fdl.Partial[models.Decoder]:
    """Return Llama 1 of 65.2 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _llama1(8192, 80, 64, 22_016)


def llama2_7b() -> fdl.Partial[models.Decoder]:
    """Return Llama 2 of 6.7 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return llama(vocab_size=32_000, dim=4096, num_layers=32, num_heads=32, hidden_dim=11_008)


def llama2_13b() -> fdl.Partial[models.Decoder]:
    """Return Llama 2 of 13.0 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return llama(vocab_size=32_000, dim=5120, num_layers=40, num_heads=40, hidden_dim=13_824)


def llama2_70b() -> fdl.Partial[models.Decoder]:
    """Return Llama 2 of 69.0 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"num_layers": 80, "num_heads": 64, "num_kv_heads": 8, "hidden_dim": 28_672}
    return llama(vocab_size=32_000, dim=8192, **sizes)


def _llama3(**sizes: Any) -> fdl.Partial:
    return llama(vocab_size=128_256, num_kv_heads=8, rotary_base=500_000.0, **sizes)


def llama3_8b() -> fdl.Partial[models.Decoder]:
    """Return Llama 3 of 8.0 billion parameters, for rows of 8,192 tokens.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _llama3(dim=4096, num_layers=32, num_heads=32, hidden_dim=14_336)


def llama3_70b() -> fdl.Partial[models.Decoder]:
    """Return Llama 3 of 70.6 billion parameters, for rows of 8,192 tokens.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _llama3(dim=8192, num_layers=80, num_heads=64, hidden_dim=28_672)


def llama31_8b() -> fdl.Partial[models.Decoder]:
    """Return Llama 3.1 of 8.0 billion parameters, for rows of 131,072 tokens.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 4096, "num_layers": 32, "num_heads": 32, "hidden_dim": 14_336}
    return _llama3(**sizes, rotary_scaling=_longer(8.0))


def llama31_70b() -> fdl.Partial[models.Decoder]:
    """Return Llama 3.1 of 70.6 billion parameters, for rows of 131,072 tokens.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 8192, "num_layers": 80, "num_heads": 64, "hidden_dim": 28_672}
    return _llama3(**sizes, rotary_scaling=_longer(8.0))


def llama31_405b() -> fdl.Partial[models.Decoder]:
    """Return Llama 3.1 of 405.9 billion parameters, for rows of 131,072 tokens.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 16_384, "num_layers": 126, "num_heads": 128, "hidden_dim": 53_248}
    return _llama3(**sizes, rotary_scaling=_longer(8.0))


def llama32_1b() -> fdl.Partial[models.Decoder]:
    """Return Llama 3.2 of 1.24 billion parameters, tied, for rows of 131,072 tokens.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 2048, "num_layers": 16, "num_heads": 32, "hidden_dim": 8192}
    tied = fdl.Partial(layers.TiedUnembedding)
    return _llama3(**sizes, rotary_scaling=_longer(32.0), unembedding=tied)


def llama32_3b() -> fdl.Partial[models.Decoder]:
    """Return Llama 3.2 of 3.21 billion parameters, tied, for rows of 131,072 tokens.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 3072, "num_layers": 28, "num_heads": 24, "hidden_dim": 8192}
    tied = fdl.Partial(layers.TiedUnembedding)
    return _llama3(**sizes, rotary_scaling=_longer(32.0), unembedding=tied)


def _longer(factor: float) -> fdl.Config[layers.Llama3Scaling]:
    # Trained on rows of 8,192 tokens and extended from there: frequencies that turn less than once
    # within such a row are stretched by the factor, those that turn more than four times are kept.
    return fdl.Config(
        layers.Llama3Scaling,
        factor=factor,
        low_frequency_factor=1.0,
        high_frequency_factor=4.0,
        original_length=8192,
    )
