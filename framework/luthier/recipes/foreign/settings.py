"""The settings of a config.json: which are missing, and which are not understood."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fiddle as fdl
import jax

from luthier import graph as graphs
from luthier import layers
from luthier.errors import BadInput, Problem

_ACTIVATIONS: Mapping[str, Any] = {
    "gelu": fdl.Partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jax.numpy.tanh,
}


class Settings:
    """A config.json, whose problems are collected.

    Args:
      content: What it says.
    """

    def __init__(self, content: Mapping[str, Any]):
        self.content = content
        self.problems: list[Problem] = []

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting that may be missing or null."""
        value = self.content.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        """Return a number that must be there; 1 in its place where it is not, and a problem."""
        value = self.content.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            what = f"config.json has no {name}" if value is None else f"{name} is {value!r}"
            self.problems.append(Problem(what, remedy="it must be a number"))
            return 1
        return value

    def only(self, name: str, allowed: tuple[Any, ...], default: Any) -> None:
        """Add a problem where a setting has a value that our models cannot follow."""
        value = self.content.get(name, default)
        if value not in allowed:
            said = " or ".join(repr(one) for one in allowed)
            what = f"config.json sets {name} to {value!r}"
            self.problems.append(Problem(what, remedy=f"understood is {said}"))

    def activation(self, name: str, default: str) -> Any:
        """Return the nonlinearity that a setting names.

        Args:
          name: The setting.
          default: What is meant where nothing is said.
        """
        return self.activation_called(self.get(name, default), name)

    def activation_called(self, said: Any, name: str) -> Any:
        """Return the nonlinearity called `said`, which the setting `name` is about."""
        if said not in _ACTIVATIONS:
            what = f"config.json sets {name} to {said!r}"
            self.problems.append(Problem(what, remedy=f"understood are {', '.join(_ACTIVATIONS)}"))
            return jax.nn.gelu
        found = _ACTIVATIONS[said]
        return graphs.copy_graph(found) if isinstance(found, fdl.Buildable) else found

    def rotary(self, which: str = "", base: float = 10_000.0) -> tuple[float, fdl.Config | None]:
        """Return base and scaling of rotary positions, from new and from old names.

        Args:
          which: The kind of layer, where kinds have their own (`full_attention`).
          base: What is meant where nothing is said.
        """
        found = self.get("rope_parameters", {})
        if which and isinstance(found.get(which), Mapping):
            found = found[which]
        elif not found:
            old = "rope_local_base_freq" if which == "sliding_attention" else "rope_theta"
            scaling = {} if which == "sliding_attention" else self.get("rope_scaling", {})
            found = {"rope_theta": self.get(old, base), **scaling}
        kind = found.get("rope_type", found.get("type", "default"))
        return float(found.get("rope_theta", base)), self._scaling(kind, found)

    def raise_any(self) -> None:
        """Raise what was collected, if anything."""
        if self.problems:
            raise BadInput(self.problems)

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
        remedy = "understood are default, linear and llama3"
        self.problems.append(Problem(f"config.json sets rope_type to {kind!r}", remedy=remedy))
        return None


def value_at(model: Any, path: str, default: Any = None) -> Any:
    """Return the value at a path of a graph, evaluated; `default` where there is no such path.

    Args:
      model: A graph.
      path: A path of it.
      default: What stands for a path that does not exist.
    """
    if model is None:
        return default
    try:
        return graphs.evaluate(graphs.get(model, path))
    except BadInput:
        return default


def activation_name(activation: Any) -> str | None:
    """Return what a nonlinearity is called in a config.json; None where it has no name there.

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


def is_tied(model: Any) -> bool:
    """Return whether a model's head is its embedding."""
    head = graphs.get(model, "unembedding")
    return getattr(head, "__fn_or_cls__", head) is layers.TiedUnembedding


def has_bias(model: Any, path: str) -> bool:
    """Return whether the linear map whose template is at a path has a bias."""
    return value_at(model, f"{path}.bias") is not None
