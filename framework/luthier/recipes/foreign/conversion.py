"""Conversion between graphs of models and config.json files of their families."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

import fiddle as fdl

from luthier.checkpoint import foreign
from luthier.checkpoint.restore.foreign_weights import OPTIONAL_PARTS
from luthier.errors import BadInput, CheckpointError, Problem
from luthier.graph import Graph
from luthier.recipes.foreign import bert, gemma, gpt2, llama, t5, vit
from luthier.recipes.foreign.essence import differences, essence
from luthier.recipes.foreign.settings import Settings, text_settings, value_at

_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class _Converter:
    """Reader and writer of a family's config.json.

    Args:
      read: From settings to a model.
      write: From a model to settings.
      optional: Parts that a model of the family may leave out.
    """

    read: Callable[[Settings], fdl.Partial[Any]]
    write: Callable[[Any], dict[str, Any]]
    optional: tuple[str, ...] = ()


_CONVERTERS = {
    "gpt2": _Converter(gpt2.read, gpt2.write),
    "llama": _Converter(llama.read_llama, llama.write_llama),
    "mistral": _Converter(llama.read_mistral, llama.write_mistral),
    "qwen2": _Converter(llama.read_qwen2, llama.write_qwen2),
    "qwen3": _Converter(llama.read_qwen3, llama.write_qwen3),
    "gemma": _Converter(gemma.read_gemma, gemma.write_gemma),
    "gemma2": _Converter(gemma.read_gemma2, gemma.write_gemma2),
    "gemma3": _Converter(gemma.read_gemma3, gemma.write_gemma3),
    "mixtral": _Converter(llama.read_mixtral, llama.write_mixtral),
    "qwen3_moe": _Converter(llama.read_qwen3_moe, llama.write_qwen3_moe),
    "olmo2": _Converter(llama.read_olmo2, llama.write),
    "bert": _Converter(bert.read_bert, bert.write_bert, OPTIONAL_PARTS),
    "albert": _Converter(bert.read_albert, bert.write_albert, OPTIONAL_PARTS),
    "t5": _Converter(t5.read_t5, t5.write_t5),
    "t5_gated": _Converter(t5.read_t5_gated, t5.write_t5_gated),
    "vit": _Converter(vit.read, vit.write, ("head",)),
}


def model_of(config: Mapping[str, Any] | str | os.PathLike[str]) -> fdl.Partial[Any]:
    """Return the graph of the model that a config.json describes.

    Encoders are published with and without a head for masked tokens and a pooler. A graph has the
    parts of which the files have weights; if there are no files, those that `architectures` names.

    Args:
      config: Its content, or the folder that it is in.

    Raises:
      BadInput: There is none; its family is unknown; or our models do not support its settings: all
        problems at once.
    """
    where = "it"
    directory: str | os.PathLike[str] | None = None
    if not isinstance(config, Mapping):
        directory, where = config, os.fspath(config)
        found = foreign.read_config(directory)
        if found is None:
            raise BadInput(Problem(f"{where} has no config.json", remedy="give its folder"))
        config = found
    family = foreign.families.of_config(config, where)
    model, settings = _read(family.name, config)
    settings.raise_any()
    optional = _CONVERTERS[family.name].optional
    names = _tensor_names(directory) if optional and directory is not None else None
    for part in optional:
        if not _has(part, family, config, names):
            setattr(model, part, None)
    return model


def _tensor_names(directory: str | os.PathLike[str]) -> Set[str] | None:
    """Return the names of the tensors in a folder; None where none can be read."""
    # The graph alone is asked for here: a damaged file is reported when its weights are.
    with contextlib.suppress(CheckpointError), foreign.Tensors(directory) as tensors:
        return frozenset(tensors.described)
    return None


def _has(
    part: str, family: foreign.Family, config: Mapping[str, Any], names: Set[str] | None
) -> bool:
    """Return whether a part of a model is in its weights, or in what `architectures` names."""
    if names is None:
        named = next(iter(config.get("architectures") or ()), family.architecture)
        return not str(named).endswith(_WITHOUT[part])
    theirs = (
        tensor.foreign
        for tensor in family.tensors
        if tensor.parts and tensor.parts[0].ours.startswith(f"{part}.")
    )
    return any(name in names or name.removeprefix(family.prefix) in names for name in theirs)


def described_by(
    config: Mapping[str, Any], family: str, where: str
) -> tuple[fdl.Partial[Any] | None, Settings]:
    """Return the graph that a config.json describes, and its settings.

    Args:
      config: Its content.
      family: The family to read it as if it names no known one.
      where: The folder, for messages.

    Returns:
      The graph, None where no graph is made from a config of the family; and its settings, whose
      problems are not raised.
    """
    with contextlib.suppress(CheckpointError):
        family = foreign.families.of_config(config, where).name
    if family not in _CONVERTERS:
        return None, Settings(config)
    return _read(family, config)


# Ends of the names of classes in `architectures` that lack a part. Files of a BertForMaskedLM may
# have a pooler: that of the hub's bert-base-uncased does.
_WITHOUT: Mapping[str, tuple[str, ...]] = {
    "head": (
        *("BertModel", "AlbertModel", "ViTModel", "ForSequenceClassification"),
        *("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"),
    ),
    "pooler": ("ForTokenClassification", "ForQuestionAnswering"),
}


def _read(family: str, config: Mapping[str, Any]) -> tuple[fdl.Partial[Any], Settings]:
    settings = Settings(text_settings(config))
    model = _CONVERTERS[family].read(settings)
    settings.refuse_unread()
    return model, settings


def config_of(model: fdl.Buildable, family: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the family of a model, and the config.json that describes it.

    The result is read back and compared with the model, so that it never describes another one.

    Args:
      model: A template of a model: a decoder, an encoder, both, or a vision transformer.
      family: The family; None finds it.

    Raises:
      BadInput: The model computes something that no config.json of the family can express.
    """
    # Writers are simple and may be wrong: each writes what it can of any model. Reading back
    # decides: the family whose config gives a model of the same essence is the right one. If none
    # does, the nearest one, by the number of differences, is reported.
    if family is not None:
        foreign.families.named(family)
    nearest: tuple[str, list[tuple[str, Any, Any]]] | None = None
    for name in _CONVERTERS if family is None else [family]:
        config = _config(model, name)
        wrong = _wrong(model, config, _CONVERTERS[name].optional)
        if not wrong:
            return name, config
        if nearest is None or len(wrong) < len(nearest[1]):
            nearest = (name, wrong)
    assert nearest is not None
    raise BadInput(_problems(*nearest, is_guess=family is None))


def describes(config: Mapping[str, Any], model: fdl.Buildable, family: str) -> bool:
    """Return whether a config.json describes a model, and is of a family.

    Args:
      config: Its content.
      model: A template of a model.
      family: The family.
    """
    try:
        same = foreign.families.of_config(config, "it").name == family
    except CheckpointError:
        return False
    return same and not _wrong(model, config, _CONVERTERS[family].optional)


def _config(model: Graph, name: str) -> dict[str, Any]:
    """Return the settings, in the types that the family needs; empty where they cannot be made."""
    family = foreign.families.named(name)
    try:
        config = _CONVERTERS[name].write(model)
    except (BadInput, TypeError, ValueError, ArithmeticError, AttributeError):
        return {}
    return {
        "architectures": [_architecture(family, model)],
        "model_type": family.model_types[0],
        **config,
    }


def _architecture(family: foreign.Family, model: Graph) -> str:
    """Return the class of a model: that of the family, or the bare one if there is no head."""
    if "head" in _CONVERTERS[family.name].optional and value_at(model, "head") is None:
        return re.sub("For[A-Z].*", "Model", family.architecture)
    return family.architecture


def _wrong(
    model: Graph, config: Mapping[str, Any], optional: tuple[str, ...]
) -> list[tuple[str, Any, Any]]:
    try:
        described = model_of(config)
        for part in optional:
            if value_at(model, part) is None:
                setattr(described, part, None)
        return differences(essence(model), essence(described))
    except BadInput:
        return [("", "another kind of model", "the one in its config.json")]


def _problems(name: str, wrong: list[tuple[str, Any, Any]], is_guess: bool) -> list[Problem]:
    remedy = f"use --family {foreign.PLAIN} to write luthier's own names"
    what = f"the model is not a {name}"
    if is_guess:
        what = f"the model is of no family that config.json can describe; nearest is {name}"
    lines = [
        Problem(
            f"is {_format(ours)} here, and {_format(theirs)} in a {name}",
            f"model.{path}" if path else "model",
        )
        for path, ours, theirs in wrong[:_SHOWN]
    ]
    more = len(wrong) - _SHOWN
    if more > 0:
        lines.append(Problem(f"and {more} more differences"))
    return [Problem(what, "model", remedy=remedy), *lines]


def _format(value: Any) -> str:
    return getattr(value, "__name__", str(value))
