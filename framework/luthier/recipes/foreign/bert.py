"""The config.json of BERT and ALBERT."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import graph as graphs
from luthier import models
from luthier.graph import Graph
from luthier.recipes import encoders
from luthier.recipes.foreign.settings import Settings, activation_name, value_at


def read_bert(settings: Settings) -> fdl.Partial[models.Encoder]:
    """Return the BERT that the settings describe, with its pooler."""
    model = encoders.bert(**_sizes(settings, dropout=0.1))
    return _finished(settings, model, activation="gelu")


def read_albert(settings: Settings) -> fdl.Partial[models.Encoder]:
    """Return the ALBERT that the settings describe, with its pooler."""
    settings.only("inner_group_num", (1,), 1)
    model = encoders.albert(
        **_sizes(settings, dropout=0.0),
        embed_dim=settings.get("embedding_size", 128),
        num_groups=settings.get("num_hidden_groups", 1),
    )
    return _finished(settings, model, activation="gelu_new")


def write_bert(model: Graph) -> dict[str, Any]:
    """Return the settings that describe a BERT, as near as they can."""
    return _written(model, "embedding") | {"is_decoder": False, "add_cross_attention": False}


def write_albert(model: Graph) -> dict[str, Any]:
    """Return the settings that describe an ALBERT, as near as they can."""
    return _written(model, "embedding.embedding") | {
        "embedding_size": value_at(model, "embedding.embed_dim"),
        "inner_group_num": 1,
        "num_hidden_groups": value_at(model, "stack.num_groups"),
    }


def _sizes(settings: Settings, dropout: float) -> dict[str, Any]:
    settings.only("position_embedding_type", ("absolute", None), "absolute")
    settings.only("is_decoder", (False,), False)
    settings.only("add_cross_attention", (False,), False)
    settings.only("tie_word_embeddings", (True,), True)
    return {
        "vocab_size": settings.need("vocab_size"),
        "dim": settings.need("hidden_size"),
        "num_layers": settings.need("num_hidden_layers"),
        "num_heads": settings.need("num_attention_heads"),
        "hidden_dim": settings.need("intermediate_size"),
        "max_length": settings.get("max_position_embeddings", 512),
        "num_types": settings.get("type_vocab_size", 2),
        "dropout": settings.get("hidden_dropout_prob", dropout),
    }


def _finished(settings: Settings, model: Graph, activation: str) -> Any:
    """Set what the recipes leave at the values of the papers; norms and kernels are shared."""
    chosen = settings.activation("hidden_act", activation)
    model.block.mlp.activation = model.head.activation = chosen
    model.block.norm.epsilon = settings.get("layer_norm_eps", 1e-12)
    model.pooler.transform.kernel.stddev = settings.get("initializer_range", 0.02)
    rate = settings.get("attention_probs_dropout_prob")
    if rate is not None and rate != graphs.evaluate(model.block.dropout.rate):
        model.block.attention.core.dropout = rate
    return model


def _written(model: Graph, embedding: str) -> dict[str, Any]:
    return {
        "attention_probs_dropout_prob": value_at(model, "block.attention.core.dropout") or 0.0,
        "hidden_act": activation_name(value_at(model, "block.mlp.activation")),
        "hidden_dropout_prob": value_at(model, "block.dropout.rate", 0.0),
        "hidden_size": value_at(model, "dim"),
        "initializer_range": value_at(model, f"{embedding}.types.stddev", 0.02),
        "intermediate_size": value_at(model, "block.mlp.hidden_dim"),
        "layer_norm_eps": value_at(model, "block.norm.epsilon"),
        "max_position_embeddings": value_at(model, f"{embedding}.tokens.position.max_length"),
        "num_attention_heads": value_at(model, "block.attention.num_heads"),
        "num_hidden_layers": value_at(model, "num_layers"),
        "tie_word_embeddings": True,
        "type_vocab_size": value_at(model, f"{embedding}.num_types"),
        "vocab_size": value_at(model, "vocab_size"),
    }
