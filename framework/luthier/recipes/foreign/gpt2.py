"""GPT-2's config.json."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import layers, models
from luthier.graph import Graph
from luthier.recipes.decoders.gpt2 import gpt2
from luthier.recipes.foreign.settings import Settings, value_at


def read(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the model that the settings describe."""
    settings.only("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    settings.only("scale_attn_weights", (True,), True)
    settings.only("scale_attn_by_inverse_layer_idx", (False,), False)
    settings.only("add_cross_attention", (False,), False)
    settings.only("tie_word_embeddings", (True,), True)
    rate = settings.get("resid_pdrop", 0.1)
    model = gpt2(
        vocab_size=settings.need("vocab_size"),
        max_length=settings.need("n_positions"),
        dim=settings.need("n_embd"),
        num_layers=settings.need("n_layer"),
        num_heads=settings.need("n_head"),
        hidden_dim=settings.get("n_inner"),
        dropout_rate=rate,
        stddev=settings.get("initializer_range", 0.02),
        epsilon=settings.get("layer_norm_epsilon", 1e-5),
    )
    # Dropouts share one rate; one with a rate of its own no longer follows the shared value.
    if (own := settings.get("attn_pdrop", 0.1)) != rate:
        model.block.attention.core.dropout = own
    if (own := settings.get("embd_pdrop", 0.1)) != rate:
        model.embedding.dropout = fdl.Partial(layers.Dropout, rate=own)
    return model


def write(model: Graph) -> dict[str, Any]:
    """Return the settings that describe a model, as near as they can."""
    rate = value_at(model, "block.dropout.rate", 0.0)
    return {
        "activation_function": "gelu_new",
        "attn_pdrop": value_at(model, "block.attention.core.dropout") or 0.0,
        "embd_pdrop": value_at(model, "embedding.dropout.rate", 0.0),
        "layer_norm_epsilon": value_at(model, "norm.epsilon"),
        "n_embd": value_at(model, "dim"),
        "n_head": value_at(model, "block.attention.num_heads"),
        "n_inner": value_at(model, "block.mlp.hidden_dim"),
        "n_layer": value_at(model, "num_layers"),
        "n_positions": value_at(model, "embedding.position.max_length"),
        "resid_pdrop": rate,
        "vocab_size": value_at(model, "vocab_size"),
    }
