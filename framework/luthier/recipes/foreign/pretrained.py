"""Pretrained models from folders of the Hugging Face hub: config.json, tokenizer and weights.

Nothing in a folder is executed: its files are JSON, safetensors and vocabularies.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import fiddle as fdl
from flax import nnx

from luthier import data, layers
from luthier import graph as graphs
from luthier.checkpoint import Restoration, Safetensors, Target, foreign
from luthier.recipes.foreign.conversion import model_of
from luthier.recipes.foreign.settings import text_settings


class Pretrained(NamedTuple):
    """A pretrained model.

    Args:
      model: The model with its weights, a Flax NNX module.
      graph: Its graph, a template.
      tokenizer: Its tokenizer; None where the folder has none that luthier reads.
    """

    model: Any
    graph: fdl.Partial[Any]
    tokenizer: data.Tokenizer | None


def load(directory: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Pretrained:
    """Return the model of a folder; see `luthier.models.load`.

    Args:
      directory: The folder, or the one file of its weights.
      overrides: Changes of the model's graph.

    Raises:
      BadInput: The folder or its weights do not exist, or do not fit the graph; its family is
        unknown, or our models do not support its settings.
    """
    folder = pathlib.Path(directory).expanduser()
    graph = graphs.apply(model_of(folder), overrides)
    template = graphs.build(graph)
    # Shapes only: the arrays are those of the files, and no initial value is drawn.
    structure, state = nnx.split(nnx.eval_shape(lambda: template(rngs=nnx.Rngs(0))))
    variables = {".".join(map(str, path)): (path, v) for path, v in nnx.to_flat_state(state)}
    targets = {name: _target(variable) for name, (_, variable) in variables.items()}
    size = graphs.evaluate(getattr(graph, "vocab_size", None))
    limits = {} if size is None else {"vocab": int(size)}
    with Restoration(Safetensors(str(folder)), targets, limits) as restoration:
        arrays = restoration.read()
    filled = [
        (path, variable.replace(arrays[name])) for name, (path, variable) in variables.items()
    ]
    model = nnx.merge(structure, nnx.from_flat_state(filled))
    tokenizer = tokenizer_of(folder)
    return Pretrained(model, graph, None if tokenizer is None else graphs.build(tokenizer))


def _target(variable: Any) -> Target:
    axes = variable.get_metadata().get(layers.AXES) or ()
    value = variable.get_value()
    return Target(tuple(value.shape), value.dtype, None, foreign.is_stacked(axes), tuple(axes))


def tokenizer_of(directory: str | os.PathLike[str]) -> fdl.Config[data.Tokenizer] | None:
    """Return the tokenizer of a folder, as a config with absolute paths.

    Args:
      directory: The folder.

    Returns:
      `TokenizerJson`, `SentencePiece` or `BpeMerges`, by the files that it has; None where it has
      none of these, or none of its tokens is known to begin or end a text.

    Raises:
      CheckpointError: A file of settings is not JSON.
    """
    folder = pathlib.Path(directory).expanduser().absolute()
    files = {path.name: str(path) for path in foreign.tokenizer_files(folder)}
    bos, eos = _special_tokens(folder)
    # Where a vocabulary has one token for both ends, as Qwen's and GPT-2's, it stands for both.
    ends = {"bos_token": bos or eos, "eos_token": eos or bos}
    if not ends["bos_token"]:
        return None
    if "tokenizer.json" in files:
        return fdl.Config(data.TokenizerJson, path=files["tokenizer.json"], **ends)
    for name in ("tokenizer.model", "spiece.model"):
        if name in files:
            return fdl.Config(data.SentencePiece, path=files[name], **ends)
    if {"vocab.json", "merges.txt"} <= set(files):
        paths = {"path": files["vocab.json"], "merges": files["merges.txt"]}
        return fdl.Config(data.BpeMerges, **paths, **ends)
    return None


def mask_token_of(directory: str | os.PathLike[str]) -> int | None:
    """Return the token that stands for a hidden one in a folder's vocabulary; None if unknown.

    Args:
      directory: The folder.
    """
    folder = pathlib.Path(directory).expanduser()
    name = _named(folder, "mask_token")
    return next((number for number, token in _numbered(folder) if token == name), None)


def _special_tokens(folder: pathlib.Path) -> tuple[str | None, str | None]:
    """Return the tokens that begin and end a text."""
    # By name in the tokenizer's own settings; otherwise by number in those of the model. BERT's
    # texts begin with [CLS] and end with [SEP]. The targets of an encoder-decoder begin with a
    # token that its texts do not have: T5's with the padding.
    config = text_settings(foreign.read_config(folder) or {})

    def numbered(*keys: str) -> str | None:
        # Large vocabularies are megabytes of JSON, and mostly the names are known without.
        known = [config[key] for key in keys if config.get(key) is not None]
        numbers = dict(_numbered(folder)) if known else {}
        known = [one[0] if isinstance(one, list) and one else one for one in known]
        return next((numbers[one] for one in known if one in numbers), None)

    end = _named(folder, "eos_token", "sep_token") or numbered("eos_token_id", "sep_token_id")
    if config.get("is_encoder_decoder"):
        start = numbered("decoder_start_token_id", "pad_token_id")
        return start or _named(folder, "pad_token"), end
    return _named(folder, "bos_token", "cls_token") or numbered("bos_token_id"), end


def _named(folder: pathlib.Path, *keys: str) -> str | None:
    """Return the first of some special tokens that the settings of a tokenizer name."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        settings = foreign.read_config(folder, file) or {}
        for key in keys:
            token = settings.get(key)
            token = token.get("content") if isinstance(token, Mapping) else token
            if isinstance(token, str):
                return token
    return None


def _numbered(folder: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Yield the numbers of a vocabulary with their tokens, as far as it is in JSON."""
    content = foreign.read_config(folder, "tokenizer.json") or {}
    vocabulary = (content.get("model") or {}).get("vocab")
    if not content:
        vocabulary = foreign.read_config(folder, "vocab.json")
    if isinstance(vocabulary, Mapping):
        yield from ((number, token) for token, number in vocabulary.items())
    elif isinstance(vocabulary, list):  # Unigram: pairs of a token and its score
        yield from enumerate(token for token, _ in vocabulary)
    for token in content.get("added_tokens") or ():
        yield token["id"], token["content"]
