"""Mixtral and Qwen 3 MoE: decoders whose files have a tensor for each expert."""

from __future__ import annotations

from luthier.checkpoint.foreign.families import llama
from luthier.checkpoint.foreign.family import EXPERT, Family, Tensor, tensor

_OURS = f"{llama.OURS}.mlp"


def _mixture(there: str, gate: str, up: str, down: str) -> tuple[Tensor, ...]:
    """Return router and experts of a layer.

    Args:
      there: The name of the feed-forward part in the layer.
      gate: The name of an expert's gate there.
      up: That of its map into the hidden size.
      down: That of its map back.
    """
    at = f"{llama.LAYER}.{there}"
    router = f"{_OURS}.router.logits.projection.kernel"
    found = [tensor(f"{at}.gate.weight", router, "experts embed -> embed experts")]
    for theirs, ours in ((gate, "gate"), (up, "up"), (down, "down")):
        layout = "embed mlp -> mlp embed" if ours == "down" else "mlp embed -> embed mlp"
        own = f"{_OURS}.experts.{EXPERT}.{ours}.kernel"
        found.append(tensor(f"{at}.experts.{EXPERT}.{theirs}.weight", own, layout))
    return tuple(found)


_COMMON = (
    *llama.ends(),
    *llama.norms(input="attention_norm", post_attention="mlp_norm"),
    *llama.attention(),
)

MIXTRAL = Family(
    name="mixtral",
    model_types=("mixtral",),
    architecture="MixtralForCausalLM",
    prefix="model.",
    ignored=llama.BUFFERS,
    tensors=(*_COMMON, *_mixture("block_sparse_moe", gate="w1", up="w3", down="w2")),
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    architecture="Qwen3MoeForCausalLM",
    prefix="model.",
    ignored=llama.BUFFERS,
    tensors=(
        *_COMMON,
        *llama.query_key_norms(),
        *_mixture("mlp", gate="gate_proj", up="up_proj", down="down_proj"),
    ),
)
