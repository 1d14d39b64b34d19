"""The config.json of ViT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from luthier import models
from luthier.graph import Graph
from luthier.recipes import encoders
from luthier.recipes.foreign.settings import Settings, activation_name, value_at


def read(settings: Settings) -> fdl.Partial[models.VisionTransformer]:
    """Return the model that the settings describe; `id2label` has the number of classes."""
    # Defaults are those of Transformers, which leaves them out of a config.json: two classes, and
    # an epsilon of 1e-12.
    settings.only("qkv_bias", (True,), True)
    model = encoders.vit(
        dim=settings.need("hidden_size"),
        num_layers=settings.need("num_hidden_layers"),
        num_heads=settings.need("num_attention_heads"),
        hidden_dim=settings.need("intermediate_size"),
        image_size=_pair(settings.get("image_size", 224)),
        patch_size=_pair(settings.get("patch_size", 16)),
        num_channels=settings.get("num_channels", 3),
        num_classes=len(settings.get("id2label", (0, 1))),
        dropout=settings.get("hidden_dropout_prob", 0.0),
    )
    model.block.mlp.activation = settings.activation("hidden_act", "gelu")
    model.block.norm.epsilon = settings.get("layer_norm_eps", 1e-12)
    rate = settings.get("attention_probs_dropout_prob", 0.0)
    if rate:
        model.block.attention.core.dropout = rate
    return model


def write(model: Graph) -> dict[str, Any]:
    """Return the settings that describe a model, as near as they can."""
    # Transformers counts classes by the labels, so there must be as many, whatever their names.
    labels = [f"LABEL_{index}" for index in range(value_at(model, "num_classes"))]
    return {
        "attention_probs_dropout_prob": value_at(model, "block.attention.core.dropout") or 0.0,
        "hidden_act": activation_name(value_at(model, "block.mlp.activation")),
        "hidden_dropout_prob": value_at(model, "block.dropout.rate", 0.0),
        "hidden_size": value_at(model, "dim"),
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "image_size": _size(value_at(model, "embedding.image_size")),
        "intermediate_size": value_at(model, "block.mlp.hidden_dim"),
        "label2id": {label: index for index, label in enumerate(labels)},
        "layer_norm_eps": value_at(model, "norm.epsilon"),
        "num_attention_heads": value_at(model, "block.attention.num_heads"),
        "num_channels": value_at(model, "embedding.num_channels"),
        "num_hidden_layers": value_at(model, "num_layers"),
        "patch_size": _size(value_at(model, "embedding.patch_size")),
        "qkv_bias": True,
    }


def _pair(size: int | Sequence[int]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _size(size: Sequence[int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
