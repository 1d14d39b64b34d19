"""OLMo 2: norms after each part instead of before it, and on all queries or keys together."""

from __future__ import annotations

from luthier.checkpoint.foreign.families import llama
from luthier.checkpoint.foreign.family import Family

OLMO2 = Family(
    name="olmo2",
    model_types=("olmo2",),
    architecture="Olmo2ForCausalLM",
    prefix="model.",
    ignored=llama.BUFFERS,
    tensors=(
        *llama.ends(),
        # The norms stand behind the parts, and there is no `input_layernorm`; ours has the same
        # names in both arrangements.
        *llama.norms(post_attention="attention_norm", post_feedforward="mlp_norm"),
        *llama.attention(),
        *llama.query_key_norms(),
        *llama.gated_mlp(),
    ),
)
