"""Pax: the parameters of language models in the checkpoints of Paxml, layer by layer.

JOB_LOG_DIR/checkpoints/checkpoint_00001000/state/mdl_vars.params.lm.final_ln.scale/.zarray, or one
OCDBT store of such names in `state`, or a file of safetensors that `dump_pax.py` wrote.

Layers are unrolled (`x_layers_3`), or several that Pax repeats (`repeat.sub.x_layers_0`, with a
leading axis), or those of the stages of a pipeline.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from luthier.checkpoint.foreign import stored
from luthier.checkpoint.foreign.family import Index
from luthier.checkpoint.foreign.safetensors_folder import Tensors
from luthier.checkpoint.foreign.stored import StoredArray, layer_of, reordered
from luthier.errors import CheckpointError, Problem

_MANIFEST = "manifest.ocdbt"
_PARAMETER = re.compile(r"(?:mdl_vars\.)?params\.(lm\..+)")
_AVERAGE = re.compile(r"opt_states_\d+\.(?:no_prefix|p#[^.]*)_\d+\.ema\.params\.(lm\..+)")
_LAYER = re.compile(
    r"(lm\.transformer\.)((?:pipeline\.body\.)?(?:repeat\.sub\.)?)x_layers_(\d+)\.(.+)"
)
_NORMS = ("layer_norm", "pre_layer_norm")
_JOINED = "self_attention.combined_qkv."
# Everything whose last dimension is rotated, or multiplied with what is rotated: all of it must be
# reordered alike.
_ROTATED = re.compile(
    r"self_attention\.(?:(?:query|key)\.[wb]|combined_qkv\.[wb]\[[01]\]|"
    r"per_dim_scale\.per_dim_scale|layer_norm_[qk]\.(?:scale|bias))"
)


@dataclasses.dataclass(frozen=True)
class PaxParameters:
    """The parameters of a model of Pax, of which none is read yet.

    Args:
      arrays: Arrays by name; those of layers as if none were stacked, see `of_layer`.
      parts: One array of every part of a layer, by the name of the part.
      labels: Names of the arrays in the checkpoint, with the place in it in brackets.
    """

    arrays: Mapping[str, StoredArray]
    parts: Mapping[str, StoredArray]
    labels: Mapping[str, str]


def read(path: pathlib.Path, averages: bool = False, interleaved: bool = False) -> PaxParameters:
    """Return the parameters of a checkpoint; nothing else of it.

    Args:
      path: A job's folder or its `checkpoints` (the last step is read), one checkpoint, its
        `state`, or a file of safetensors.
      averages: Whether to read the moving averages instead of the parameters.
      interleaved: Whether the two numbers of a rotated pair are adjacent, as with
        `LLaMARotaryEmbedding`.

    Raises:
      CheckpointError: There is no checkpoint, or it is damaged.
    """
    # Only names that match are opened: a checkpoint also holds the optimizer's state, which is
    # larger than the parameters.
    pattern = _AVERAGE if averages else _PARAMETER
    there = _safetensors(path) if path.is_file() else _arrays(state_of(path), pattern)
    found = {match[1]: array for name, array in there if (match := pattern.fullmatch(name))}
    if not found:
        kind = "moving averages" if averages else "parameters"
        remedy = "leave averages out" if averages else "give the folder of a job's checkpoints"
        what = f"{path} holds no {kind} of a language model of Pax"
        raise CheckpointError(Problem(what, remedy=remedy))
    return _by_layer(found, interleaved)


def of_layer(part: str, layer: int | str = "{layer}") -> str:
    """Return the name of a part of a layer; `{layer}` stands for the number of any.

    Args:
      part: The part: `ff_layer.layer_norm.scale`.
      layer: The number of the layer.
    """
    return f"lm.transformer.x_layers_{layer}.{part}"


def state_of(path: pathlib.Path) -> pathlib.Path:
    """Return the folder of a checkpoint's arrays: of the last step, where several are below.

    Args:
      path: A job's folder, its `checkpoints`, one checkpoint, or the `state` in it.
    """
    # Whatever folder of a job the user names, the state of its last checkpoint is below it.
    for below in ("checkpoints", "state"):
        if (path / below).is_dir():
            return state_of(path / below)
    last = stored.newest(path, "checkpoint_") or stored.newest(path)
    return path if last is None else state_of(last)


def _arrays(state: pathlib.Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, StoredArray]]:
    """Yield the arrays of a folder whose names match, by their names there."""
    if (state / _MANIFEST).is_file():
        yield from _of_database(state, pattern)
        return
    for folder in sorted(state.iterdir()):
        if pattern.fullmatch(folder.name) and (folder / ".zarray").is_file():
            yield folder.name, stored.zarr(folder)


def _of_database(
    state: pathlib.Path, pattern: re.Pattern[str]
) -> Iterator[tuple[str, StoredArray]]:
    import tensorstore

    base = {"driver": "file", "path": f"{state}/"}
    try:
        store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
        keys = [key.decode() for key in store.list().result()]
        names = [key.rpartition("/")[0] for key in keys if key.endswith("/.zarray")]
        for name in sorted(filter(pattern.fullmatch, names)):
            inside = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
            spec = {"driver": "zarr", "kvstore": inside}
            yield name, _opened(tensorstore.open(spec, read=True, open=True).result())
    except (ValueError, OSError) as error:
        message = " ".join(str(error).split())[:200]
        raise CheckpointError(Problem(f"{state} cannot be read: {message}")) from None


def _opened(store: Any) -> StoredArray:
    def read(index: Index) -> np.ndarray:
        return np.asarray(store[index].read().result())

    return StoredArray(tuple(store.shape), str(store.dtype.name), read)


def _safetensors(path: pathlib.Path) -> Iterator[tuple[str, StoredArray]]:
    """Yield the arrays of a file, which is opened again for every block that is read."""
    with Tensors(path) as tensors:
        described = dict(tensors.described)

    def array(name: str) -> StoredArray:
        def read(index: Index) -> np.ndarray:
            # Opened for each block: the arrays outlive this function, and an open file would have
            # no owner.
            with Tensors(path) as again:
                return again.read(name, index)

        return StoredArray(described[name].shape, described[name].dtype, read)

    for name in sorted(described):
        yield name, array(name)


def _by_layer(found: Mapping[str, StoredArray], interleaved: bool) -> PaxParameters:
    """Return arrays with those of several layers cut into layers."""
    places = {name: match for name in found if (match := _LAYER.fullmatch(name))}
    kinds = {int(match[3]) for match in places.values()}
    arrays = {name: array for name, array in found.items() if name not in places}
    labels = {name: name for name in arrays}
    parts: dict[str, StoredArray] = {}
    for name, match in places.items():
        axes = _leading(found, name, match[4]) if match[2] else 0
        sizes = found[name].shape[:axes]
        for turn in range(math.prod(sizes)):
            one, label = found[name], name
            for index in np.unravel_index(turn, sizes) if axes else ():
                one, label = layer_of(one, 0, int(index)), f"{label}[{index}]"
            # Scanned layers of Pax: `x_layers_0` to `x_layers_K-1` are the kinds of layers in one
            # repetition, and each is stacked over the repetitions (and over pipeline stages).
            layer = turn * len(kinds) + int(match[3])
            for part, array in _split(match[4], one, interleaved):
                own = of_layer(part, layer)
                arrays[own] = parts[part] = array
                labels[own] = label + part.removeprefix(match[4])
    return PaxParameters(arrays, parts, labels)


def _leading(found: Mapping[str, StoredArray], name: str, part: str) -> int:
    """Return how many axes are those of repeats and stages: all but one of a norm's scale."""
    beginning = name.removesuffix(part)
    scales = [found.get(f"{beginning}{norm}.scale") for norm in _NORMS]
    # The scale of a norm is a vector for each layer; all of its other axes are leading ones.
    return next((len(scale.shape) - 1 for scale in scales if scale is not None), 1)


def _split(part: str, array: StoredArray, interleaved: bool) -> Iterator[tuple[str, StoredArray]]:
    """Yield a part of a layer; queries, keys and values apart: `...combined_qkv.w[0]`."""
    if part.startswith(_JOINED) and array.shape[:1] == (3,):
        pieces = [(f"{part}[{place}]", layer_of(array, 0, place)) for place in range(3)]
    else:
        pieces = [(part, array)]
    for name, piece in pieces:
        if interleaved and _ROTATED.fullmatch(name):
            size = piece.shape[-1]
            # Ours rotates the first half of a head with the second: even places come first, then
            # the odd ones.
            order = np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)])
            piece = reordered(piece, order)
        yield name, piece
