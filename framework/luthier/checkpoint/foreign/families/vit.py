"""ViT: vision transformers that classify images."""

from __future__ import annotations

from luthier.checkpoint.foreign.families import bert
from luthier.checkpoint.foreign.family import Family, tensor

_LAYER = "vit.encoder.layer.{layer}"
_SELF = f"{_LAYER}.attention.attention"
_OURS = "blocks.{layer}"
_PATCHES = "vit.embeddings.patch_embeddings.projection"

VIT = Family(
    name="vit",
    model_types=("vit",),
    architecture="ViTForImageClassification",
    prefix="vit.",
    # A pooler that classifiers leave out.
    ignored=(r"^vit\.pooler\.", r"^pooler\."),
    tensors=(
        tensor("vit.embeddings.cls_token", "pooling.token", "1 1 embed -> embed"),
        tensor(
            "vit.embeddings.position_embeddings",
            "embedding.positions",
            "1 length embed -> length embed",
        ),
        tensor(
            f"{_PATCHES}.weight",
            "embedding.kernel",
            "embed channels height width -> height width channels embed",
        ),
        tensor(f"{_PATCHES}.bias", "embedding.bias", "embed"),
        *bert.norm(f"{_LAYER}.layernorm_before", f"{_OURS}.attention_norm"),
        *bert.attention(
            f"{_SELF}.query",
            f"{_SELF}.key",
            f"{_SELF}.value",
            f"{_LAYER}.attention.output.dense",
            f"{_OURS}.attention",
        ),
        *bert.norm(f"{_LAYER}.layernorm_after", f"{_OURS}.mlp_norm"),
        *bert.dense(f"{_LAYER}.intermediate.dense", f"{_OURS}.mlp.up"),
        *bert.dense(f"{_LAYER}.output.dense", f"{_OURS}.mlp.down"),
        *bert.norm("vit.layernorm", "norm"),
        *bert.dense("classifier", "head"),
    ),
)
