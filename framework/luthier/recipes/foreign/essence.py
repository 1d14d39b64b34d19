"""Structural equality of models: the function of a graph, without how it is written, drawn or run.

Two graphs with the same essence are one function of their parameters: shared values are evaluated,
defaults are filled in, and settings that only change initial values, noise in training, dtypes or
the schedule of the computation are left out. A layer declares such settings of its own in the
class attribute `EXECUTION`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl

from luthier import graph as graphs
from luthier import layers
from luthier.graph import signatures
from luthier.recipes.foreign.settings import value_at

_EVERYWHERE = frozenset(
    {"dtype", "param_dtype", "product", "rngs", "dropout", "stack", "dispatch", "jitter"}
)
_INITIALIZERS: Mapping[Any, frozenset[str]] = {
    layers.Linear: frozenset({"kernel"}),
    layers.Embedding: frozenset({"table"}),
    layers.Unembedding: frozenset({"kernel"}),
    layers.LearnedPositions: frozenset({"table"}),
    layers.LayerNorm: frozenset({"scale"}),
    layers.RMSNorm: frozenset({"scale"}),
}
# `AutoAttention` computes the same on any device.
_SAME = {
    layers.FusedAttention: layers.EinsumAttention,
    layers.AutoAttention: layers.EinsumAttention,
}
# Nodes that compute what one of their arguments computes, on other devices.
_WRAPPERS = {layers.AllToAllAttention: "core"}

Essence = Mapping[str, Any]


def essence(model: fdl.Buildable) -> dict[str, Any]:
    """Return the essence of a model's graph, flat: values and classes by path.

    Args:
      model: A template of a model. The layers of `block` are listed one by one.
    """
    # Layer by layer, because one graph may have one block for all layers and another a list of
    # alternating ones, and still be the same model.
    found: dict[str, Any] = {}
    settings = _settings(model)
    blocks = settings.pop("block", None)
    for name, value in settings.items():
        found.update(_flat(name, value))
    kinds = blocks if isinstance(blocks, list | tuple) else [blocks]
    flat = [dict(_flat("", kind)) for kind in kinds]
    for layer in range(int(graphs.evaluate(settings.get("num_layers", 0)))):
        own = _heads(flat[layer % len(flat)], graphs.evaluate(settings.get("dim")))
        found.update({f"block[{layer}]{path}": value for path, value in own.items()})
    found[""] = _target(model)
    return found


def differences(ours: Essence, theirs: Essence) -> list[tuple[str, Any, Any]]:
    """Return the differences of two essences: path, and both values; None for a missing one.

    Args:
      ours: An essence.
      theirs: Another.
    """
    paths = sorted(set(ours) | set(theirs))
    missing = object()
    return [
        (path, ours.get(path), theirs.get(path))
        for path in paths
        if ours.get(path, missing) != theirs.get(path, missing)
    ]


def unwrapped(model: fdl.Buildable, path: str) -> str:
    """Return the path in a graph of a path of its essence, which has no wrappers.

    Args:
      model: The graph.
      path: A path, such as `block.attention.core.mask`.

    Returns:
      The path through the wrappers, such as `block.attention.core.core.mask`.
    """
    found = ""
    for part in path.split("."):
        found = f"{found}.{part}" if found else part
        wrapped = _WRAPPERS.get(_target(value_at(model, found)))
        found = f"{found}.{wrapped}" if wrapped else found
    return found


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    value = graphs.evaluate(value) if graphs.is_value_node(value) else value
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flat(f"{path}[{index}]", item)
        return
    settings = _settings(value)
    if settings is None:
        yield path, _plain(value)
        return
    if wrapped := _WRAPPERS.get(_target(value)):
        yield from _flat(path, settings[wrapped])
        return
    yield path, _plain(_target(value))
    for name, inside in settings.items():
        yield from _flat(f"{path}.{name}" if path else f".{name}", inside)


def _settings(value: Any) -> Any:
    """Return the relevant arguments of a node, a template class or an instance; None of others."""
    target = _target(value)
    if isinstance(value, fdl.Buildable):
        given = _defaults(target) | dict(value.__arguments__)
    elif isinstance(value, type) and signatures.is_module_class(value):
        given = _defaults(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    else:
        return None
    hidden = _EVERYWHERE | _INITIALIZERS.get(target, frozenset())
    hidden |= frozenset(getattr(_made(value), "EXECUTION", ()))
    kept = {name: inside for name, inside in given.items() if name not in hidden}
    if _target(given.get("stack")) is layers.Shared:  # other stacks compute the same function
        kept["stack"] = given["stack"]
    if "bias" in kept and target in _INITIALIZERS:
        kept["bias"] = kept["bias"] is not None
    return kept


def _defaults(target: Any) -> dict[str, Any]:
    """Return the defaults that apply: arguments that a parent passes replace their defaults."""
    inherited = signatures.inherited(target) if signatures.is_module_class(target) else ()
    defaults = signatures.arguments(target).defaults
    return {name: value for name, value in defaults.items() if name not in inherited}


def _target(value: Any) -> Any:
    made = _made(value)
    return _SAME.get(made, made)


def _made(value: Any) -> Any:
    target = value.__fn_or_cls__ if isinstance(value, fdl.Buildable) else value
    target = target if isinstance(target, type) or callable(target) else type(target)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | fdl.Buildable):
        target = type(value)
    return target


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _heads(block: Mapping[str, Any], dim: Any) -> dict[str, Any]:
    """Fill in the sizes of heads that follow from others."""
    # Where a graph leaves them out, the layers derive them in the same way.
    found = dict(block)
    heads = found.get(".attention.num_heads")
    if heads:
        if found.get(".attention.num_kv_heads") is None:
            found[".attention.num_kv_heads"] = heads
        if found.get(".attention.head_dim") is None:
            found[".attention.head_dim"] = dim / heads
        if found.get(".attention.core.scale", 0) is None:
            found[".attention.core.scale"] = found[".attention.head_dim"] ** -0.5
    return found
