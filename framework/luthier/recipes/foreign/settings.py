"""Settings of a config.json: collects those that are missing or not supported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import fiddle as fdl
import jax

from luthier import graph as graphs
from luthier import layers
from luthier.errors import BadInput, Problem
from luthier.graph import Graph

_ACTIVATIONS: Mapping[str, Any] = {
    "gelu": fdl.Partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jax.numpy.tanh,
}


# Keys that do not affect the function of a model: initialization, storage, tokens, sampling.
_ASIDE = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "architectures",
        "auto_map",
        "cache_implementation",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "classifier_dropout_prob",
        "decoder_start_token_id",
        "dtype",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "initializer_factor",
        "initializer_range",
        "is_encoder_decoder",
        "keys_to_ignore_at_inference",
        "label2id",
        "max_position_embeddings",
        "max_window_layers",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "use_cache",
        "vocab_size",
    }
)
# Parts of names that suggest another forward pass, and the values that leave it unchanged. A key
# that is unknown here may matter: if its name looks as if it does, it is rejected unless its value
# is neutral.
_CHANGING = re.compile(
    r"quantiz|compression_config|(^|_)p?drop(out)?(_|$)|sliding|window|rope|rotary|scal|softcap|"
    r"multiplier|logit|alibi|qk_norm|clip_qkv|parallel|expert|bias|hidden_act|activation|"
    r"layer_types|norm|causal|is_decoder|cross_attention|embedding_type"
)
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 0.0, {}, [], "")


class Settings:
    """The content of a config.json, with its problems and the keys that were read.

    Args:
      content: Its content.
    """

    def __init__(self, content: Mapping[str, Any]):
        self.content = content
        self.refused: list[tuple[str, Problem]] = []
        self._read: set[str] = set()

    @property
    def problems(self) -> list[Problem]:
        """All problems so far."""
        return [problem for _, problem in self.refused]

    @property
    def unread(self) -> list[str]:
        """The keys that nothing has read, except for those that do not affect the function."""
        return sorted(
            name
            for name in set(self.content) - self._read - _ASIDE
            if not name.endswith(("_token_id", "_token_index"))
        )

    def refuse(self, name: str, what: str, remedy: str) -> None:
        """Add a problem with a key."""
        self.refused.append((name, Problem(what, remedy=remedy)))

    def refuse_unread(self) -> None:
        """Add a problem for each unread key that may change the forward pass."""
        for name in self.unread:
            value = self.content[name]
            plain = isinstance(value, list) and set(map(str, value)) == {"full_attention"}
            unit = value == 1.0 and name.endswith(("multiplier", "factor", "scale", "scaling"))
            if _CHANGING.search(name) and value not in _NEUTRAL and not plain and not unit:
                what = f"config.json sets {name} to {_short(value)}"
                self.refuse(name, what, "no model of this family here computes with it")

    def raw(self, name: str, default: Any = None) -> Any:
        """Return a setting that may be missing; null is a value of its own."""
        self._read.add(name)
        return self.content.get(name, default)

    def seen(self, *names: str) -> None:
        """Mark keys as read: they have no effect beside others."""
        self._read.update(names)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting that may be missing or null."""
        value = self.raw(name)
        return default if value is None else value

    def need(self, name: str, default: int | None = None) -> Any:
        """Return a number; if there is none, and no default, add a problem and return 1."""
        # A stand-in lets reading continue, so that all problems of a file come at once.
        value = self.raw(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            what = f"config.json has no {name}" if value is None else f"{name} is {value!r}"
            self.refuse(name, what, "it must be a number")
            return 1
        return value

    def only(self, name: str, allowed: tuple[Any, ...], default: Any) -> None:
        """Add a problem if a setting has a value that our models do not support."""
        value = self.raw(name, default)
        if value not in allowed:
            choices = " or ".join(repr(one) for one in allowed)
            self.refuse(name, f"config.json sets {name} to {value!r}", f"supported: {choices}")

    def activation(self, name: str, default: str) -> Any:
        """Return the nonlinearity that a setting names.

        Args:
          name: The setting.
          default: Its default.
        """
        return self.activation_called(self.get(name, default), name)

    def activation_called(self, activation: Any, name: str) -> Any:
        """Return the nonlinearity called `activation`, which the setting `name` is about."""
        if activation not in _ACTIVATIONS:
            what = f"config.json sets {name} to {activation!r}"
            self.refuse(name, what, f"supported: {', '.join(_ACTIVATIONS)}")
            return jax.nn.gelu
        found = _ACTIVATIONS[activation]
        return graphs.copy_graph(found) if isinstance(found, fdl.Buildable) else found

    def rotary(self, which: str = "", base: float = 10_000.0) -> tuple[float, fdl.Config | None]:
        """Return base and scaling of rotary positions, from new and from old names.

        Args:
          which: The kind of layer, where kinds have their own (`full_attention`).
          base: Default of the base.
        """
        # New names: `rope_parameters`, possibly by kind of layer. Old ones: `rope_theta` and
        # `rope_scaling`, and `rope_local_base_freq` for local layers. A file may have both, which
        # must then agree.
        found = self.get("rope_parameters", {})
        is_local = which == "sliding_attention"
        old = "rope_local_base_freq" if is_local else "rope_theta"
        theta = self.get(old)
        scaling = {} if is_local else self.get("rope_scaling", {})
        if which and isinstance(found.get(which), Mapping):
            found = found[which]
        if found:
            self._agree(found, {**scaling, **({} if theta is None else {"rope_theta": theta})})
        else:
            found = scaling
        base = base if theta is None else theta
        kind = found.get("rope_type", found.get("type", "default"))
        if found.get("partial_rotary_factor") not in (None, 1.0):
            what = f"config.json sets partial_rotary_factor to {found['partial_rotary_factor']}"
            self.refuse("rope_parameters", what, "supported: 1.0")
        return float(found.get("rope_theta", base)), self._scaling(kind, found)

    def raise_any(self) -> None:
        """Raise what was collected, if anything."""
        if self.problems:
            raise BadInput(self.problems)

    def _agree(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
        """Add a problem if old names describe another rotation than new ones."""
        kinds = [one.get("rope_type", one.get("type", "default")) for one in (new, old)]
        if "rope_type" in old or "type" in old:
            old = {**old, "rope_type": kinds[1]}
        new = {"rope_type": kinds[0], **new}
        for name in sorted(set(old) - {"type"}):
            if (name in new and new[name] != old[name]) or name not in (*new, "rope_theta"):
                conflict = f"{old[name]!r} by old names and {new.get(name)!r} in rope_parameters"
                remedy = "keep the one that the weights were trained with"
                self.refuse("rope_parameters", f"config.json sets {name} to {conflict}", remedy)

    def _scaling(self, kind: str, found: Mapping[str, Any]) -> fdl.Config | None:
        if kind == "default":
            return None
        if kind == "linear":
            return fdl.Config(layers.LinearScaling, factor=float(found["factor"]))
        if kind == "llama3":
            return fdl.Config(
                layers.Llama3Scaling,
                factor=float(found["factor"]),
                low_frequency_factor=float(found["low_freq_factor"]),
                high_frequency_factor=float(found["high_freq_factor"]),
                original_length=int(found["original_max_position_embeddings"]),
            )
        remedy = "supported: default, linear and llama3"
        self.refuse("rope_type", f"config.json sets rope_type to {kind!r}", remedy)
        return None


def text_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the language model in a config.json.

    Args:
      config: Its content. That of a model of images and text has those of its language model in
        `text_config`.
    """
    inside = config.get("text_config")
    if not isinstance(inside, Mapping):
        return config
    around = {k: v for k, v in config.items() if k not in ("text_config", "vision_config")}
    return {**around, **inside}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def set_attention_dropout(settings: Settings, model: Graph) -> None:
    """Set the attention dropout of the settings in every kind of layer.

    Args:
      settings: The settings of a config.json.
      model: The graph of a decoder.
    """
    rate = settings.get("attention_dropout", 0.0)
    if not rate:
        return
    for block in model.block if isinstance(model.block, list | tuple) else [model.block]:
        block.attention.core.dropout = rate


def value_at(model: Graph, path: str, default: Any = None) -> Any:
    """Return the value at a path of a graph, evaluated; `default` where there is no such path.

    Args:
      model: A graph.
      path: A path of it.
      default: Result for a path that does not exist.
    """
    if model is None:
        return default
    try:
        return graphs.evaluate(graphs.get(model, path))
    except BadInput:
        return default


def activation_name(activation: Any) -> str | None:
    """Return the name of a nonlinearity in a config.json; None if it has none there.

    Args:
      activation: A function, or a template of one.
    """
    for name, known in _ACTIVATIONS.items():
        same_node = isinstance(known, fdl.Buildable) and isinstance(activation, fdl.Buildable)
        if activation is known or (same_node and graphs.equal(activation, known)):
            return name
    return None


def rope_parameters(rotary: Any) -> dict[str, Any]:
    """Return the settings that describe a rotation.

    Args:
      rotary: A node or instance of `luthier.layers.Rotary`; None where nothing is rotated.
    """
    if rotary is None:
        return {"rope_type": "default"}
    found: dict[str, Any] = {"rope_theta": value_at(rotary, "base"), "rope_type": "default"}
    scaling = value_at(rotary, "scaling")
    kind = getattr(scaling, "__fn_or_cls__", type(scaling))
    if kind is layers.LinearScaling:
        found |= {"rope_type": "linear", "factor": value_at(scaling, "factor")}
    elif kind is layers.Llama3Scaling:
        found |= {
            "rope_type": "llama3",
            "factor": value_at(scaling, "factor"),
            "low_freq_factor": value_at(scaling, "low_frequency_factor"),
            "high_freq_factor": value_at(scaling, "high_frequency_factor"),
            "original_max_position_embeddings": value_at(scaling, "original_length"),
        }
    return found


def is_tied(model: Graph) -> bool:
    """Return whether a model's head is its embedding."""
    head = graphs.get(model, "unembedding")
    return getattr(head, "__fn_or_cls__", head) is layers.TiedUnembedding


def has_bias(model: Graph, path: str) -> bool:
    """Return whether the linear map whose template is at a path has a bias."""
    return value_at(model, f"{path}.bias") is not None
