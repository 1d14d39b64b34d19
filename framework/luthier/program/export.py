"""Export of a program's weights as a folder of safetensors, which other libraries read."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

import luthier
from luthier import graph as graphs
from luthier.checkpoint import foreign
from luthier.checkpoint.foreign.safetensors_folder import CONFIG, GENERATION
from luthier.errors import BadInput, Problem
from luthier.layers import merge_adapters
from luthier.program.materialize import abstract_model, limits, targets
from luthier.program.program import Leaves, Program
from luthier.program.state import model_arrays, split
from luthier.recipes.fine_tuning import has_lora, without_lora
from luthier.recipes.foreign import config_of, text_settings
from luthier.recipes.foreign.conversion import describes


@dataclasses.dataclass(frozen=True)
class Exported:
    """A folder that was written.

    Args:
      directory: The folder.
      family: The family whose names and layouts it has; `luthier` for our own.
      files: Names of the files in it.
      num_tensors: Number of tensors in it.
    """

    directory: pathlib.Path
    family: str
    files: tuple[str, ...]
    num_tensors: int


def export(
    program: Program,
    leaves: Leaves,
    directory: str | os.PathLike[str],
    *,
    weights: str = "parameters",
    family: str | None = None,
    merge: bool = False,
    tokenizer: pathlib.Path | None = None,
    metadata: Mapping[str, str] | None = None,
    original: Mapping[str, Mapping[str, Any]] | None = None,
) -> Exported:
    """Write a model's weights as a folder of safetensors, with a config.json and the tokenizer.

    Args:
      program: The program that the state belongs to.
      leaves: The state.
      directory: The folder; it must not exist, or be empty.
      weights: `parameters` or `ema`.
      family: The family whose names and layouts are used; None infers it from the graph; `luthier`
        keeps our own names and writes no config.json.
      merge: Whether adapters are merged into their kernels.
      tokenizer: A folder with the files of the tokenizer; None takes that of the data.
      metadata: Entries for the headers of the files, beside the format.
      original: The files of settings that came with the pretrained weights that the model started
        from, by name; their values are kept where those of the model do not differ.

    Returns:
      The folder, its family, the names of the files, and the number of tensors.

    Raises:
      BadInput: The model belongs to no known family, or a config.json cannot describe it; it has
        adapters that are not merged; or the folder cannot be written.
    """
    # Everything that can be refused is decided before the first file is written.
    model = graphs.get(program.graph, "model")
    arrays = model_arrays(program.named(leaves), weights)
    if merge:
        arrays = _merged(program, arrays)
        model = without_lora(model)
    elif has_lora(model) and family != foreign.PLAIN:
        remedy = f"merge them (--merge), or write luthier's own names (--family {foreign.PLAIN})"
        raise BadInput(Problem("no family has adapters", "model", remedy=remedy))
    config: dict[str, Any] | None = None
    if family == foreign.PLAIN:
        tensors = foreign.plain_tensors(arrays)
    else:
        family, config = config_of(model, family)
        known = _known(program, arrays, config)
        # Of a model of images and text, the export is the language model alone.
        theirs = text_settings((original or {}).get(CONFIG, {}))
        config = _kept(theirs, known, config, model, family)
        stacked = {n: t.stacked for n, t in targets(program).items() if n in arrays}
        sizes = limits(abstract_model(program.experiment))
        own = foreign.families.named(family)
        tensors = foreign.foreign_tensors(own, arrays, stacked, sizes)
    # transformers refuses a safetensors file whose metadata have no `format` that it knows.
    head = {"format": "pt" if config else foreign.PLAIN, "luthier": luthier.__version__}
    head |= dict(metadata or {})
    files = foreign.write(directory, tensors, config=config, metadata=head)
    folder = pathlib.Path(directory).expanduser()
    names = [path.name for path in files] + _copy_tokenizer(program, tokenizer, folder)
    # generation_config.json has what transformers samples with: temperature, top-p, the tokens that
    # end a text. No such setting depends on the architecture, so it is kept even where the original
    # config.json is not. Its token ids are not checked: they are those of the original's tokenizer.
    if config is not None and (generation := (original or {}).get(GENERATION)):
        text = json.dumps(generation, indent=2, sort_keys=True) + "\n"
        (folder / GENERATION).write_text(text, encoding="utf-8")
        names.append(GENERATION)
    return Exported(folder, family, tuple(names), len(tensors))


def _merged(program: Program, arrays: Mapping[str, Any]) -> dict[str, Any]:
    # `merge_adapters` returns parameters only; variables (statistics, held copies) are added back.
    structure, parameters, _ = split(abstract_model(program.experiment))
    merged = merge_adapters(structure.merge(arrays))
    return merged | {name: array for name, array in arrays.items() if name not in parameters}


def _known(
    program: Program, arrays: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings that the experiment knows, and the model does not."""
    data = program.experiment.data
    settings: dict[str, Any] = {"dtype": str(jnp.result_type(*arrays.values()))}
    length = getattr(data, "tokens_per_row", None)
    # Rotary models have no table of positions: the longest row is known to the data alone.
    if length is not None and any(name.startswith("rope_") for name in config):
        settings["max_position_embeddings"] = int(length)
    tokenizer = getattr(data, "tokenizer", None)
    if tokenizer is not None:
        settings |= {"bos_token_id": int(tokenizer.bos), "eos_token_id": int(tokenizer.eos)}
    return settings


def _kept(
    original: Mapping[str, Any],
    known: Mapping[str, Any],
    config: Mapping[str, Any],
    model: Any,
    family: str,
) -> dict[str, Any]:
    """Return the config.json of a model that started from pretrained weights.

    Args:
      original: The one that came with them; empty where there was none.
      known: Settings that the experiment knows.
      config: Settings that follow from the model.
      model: The model.
      family: Its family.
    """
    # The original has entries that no model of ours derives (a chat template's tokens, the name of
    # the architecture's revision), which readers may need. They are kept only if the merged file,
    # read again, still describes this model: a changed architecture must not inherit them.
    merged = {**original, **known, **config}
    merged.pop("torch_dtype", None)  # the old name of `dtype`, which is that of the weights now
    if not original or not describes(merged, model, family):
        return {**known, **config}
    longest = "max_position_embeddings"
    if longest in known and longest not in config:
        # Shorter rows to train on do not make a model that can read less.
        merged[longest] = max(original.get(longest) or 0, known[longest])
    for name in ("bos_token_id", "eos_token_id"):
        ids = original.get(name)
        if isinstance(ids, list) and known.get(name) in ids:
            merged[name] = ids  # several that end a row, the tokenizer's among them
    return merged


def _copy_tokenizer(
    program: Program, source: pathlib.Path | None, target: pathlib.Path
) -> list[str]:
    if source is not None and (names := foreign.copy_tokenizer(source, target)):
        return names
    tokenizer = getattr(program.experiment.data, "tokenizer", None)
    # By the class of the tokenizer and not by the name of its file: `encoder.json` is not a whole
    # tokenizer, and a model of SentencePiece may have any suffix.
    files = {
        name: pathlib.Path(os.path.expanduser(path))
        for name, path in getattr(tokenizer, "vocabulary_files", {}).items()
    }
    # Bytes have no file, and a file may be gone since: weights alone are still an export.
    if not all(path.is_file() for path in files.values()):
        return []
    for name, path in files.items():
        shutil.copyfile(path, target / name)
    return list(files)
