"""The config.json of Gemma 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from luthier import graph as graphs
from luthier import models
from luthier.graph import Graph
from luthier.recipes import decoders
from luthier.recipes.foreign import llama
from luthier.recipes.foreign.settings import (
    Settings,
    rope_parameters,
    set_attention_dropout,
    value_at,
)

_ACTIVATION = "gelu_pytorch_tanh"
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
# Defaults of Gemma 3's class. The published files of 4B and more leave out what equals them.
_GEMMA3 = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 9216,
}


def read_gemma(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the Gemma 1 that the settings describe."""
    base, scaling = settings.rotary()
    model = decoders.gemma(rotary_base=base, **_sizes(settings))
    model.block.attention.rotary.scaling = scaling
    set_attention_dropout(settings, model)
    return model


def read_gemma2(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the Gemma 2 that the settings describe."""
    base, scaling = settings.rotary()
    _check_kinds(settings, period=2)
    model = decoders.gemma2(
        window=settings.need("sliding_window"),
        query_scalar=settings.get("query_pre_attn_scalar", 256),
        attention_cap=settings.raw("attn_logit_softcapping", 50.0),
        logits_cap=settings.raw("final_logit_softcapping", 30.0),
        rotary_base=base,
        **_sizes(settings),
    )
    for block in model.block:
        block.attention.rotary.scaling = scaling
    set_attention_dropout(settings, model)
    return model


def read_gemma3(settings: Settings) -> fdl.Partial[models.Decoder]:
    """Return the language model of the Gemma 3 that the settings describe."""
    settings.only("attn_logit_softcapping", (None,), None)
    settings.only("final_logit_softcapping", (None,), None)
    settings.only("use_bidirectional_attention", (False,), False)
    # Local and global layers have rotations of their own; only the global one is an argument of the
    # recipe with its scaling, so that of the local ones is set afterwards.
    near, near_scaling = settings.rotary(_LOCAL, 10_000.0)
    far, far_scaling = settings.rotary(_GLOBAL, 1_000_000.0)
    period = _period(settings)
    _check_kinds(settings, period)
    model = decoders.gemma3(
        window=settings.need("sliding_window", 4096),
        locals_per_global=period - 1,
        query_scalar=settings.get("query_pre_attn_scalar", 256),
        local_rotary_base=near,
        global_rotary_base=far,
        global_rotary_scaling=far_scaling,
        **_sizes(settings, _GEMMA3),
    )
    model.block[0].attention.rotary.scaling = near_scaling if period > 1 else far_scaling
    set_attention_dropout(settings, model)
    return model


def write_gemma(model: Graph) -> dict[str, Any]:
    """Return the settings of a Gemma 1."""
    found = llama.write(model)
    return found | {"hidden_act": _ACTIVATION, "hidden_activation": _ACTIVATION}


def write_gemma2(model: Graph) -> dict[str, Any]:
    """Return the settings of a Gemma 2."""
    first = _with_block(model, 0)
    return _common(model, first) | {
        "attn_logit_softcapping": value_at(first, "block.attention.core.cap"),
        "final_logit_softcapping": value_at(model, "unembedding.cap"),
    }


def write_gemma3(model: Graph) -> dict[str, Any]:
    """Return the settings of a Gemma 3."""
    blocks = _blocks(model)
    last = _with_block(model, len(blocks) - 1)
    found = _common(model, last)
    near = rope_parameters(value_at(_with_block(model, 0), "block.attention.rotary"))
    far = rope_parameters(value_at(last, "block.attention.rotary"))
    return found | {
        "rope_local_base_freq": near.get("rope_theta"),
        "rope_parameters": {_LOCAL: near, _GLOBAL: far},
        "sliding_window_pattern": len(blocks),
    }


def _common(model: Graph, like: Graph) -> dict[str, Any]:
    """Return the common settings of Gemma 2 and 3; `like` has one of the model's blocks for all."""
    # `write_gemma` expects one block, so it is applied to `like`. The scalar of the queries is the
    # inverse square of the scale, rounded where that only undoes the root.
    blocks = _blocks(model)
    sizes = [value_at(block, "attention.core.mask.size") for block in blocks]
    layers = value_at(model, "num_layers")
    kinds = [_GLOBAL if size is None else _LOCAL for size in sizes]
    scale = value_at(like, "block.attention.core.scale")
    head_dim = value_at(like, "block.attention.head_dim")
    windows = [size for size in sizes if size is not None]
    scalar = head_dim if scale is None else scale**-2
    return write_gemma(like) | {
        "layer_types": [kinds[layer % len(kinds)] for layer in range(layers)],
        "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-6 else scalar,
        "sliding_window": windows[0] if windows else None,
    }


def _sizes(settings: Settings, defaults: Mapping[str, int] = {}) -> dict[str, Any]:
    activation = settings.get("hidden_activation", _ACTIVATION)
    if activation != _ACTIVATION:
        remedy = f"supported: {_ACTIVATION!r}"
        what = f"config.json sets hidden_activation to {activation!r}"
        settings.refuse("hidden_activation", what, remedy)
    # The first files have `gelu` and mean its approximation by a tanh.
    settings.only("hidden_act", (None, _ACTIVATION, "gelu_new", "gelu"), None)
    settings.only("attention_bias", (False,), False)
    settings.only("tie_word_embeddings", (True,), True)

    def need(name: str) -> Any:
        return settings.need(name, defaults.get(name))

    return {
        "vocab_size": need("vocab_size"),
        "dim": need("hidden_size"),
        "num_layers": need("num_hidden_layers"),
        "num_heads": need("num_attention_heads"),
        "num_kv_heads": need("num_key_value_heads"),
        "head_dim": settings.get("head_dim", 256),
        "hidden_dim": need("intermediate_size"),
        "epsilon": settings.get("rms_norm_eps", 1e-6),
        "stddev": settings.get("initializer_range", 0.02),
    }


def _period(settings: Settings) -> int:
    """Return the number of layers after which the kinds repeat."""
    kinds = settings.get("layer_types")
    settings.seen("sliding_window_pattern", "_sliding_window_pattern")  # layer_types wins
    if kinds and _GLOBAL in kinds:
        return kinds.index(_GLOBAL) + 1
    if kinds:
        return len(kinds) + 1
    return settings.get("sliding_window_pattern", settings.get("_sliding_window_pattern", 6))


def _check_kinds(settings: Settings, period: int) -> None:
    """Add a problem if local and global layers do not alternate as in the family."""
    kinds = settings.get("layer_types")
    if not kinds:
        return
    num_layers = settings.need("num_hidden_layers", len(kinds))
    wanted = [_GLOBAL if layer % period == period - 1 else _LOCAL for layer in range(num_layers)]
    if list(kinds) != wanted:
        what = f"config.json has layer_types that do not repeat every {period} layers"
        settings.refuse("layer_types", what, "build the model's graph by hand")


def _blocks(model: Graph) -> list[Any]:
    block = graphs.get(model, "block")
    return list(block) if isinstance(block, list | tuple) else [block]


def _with_block(model: Graph, index: int) -> Any:
    """Return the model with one of its blocks for all layers."""
    changed = graphs.copy_graph(model)
    changed.block = _blocks(changed)[index]
    return changed
