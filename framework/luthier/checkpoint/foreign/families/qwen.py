"""Qwen 2 (biases on queries, keys and values) and Qwen 3 (norms on queries and keys)."""

from __future__ import annotations

from luthier.checkpoint.foreign.families import llama
from luthier.checkpoint.foreign.family import Family

_TENSORS = (
    *llama.ends(),
    *llama.norms(input="attention_norm", post_attention="mlp_norm"),
    *llama.attention(),
    *llama.gated_mlp(),
)

QWEN2 = Family(
    name="qwen2",
    model_types=("qwen2",),
    architecture="Qwen2ForCausalLM",
    prefix="model.",
    ignored=llama.BUFFERS,
    tensors=_TENSORS,
)

QWEN3 = Family(
    name="qwen3",
    model_types=("qwen3",),
    architecture="Qwen3ForCausalLM",
    prefix="model.",
    ignored=llama.BUFFERS,
    tensors=(*_TENSORS, *llama.query_key_norms()),
)
