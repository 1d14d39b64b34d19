"""Decoders of every family in sizes of one's choice, as graphs."""

import fiddle as fdl
import pytest

from luthier import layers
from luthier.recipes import decoders


def _tied(tied):
    return fdl.Partial(layers.TiedUnembedding) if tied else None


def _llama_like(recipe, **more):
    def make(vocab_size, width, depth, tied, pad):
        return recipe(
            vocab_size=vocab_size,
            dim=4 * width,
            num_layers=depth,
            num_heads=4,
            num_kv_heads=2,
            hidden_dim=3 * width,
            pad_to_multiple=pad,
            unembedding=_tied(tied),
            **more,
        )

    return make


def _gemma_like(recipe, **more):
    def make(vocab_size, width, depth, tied, pad):
        return recipe(
            vocab_size=vocab_size,
            dim=4 * width,
            num_layers=depth,
            num_heads=4,
            num_kv_heads=1,
            head_dim=2 * width,
            hidden_dim=3 * width,
            pad_to_multiple=pad,
            **more,
        )

    return make


def _qwen3_moe(**sizes):
    dense = _llama_like(decoders.qwen3, head_dim=6)(**sizes)
    return decoders.with_experts(dense, num_experts=3, k=2)


def _gpt2(vocab_size, width, depth, tied, pad):
    return decoders.gpt2(
        vocab_size=vocab_size,
        max_length=12,
        dim=4 * width,
        num_layers=depth,
        num_heads=2,
        pad_to_multiple=pad,
    )


FAMILIES = {
    "gpt2": _gpt2,
    "llama": _llama_like(decoders.llama),
    "mistral": _llama_like(decoders.mistral, window=5),
    "mixtral": _llama_like(decoders.mixtral, num_experts=3),
    "qwen2": _llama_like(decoders.qwen2),
    "qwen3": _llama_like(decoders.qwen3, head_dim=6),
    "qwen3_moe": _qwen3_moe,
    "olmo2": _llama_like(decoders.olmo2),
    "gemma": _gemma_like(decoders.gemma),
    "gemma2": _gemma_like(decoders.gemma2, window=5),
    "gemma3": _gemma_like(decoders.gemma3, window=5, locals_per_global=2),
}


@pytest.fixture(scope="session")
def families():
    """Makers of graphs by family: of (vocab_size, width, depth, tied, pad)."""
    return FAMILIES


@pytest.fixture(params=sorted(FAMILIES))
def family(request):
    return request.param
