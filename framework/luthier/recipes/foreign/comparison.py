"""Comparison of a model with the config.json beside the weights that it is initialized from.

Names and shapes of tensors do not show the base of rotary positions, the epsilon of norms or how
many heads a kernel is cut into: the weights fit, and yet the model is another function.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import fiddle as fdl

from luthier import graph as graphs
from luthier import layers
from luthier.checkpoint.restore.foreign_weights import OPTIONAL_PARTS
from luthier.errors import CheckpointError, Problem
from luthier.graph import Graph
from luthier.recipes.fine_tuning import has_lora, without_lora
from luthier.recipes.foreign.conversion import described_by
from luthier.recipes.foreign.essence import essence, unwrapped
from luthier.recipes.foreign.settings import value_at

# Sizes of tensors are compared with the tensors themselves; `essence` leaves out settings that do
# not change the function.
_SIZES = frozenset(
    {"vocab_size", "dim", "hidden_dim", "max_length", "num_types", "num_classes", "num_channels"}
    | {"embed_dim", "num_buckets", "image_size", "num_experts"}
)
# Keys of config.json by paths of our models, for messages: the first that the file has is named.
_KEYS: Sequence[tuple[str, tuple[str, ...]]] = (
    (r"attention\.num_heads$", ("num_attention_heads", "n_head", "num_heads")),
    (r"attention\.num_kv_heads$", ("num_key_value_heads",)),
    (r"attention\.head_dim$", ("head_dim", "d_kv")),
    (r"rotary\.base$", ("rope_theta",)),
    (r"rotary(\.scaling.*)?$", ("rope_scaling", "rope_parameters")),
    (r"epsilon$", ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")),
    (
        r"activation$",
        ("hidden_activation", "hidden_act", "activation_function", "feed_forward_proj"),
    ),
    (r"^unembedding$", ("tie_word_embeddings",)),
    (r"core\.mask(\.size)?$", ("sliding_window",)),
    (r"core\.cap$", ("attn_logit_softcapping",)),
    (r"^unembedding\.cap$", ("final_logit_softcapping",)),
    (r"core\.scale$", ("query_pre_attn_scalar",)),
    (r"max_distance$", ("relative_attention_max_distance",)),
    (r"router\.k$", ("num_experts_per_tok",)),
    (r"router\.weights$", ("norm_topk_prob",)),
    (r"num_layers$", ("num_hidden_layers", "n_layer", "num_layers")),
)
_MISSING = object()
# Nodes that mean the same at all places: `class:` sets all of them with one override.
_LEAVES = (layers.Rotary, layers.RMSNorm, layers.LayerNorm)


def compare(
    model: fdl.Buildable,
    config: Mapping[str, Any],
    family: str,
    where: str,
    *,
    differing: Sequence[str] = (),
    taken: Set[str] | None = None,
) -> dict[str, str]:
    """Compare a model with the config.json of the weights that initialize it.

    Args:
      model: The graph of the model.
      config: The content of config.json.
      family: The family whose names the weights have, if config.json has none.
      where: The folder, for messages.
      differing: Patterns of settings that are meant to differ, by their names in config.json or in
        the graph.
      taken: The parameters that are restored; None means all.

    Returns:
      Notes on settings that were not compared, by label: for `restored.txt`.

    Raises:
      CheckpointError: The model computes something else: one problem for each setting, with the
        override that makes them agree; or config.json has settings that our models do not support.
    """

    # The config.json is converted to a graph, and the essences of both graphs are compared: so only
    # differences of the function count, however either is written. Problems of the conversion come
    # first, since without a graph there is nothing to compare. Adapters are taken out, because the
    # published weights have none.
    def is_meant(*names: str) -> bool:
        return any(re.search(pattern, name) for pattern in differing for name in names if name)

    described, settings = described_by(config, family, where)
    if described is None:
        return {"not compared": f"config.json, as no graph is made from one of {family}"}
    refused = [problem for key, problem in settings.refused if not is_meant(key)]
    if refused:
        remedy = "restore.differing=[KEY] continues with a model that was made to agree by hand"
        raise CheckpointError(
            [
                Problem(f"{where} has weights of a model of another kind"),
                *refused,
                Problem("where a key is meant to be other here", remedy=remedy),
            ]
        )
    notes = {}
    if settings.unread:
        notes["config.json, not looked at"] = ", ".join(settings.unread)
    # Where a refused key is meant to differ, no graph of all of config.json exists to compare.
    if not settings.refused:
        plain = without_lora(model) if has_lora(model) else model
        found = _Comparison(plain, described, config, taken)
        problems = [
            problem
            for key, path, problem in found.problems(where)
            if not is_meant(key, path, f"model.{path}")
        ]
        if problems:
            raise CheckpointError(problems)
        if found.foreign:
            notes["not compared with config.json"] = ", ".join(sorted(found.foreign))
    if differing:
        notes["meant to differ from config.json"] = ", ".join(differing)
    return notes


class _Comparison:
    """Two graphs: ours, and the one that a config.json describes."""

    def __init__(
        self,
        model: Graph,
        described: Any,
        config: Mapping[str, Any],
        taken: Set[str] | None,
    ):
        self._model, self._described, self._config = model, described, config
        self._ours, self._theirs = essence(model), essence(described)
        self._taken = taken
        self.foreign: set[str] = set()

    def problems(self, where: str) -> Iterator[tuple[str, str, Problem]]:
        """Yield key, path and problem of each setting that differs."""
        found: dict[tuple[str, str, str], dict[str, str]] = {}
        for path in self._paths():
            place, ours, theirs = self._place(self._model, path), *self._values(path)
            override = self._override(path, place)
            group = found.setdefault((self._key(path), ours, theirs), {})
            group.setdefault(place, override)
        for (key, ours, theirs), group in found.items():
            places, overrides = list(group), group.values()
            remedy = f"set {' '.join(dict.fromkeys(overrides))}"
            remedy += f", or restore.differing='[\"{key}\"]' where it is meant to differ"
            by = "" if key in self._set_keys else " by default"
            what = f"{key} is {theirs}{by} in config.json of {where}, and {ours} here"
            yield key, places[0], Problem(what, f"model.{places[0]}", remedy=remedy)

    @property
    def _set_keys(self) -> set[str]:
        """The keys that config.json has, those of rotations included."""
        nested = self._config.get("rope_parameters") or {}
        inside = [one for one in nested.values() if isinstance(one, Mapping)]
        return set(self._config).union(nested, *inside)

    def _paths(self) -> Iterator[str]:
        """Yield the paths of differences, except for those below another difference."""
        # Sorted paths put a node before its settings: if an activation differs in class, its
        # arguments differ as well, and only the class is worth a line.
        blamed: list[str] = []
        shared = self._theirs.get("stack") is not None or self._ours.get("stack") is not None
        for path in sorted(set(self._ours) | set(self._theirs)):
            ours, theirs = self._ours.get(path, _MISSING), self._theirs.get(path, _MISSING)
            leaf = path.rpartition(".")[2]
            if ours == theirs or _is_below(path, blamed):
                continue
            if leaf in _SIZES or path.split(".")[0] in OPTIONAL_PARTS:
                continue
            if (leaf == "num_layers" and not shared) or leaf == "core":
                # Tensors give the number of layers, except of a stack that shares one layer's
                # parameters (`essence` keeps no other stack). Cores are implementations; their
                # settings (`core.scale`) have paths of their own and are compared.
                continue
            if path == "unembedding" and not self._is_taken("unembedding", ours):
                blamed.append(path)
                continue
            # No config.json describes a class of the user: it is noted, not refused.
            if isinstance(ours, type) and not ours.__module__.startswith("luthier."):
                self.foreign.add(f"{self._place(self._model, path) or 'model'} ({ours.__name__})")
                blamed.append(path)
                continue
            # A feature that is off is written in three ways: by None, by False, or by a class
            # without the setting. By identity: `0.0 in (False,)` holds, but a zero is a number.
            if all(one is None or one is False or one is _MISSING for one in (ours, theirs)):
                continue
            if self._follows(path, leaf):
                continue
            blamed.append(path)
            yield path

    def _is_taken(self, name: str, ours: Any) -> bool:
        """Return whether a part with parameters of its own gets any of them from the weights."""
        # A head that is initialized anew (for another task) need not be like the one in
        # config.json.
        tied = getattr(ours, "__name__", "").startswith("Tied")
        return tied or self._taken is None or any(one.startswith(f"{name}.") for one in self._taken)

    def _follows(self, path: str, leaf: str) -> bool:
        """Return whether a size of heads differs only because the number of heads does."""
        # `head_dim`, `num_kv_heads` and the scale of scores have defaults that follow from others.
        # One wrong number of heads is one problem, with one override that solves it.
        above = path.rpartition(".")[0]
        if leaf == "scale" and above.endswith(".core"):
            attention = above.rpartition(".")[0]
            width = f"{attention}.head_dim"
            is_own = value_at(self._model, self._place(self._model, path)) is not None
            return not is_own and self._ours.get(width) != self._theirs.get(width)
        if leaf not in ("head_dim", "num_kv_heads") or not above.endswith("attention"):
            return False
        if value_at(self._model, self._place(self._model, path)) is not None:
            return False
        heads = self._theirs.get(f"{above}.num_heads")
        derived = heads if leaf == "num_kv_heads" else (self._theirs["dim"] / heads if heads else 0)
        return bool(heads) and self._theirs.get(path) == derived

    def _values(self, path: str) -> tuple[str, str]:
        if path == "unembedding":
            return _tied(self._ours.get(path)), _tied(self._theirs.get(path))
        return _format(self._ours.get(path)), _format(self._theirs.get(path))

    def _key(self, path: str) -> str:
        for pattern, names in _KEYS:
            if re.search(pattern, path):
                return next((name for name in names if name in self._set_keys), names[0])
        return path.rpartition(".")[2]

    def _override(self, path: str, place: str) -> str:
        """Return the override that sets our value to theirs."""
        # For users to copy: a class with its arguments where the node differs; `class:` where all
        # nodes of that class need the same value; else the path.
        theirs = self._theirs.get(path)
        above, _, leaf = path.rpartition(".")
        owner = self._ours.get(above)
        text = _format(theirs)
        if isinstance(theirs, type) or callable(theirs):
            inside = _expression(graphs.get(self._described, self._place(self._described, path)))
            by = ":=" if isinstance(theirs, type) else "="
            return f"model.{place}{by}{inside}"
        if isinstance(owner, type) and leaf != "scale" and owner in _LEAVES:
            same = [
                other
                for other, kind in self._ours.items()
                if kind is owner and self._theirs.get(f"{other}.{leaf}") == theirs
            ]
            if len(same) == sum(kind is owner for kind in self._ours.values()):
                return f"class:{owner.__name__}.{leaf}={text}"
        return f"model.{place}={text}"

    def _place(self, model: Graph, path: str) -> str:
        """Return the path in a graph of a setting of a layer."""
        # An essence lists all layers; a graph has one block, or one for each kind that alternates.
        match = re.match(r"block\[(\d+)\](.*)", path)
        if not match:
            return unwrapped(model, path)
        block = graphs.get(model, "block")
        kind = f"[{int(match[1]) % len(block)}]" if isinstance(block, list | tuple) else ""
        return unwrapped(model, f"block{kind}{match[2]}")


def _is_below(path: str, blamed: Sequence[str]) -> bool:
    return any(path.startswith((f"{one}.", f"{one}[")) or one == "" for one in blamed)


def _tied(head: Any) -> str:
    """Return `tie_word_embeddings` of a head, as config.json writes it."""
    return str(getattr(head, "__name__", "").startswith("Tied")).lower()


def _format(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return getattr(value, "__name__", str(value))


def _expression(value: Any) -> str:
    """Return the expression of a value for the command line."""
    if isinstance(value, fdl.Buildable):
        given = {name: graphs.evaluate(one) for name, one in value.__arguments__.items()}
        inside = ", ".join(f"{name}={_expression(one)}" for name, one in given.items())
        return f"{_named(value.__fn_or_cls__)}({inside})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        inside = ", ".join(f"{name}={_expression(one)}" for name, one in given.items())
        return f"{_named(type(value))}({inside})"
    return _named(value) if callable(value) else repr(value)


def _named(target: Any) -> str:
    # By the facade: module paths below it are private, and JAX's functions are defined elsewhere.
    module = getattr(target, "__module__", "")
    if module.startswith("luthier.layers"):
        module = "luthier.layers"
    elif module.startswith("jax"):
        module = "jax.nn"
    return f"{module}.{target.__name__}"
