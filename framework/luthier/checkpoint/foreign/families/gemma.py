"""Gemma 1 to 3. Scales of norms are kept as their difference from one, there and here."""

from __future__ import annotations

from luthier.checkpoint.foreign.families import llama
from luthier.checkpoint.foreign.family import Family

# "post_attention_layernorm" is another norm here than in Llama: the one after the residual branch.
# In Gemma 1, as in Llama, it is the one before the feed-forward part.
_SANDWICH = llama.norms(
    input="attention_norm",
    post_attention="attention_post_norm",
    pre_feedforward="mlp_norm",
    post_feedforward="mlp_post_norm",
)

GEMMA = Family(
    name="gemma",
    model_types=("gemma",),
    architecture="GemmaForCausalLM",
    is_tied=True,
    prefix="model.",
    ignored=llama.BUFFERS,
    tensors=(
        *llama.ends(),
        *llama.norms(input="attention_norm", post_attention="mlp_norm"),
        *llama.attention(),
        *llama.gated_mlp(),
    ),
)

GEMMA2 = Family(
    name="gemma2",
    model_types=("gemma2",),
    architecture="Gemma2ForCausalLM",
    is_tied=True,
    prefix="model.",
    ignored=llama.BUFFERS,
    tensors=(*llama.ends(), *_SANDWICH, *llama.attention(), *llama.gated_mlp()),
)

GEMMA3 = Family(
    name="gemma3",
    # From 4B on, the published files also see images; of those the decoder alone is read.
    model_types=("gemma3_text", "gemma3"),
    architecture="Gemma3ForCausalLM",
    is_tied=True,
    prefix="model.",
    # The first is that of the files on the hub, the second that of transformers since 4.52.
    prefixes=(("", "language_model."), ("model.", "model.language_model.")),
    ignored=(*llama.BUFFERS, r"^(model\.)?(vision_tower|multi_modal_projector)\."),
    tensors=(
        *llama.ends(),
        *_SANDWICH,
        *llama.attention(),
        *llama.query_key_norms(),
        *llama.gated_mlp(),
    ),
)
