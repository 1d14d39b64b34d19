"""The config.json of Llama, and of the families that are near to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fiddle as fdl

from luthier import graph as graphs
from luthier import layers, models
from luthier.graph import Graph
from luthier.recipes import decoders
from luthier.recipes.foreign.settings import (
    Settings,
    has_bias,
    is_tied,
    rope_parameters,
    set_attention_dropout,
    value_at,
)


def read_llama(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the Llama that the settings describe."""
    model = decoders.llama(**_sizes(settings, epsilon=1e-6))
    _add_biases(settings, model)
    return _finished(settings, model)


def read_mistral(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the Mistral that the settings describe; without a window it is a Llama."""
    window = settings.raw("sliding_window", 4096)
    sizes = _sizes(settings, epsilon=1e-6)
    if window is None:
        return _finished(settings, decoders.llama(**sizes))
    return _finished(settings, decoders.mistral(window=window, **sizes))


def read_qwen2(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the Qwen 2 that the settings describe."""
    settings.only("use_sliding_window", (False,), False)
    settings.seen("sliding_window", "max_window_layers")  # they count where it is True
    return _finished(settings, decoders.qwen2(**_sizes(settings, epsilon=1e-6)))


def read_qwen3(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the Qwen 3 that the settings describe."""
    settings.only("use_sliding_window", (False,), False)
    settings.seen("sliding_window", "max_window_layers")  # they count where it is True
    model = decoders.qwen3(**_sizes(settings, epsilon=1e-6, head_dim=128))
    _add_biases(settings, model)
    return _finished(settings, model)


def read_mixtral(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the Mixtral that the settings describe."""
    settings.only("sliding_window", (None,), None)
    settings.only("router_jitter_noise", (0.0, None), 0.0)
    model = decoders.mixtral(
        **_sizes(settings, epsilon=1e-5, rotary_base=1e6),
        num_experts=settings.get("num_local_experts", 8),
        k=settings.get("num_experts_per_tok", 2),
    )
    return _finished(settings, model)


def read_qwen3_moe(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the Qwen 3 with experts that the settings describe."""
    settings.only("use_sliding_window", (False,), False)
    settings.seen("sliding_window", "max_window_layers")  # they count where it is True
    settings.only("decoder_sparse_step", (1,), 1)
    settings.only("mlp_only_layers", (None, []), None)
    settings.seen("intermediate_size")  # that of layers without experts
    model = decoders.qwen3(**_sizes(settings, epsilon=1e-6, hidden_dim="moe_intermediate_size"))
    _add_biases(settings, model)
    # `num_experts` on the hub, and the other name in files that transformers 5 writes.
    num_experts = settings.get("num_local_experts", settings.get("num_experts", 128))
    model = decoders.with_experts(
        model,
        num_experts=num_experts,
        k=settings.get("num_experts_per_tok", 8),
    )
    if not settings.get("norm_topk_prob", False):
        model.block.mlp.router.weights = layers.as_scored
    return _finished(settings, model)


def read_olmo2(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the OLMo 2 that the settings describe."""
    model = decoders.olmo2(**_sizes(settings, epsilon=1e-5))
    _add_biases(settings, model)
    return _finished(settings, model)


def write(model: Graph) -> dict[str, Any]:
    """Return the settings that describe a model, as near as they can."""
    # Rotary settings are written by their old and by their new names.
    attention = "block.attention"
    heads, dim = value_at(model, f"{attention}.num_heads"), value_at(model, "dim")
    rotary = rope_parameters(value_at(model, f"{attention}.rotary"))
    scaling = {k: v for k, v in rotary.items() if k != "rope_theta"}
    return {
        "attention_dropout": value_at(model, f"{attention}.core.dropout") or 0.0,
        "attention_bias": has_bias(model, f"{attention}.output"),
        "head_dim": value_at(model, f"{attention}.head_dim") or dim // heads,
        "hidden_act": "silu",
        "hidden_size": dim,
        "intermediate_size": value_at(model, "block.mlp.hidden_dim"),
        "num_attention_heads": heads,
        "num_hidden_layers": value_at(model, "num_layers"),
        "num_key_value_heads": value_at(model, f"{attention}.num_kv_heads") or heads,
        "rms_norm_eps": value_at(model, "norm.epsilon"),
        "rope_parameters": rotary,
        "rope_scaling": scaling if rotary["rope_type"] != "default" else None,
        "rope_theta": rotary.get("rope_theta"),
        "tie_word_embeddings": is_tied(model),
        "vocab_size": value_at(model, "vocab_size"),
    }


def write_llama(model: Graph) -> dict[str, Any]:
    """Return the settings of a Llama."""
    return write(model) | {"mlp_bias": has_bias(model, "block.mlp.up")}


def write_mistral(model: Graph) -> dict[str, Any]:
    """Return the settings of a Mistral."""
    window = value_at(model, "block.attention.core.mask.size")
    return _without(write(model), "attention_bias") | {"sliding_window": window}


def write_qwen2(model: Graph) -> dict[str, Any]:
    """Return the settings of a Qwen 2."""
    return _without(write(model), "attention_bias") | {"use_sliding_window": False}


def write_qwen3(model: Graph) -> dict[str, Any]:
    """Return the settings of a Qwen 3."""
    return write(model) | {"use_sliding_window": False}


def write_mixtral(model: Graph) -> dict[str, Any]:
    """Return the settings of a Mixtral."""
    return _without(write(_with_expert(model)), "attention_bias") | {
        "num_experts_per_tok": value_at(model, "block.mlp.router.k"),
        "num_local_experts": value_at(model, "block.mlp.num_experts"),
        "router_jitter_noise": 0.0,
        "sliding_window": None,
    }


def write_qwen3_moe(model: Graph) -> dict[str, Any]:
    """Return the settings of a Qwen 3 with experts."""
    found = write_qwen3(_with_expert(model))
    weights = value_at(model, "block.mlp.router.weights")
    return found | {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": found["intermediate_size"],
        "norm_topk_prob": weights is not layers.as_scored,
        "num_experts": value_at(model, "block.mlp.num_experts"),
        "num_experts_per_tok": value_at(model, "block.mlp.router.k"),
    }


def _with_expert(model: Graph) -> Graph:
    """Return the model with one of its experts for its feed-forward part."""
    changed = graphs.copy_graph(model)
    changed.block.mlp = changed.block.mlp.expert
    return changed


Write = Callable[[Any], dict[str, Any]]


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _sizes(
    settings: Settings,
    epsilon: float,
    head_dim: int | None = None,
    rotary_base: float = 10_000.0,
    hidden_dim: str = "intermediate_size",
) -> dict[str, Any]:
    # Transformers leaves out of a config.json what equals the default of its class. So defaults
    # here are those of the family's class (`epsilon`, `head_dim`, `rotary_base`), not of our
    # recipe. `hidden_dim` is the key of that size.
    settings.only("hidden_act", ("silu", "swish"), "silu")
    base, scaling = settings.rotary(base=rotary_base)
    tied = settings.get("tie_word_embeddings", False)
    heads = settings.need("num_attention_heads")
    return {
        "vocab_size": settings.need("vocab_size"),
        "dim": settings.need("hidden_size"),
        "num_layers": settings.need("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": settings.get("num_key_value_heads", heads),
        "head_dim": settings.get("head_dim", head_dim),
        "hidden_dim": settings.need(hidden_dim),
        "rotary_base": base,
        "rotary_scaling": scaling,
        "epsilon": settings.get("rms_norm_eps", epsilon),
        "stddev": settings.get("initializer_range", 0.02),
        "unembedding": fdl.Partial(layers.TiedUnembedding) if tied else None,
    }


def _finished(settings: Settings, model: Graph) -> Any:
    set_attention_dropout(settings, model)
    return model


def _add_biases(settings: Settings, model: Graph) -> None:
    """Add the biases of the settings to the linear maps."""
    bias = fdl.Config(layers.Zeros)
    kernel = model.block.attention.projection.kernel
    biased = fdl.Partial(layers.Linear, kernel=kernel, bias=bias)
    if settings.get("attention_bias", False):
        model.block.attention.projection = model.block.attention.output = biased
    if settings.get("mlp_bias", False):
        model.block.mlp.gate = model.block.mlp.up = model.block.mlp.down = biased
