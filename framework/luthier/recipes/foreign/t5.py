"""The config.json of T5, of its first version and of version 1.1."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax

from luthier import models
from luthier.graph import Graph
from luthier.recipes import encoders
from luthier.recipes.foreign.settings import Settings, activation_name, value_at

_GATED = "gated-"


def read_t5(settings: Settings) -> fdl.Partial[models.EncoderDecoder]:
    """Return the T5 of the first version that the settings describe."""
    settings.only("tie_word_embeddings", (True,), True)
    settings.only("scale_decoder_outputs", (True,), True)
    model = encoders.t5(**_sizes(settings))
    return _finished(settings, model, settings.get("feed_forward_proj", "relu"))


def read_t5_gated(settings: Settings) -> fdl.Partial[models.EncoderDecoder]:
    """Return the T5 of version 1.1 that the settings describe."""
    # Since version 5, transformers writes that the head is tied whatever it is. Where it really is,
    # the output is scaled (`scale_decoder_outputs`); where it is not, the head has a tensor.
    if settings.get("scale_decoder_outputs", True):
        settings.only("tie_word_embeddings", (False,), True)
    else:
        settings.seen("tie_word_embeddings")
    model = encoders.t5_gated(**_sizes(settings))
    name = settings.get("feed_forward_proj", f"{_GATED}gelu").removeprefix(_GATED)
    # `gated-gelu` has always meant the approximation by a tanh.
    return _finished(settings, model, "gelu_new" if name == "gelu" else name)


def write_t5(model: Graph) -> dict[str, Any]:
    """Return the settings that describe a T5 of the first version, as near as they can."""
    name = activation_name(value_at(model, "encoder.block.mlp.activation"))
    return _written(model) | {
        "feed_forward_proj": name,
        "scale_decoder_outputs": True,
        "tie_word_embeddings": True,
    }


def write_t5_gated(model: Graph) -> dict[str, Any]:
    """Return the settings that describe a T5 of version 1.1, as near as they can."""
    activation = value_at(model, "encoder.block.mlp.activation")
    name = "gelu" if activation is jax.nn.gelu else activation_name(activation)
    return _written(model) | {
        "feed_forward_proj": f"{_GATED}{name}",
        "scale_decoder_outputs": False,
        "tie_word_embeddings": False,
    }


def _sizes(settings: Settings) -> dict[str, Any]:
    layers = settings.need("num_layers")
    settings.seen(
        "is_gated_act", "dense_act_fn"
    )  # Transformers derives them from feed_forward_proj
    return {
        "vocab_size": settings.need("vocab_size"),
        "dim": settings.need("d_model"),
        "num_layers": layers,
        "num_decoder_layers": settings.get("num_decoder_layers", layers),
        "num_heads": settings.need("num_heads"),
        "head_dim": settings.need("d_kv"),
        "hidden_dim": settings.need("d_ff"),
        "num_buckets": settings.get("relative_attention_num_buckets", 32),
        "max_distance": settings.get("relative_attention_max_distance", 128),
        "dropout": settings.get("dropout_rate", 0.1),
    }


def _finished(settings: Settings, model: Graph, activation: str) -> Any:
    for part in (model.encoder, model.decoder):
        part.block.mlp.activation = settings.activation_called(activation, "feed_forward_proj")
        part.block.norm.epsilon = settings.get("layer_norm_epsilon", 1e-6)
    return model


def _written(model: Graph) -> dict[str, Any]:
    encoder = "encoder.block.attention"
    return {
        "d_ff": value_at(model, "encoder.block.mlp.hidden_dim"),
        "d_kv": value_at(model, f"{encoder}.head_dim"),
        "d_model": value_at(model, "dim"),
        "decoder_start_token_id": 0,
        "dropout_rate": value_at(model, "encoder.dropout.rate", 0.0),
        "is_encoder_decoder": True,
        "layer_norm_epsilon": value_at(model, "encoder.norm.epsilon"),
        "num_decoder_layers": value_at(model, "decoder.num_layers"),
        "num_heads": value_at(model, f"{encoder}.num_heads"),
        "num_layers": value_at(model, "encoder.num_layers"),
        "relative_attention_max_distance": value_at(model, "encoder.bias.buckets.max_distance"),
        "relative_attention_num_buckets": value_at(model, "encoder.bias.buckets.num_buckets"),
        "vocab_size": value_at(model, "vocab_size"),
    }
