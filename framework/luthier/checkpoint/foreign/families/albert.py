"""ALBERT: its layers are groups of shared parameters."""

from __future__ import annotations

from luthier.checkpoint.foreign.families import bert
from luthier.checkpoint.foreign.family import Family

# `{layer}` is the number of a group: all layers of a group have the same parameters, which the
# files hold once, and so does our stack.
_GROUP = "albert.encoder.albert_layer_groups.{layer}.albert_layers.0"
_SELF = f"{_GROUP}.attention"
_OURS = "blocks.{layer}.groups"

ALBERT = Family(
    name="albert",
    model_types=("albert",),
    architecture="AlbertForMaskedLM",
    is_tied=True,
    prefix="albert.",
    # Numbers that are computed, and heads of other tasks: sentence order, classification, answers
    # in a text.
    ignored=(r"\.position_ids$", r"^position_ids$", r"^(sop_classifier|classifier|qa_outputs)\."),
    tensors=(
        *bert.embeddings("albert.embeddings", "embedding.embedding"),
        *bert.dense("albert.encoder.embedding_hidden_mapping_in", "embedding.projection"),
        *bert.attention(
            f"{_SELF}.query",
            f"{_SELF}.key",
            f"{_SELF}.value",
            f"{_SELF}.dense",
            f"{_OURS}.attention",
        ),
        *bert.norm(f"{_SELF}.LayerNorm", f"{_OURS}.attention_norm"),
        *bert.dense(f"{_GROUP}.ffn", f"{_OURS}.mlp.up"),
        *bert.dense(f"{_GROUP}.ffn_output", f"{_OURS}.mlp.down"),
        *bert.norm(f"{_GROUP}.full_layer_layer_norm", f"{_OURS}.mlp_norm"),
        *bert.dense("albert.pooler", "pooler.transform"),
        *bert.dense("predictions.dense", "head.transform"),
        *bert.norm("predictions.LayerNorm", "head.norm"),
        bert.tensor("predictions.bias", "head.bias", "vocab"),
        bert.copy("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"),
        bert.copy("predictions.decoder.bias", "predictions.bias"),
    ),
)
