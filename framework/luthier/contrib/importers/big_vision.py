"""big_vision: vision transformers in npz files with slashes in their keys, or folders of arrays.

vit_b16.npz with params/Transformer/encoderblock_0/LayerNorm_0/scale, and without `params/` too
checkpoint.bv-000001000/params~Transformer~encoderblock_0~LayerNorm_0~scale/
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from luthier.checkpoint import Importer, Init, Rule, Take
from luthier.checkpoint.foreign import stored
from luthier.checkpoint.foreign.family import Family, Tensor, tensor
from luthier.checkpoint.foreign.stored import StoredArray, in_memory, layer_of, with_first
from luthier.checkpoint.restore.rules import ADAPTERS
from luthier.errors import CheckpointError, Problem

_POSITIONS = "pos_embedding"
_CLASS = "cls"
_BLOCK = "Transformer/encoderblock"
_SCANNED = re.compile(rf"{_BLOCK}/(.+)")
_OURS = "blocks.{layer}"

# Old versions of flax numbered the unnamed modules of a block through, newer ones each class by
# itself. Released checkpoints have both.
_OLD = {"MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0"}
_OLD |= {"LayerNorm_2": "LayerNorm_1", "MlpBlock_3": "MlpBlock_0"}

_IN = {"kernel": "embed heads head_dim", "bias": "heads head_dim"}
_OUT = {"kernel": "heads head_dim embed", "bias": "embed"}


def _tensors(at: Callable[[str], str]) -> tuple[Tensor, ...]:
    """Return all tensors; `at` maps the name of a layer's part to that in the checkpoint."""
    # Attention kernels have heads as a dimension on both sides, so their shapes need no change. The
    # layout strings are patterns of `foreign.family.tensor`: theirs -> ours where they differ.
    # A file need not hold all of them: some have no head, others no class token. Names outside of
    # the blocks are the same in scanned and unrolled models, so they do not go through `at`.
    norms = {"LayerNorm_0": "attention_norm", "LayerNorm_1": "mlp_norm"}
    dense = {"Dense_0": "up", "Dense_1": "down"}
    attention = "MultiHeadDotProductAttention_0"
    tensors = [
        tensor("embedding/kernel", "embedding.kernel", "height width channels embed"),
        tensor("embedding/bias", "embedding.bias", "embed"),
        tensor(_POSITIONS, "embedding.positions", "1 length embed -> length embed"),
        tensor(_CLASS, "pooling.token", "1 1 embed -> embed"),
        tensor("head/kernel", "head.kernel", "embed classes"),
        tensor("head/bias", "head.bias", "classes"),
    ]
    for name in ("scale", "bias"):
        tensors.append(tensor(f"Transformer/encoder_norm/{name}", f"norm.{name}", "dim"))
        tensors += [
            tensor(at(f"{theirs}/{name}"), f"{_OURS}.{ours}.{name}", "dim")
            for theirs, ours in norms.items()
        ]
    for name in ("kernel", "bias"):
        layout = "inputs outputs" if name == "kernel" else "outputs"
        tensors += [
            tensor(at(f"MlpBlock_0/{theirs}/{name}"), f"{_OURS}.mlp.{ours}.{name}", layout)
            for theirs, ours in dense.items()
        ]
        tensors += [
            tensor(at(f"{attention}/{part}/{name}"), f"{_OURS}.attention.{part}.{name}", _IN[name])
            for part in ("query", "key", "value")
        ]
        output = at(f"{attention}/out/{name}")
        tensors.append(tensor(output, f"{_OURS}.attention.output.{name}", _OUT[name]))
    return tuple(tensors)


# Without model types and architecture, since big_vision has no config.json that could name them.
_UNROLLED = Family("big_vision", (), "", _tensors(lambda part: f"{_BLOCK}_{{layer}}/{part}"))
_STACKED = Family(
    "big_vision, scanned", (), "", _tensors(lambda part: f"{_BLOCK}/{part}[{{layer}}]")
)


def family_of(names: Iterable[str]) -> Family:
    """Return the map for some arrays: their layers have arrays of their own, or are stacked.

    Args:
      names: Their names.
    """
    # A scanned model has one `encoderblock`, an unrolled one `encoderblock_0`, `encoderblock_1`,
    # ...
    return _STACKED if any(name.startswith(f"{_BLOCK}/") for name in names) else _UNROLLED


def read(path: pathlib.Path) -> dict[str, StoredArray]:
    """Return the parameters of a checkpoint; the optimizer's state is left.

    Args:
      path: The npz file, or the folder; behind a colon the part of a model of several, as
        `siglip.npz:img`.

    Raises:
      CheckpointError: The checkpoint does not exist or is damaged.
    """
    # The formats of several years of one codebase: npz files with or without `params/` in front
    # (with `opt/target/` where the whole state of training was saved), and a folder with a zarr
    # array for each leaf, whose names have `~` for the slash. A two-tower model holds the vision
    # transformer below `img`. All become one mapping from names with slashes to arrays.
    file, _, part = str(path).partition(":")
    place = pathlib.Path(file)
    if place.is_dir():
        folders = [entry for entry in place.iterdir() if entry.name.startswith("params~")]
        arrays = {entry.name.replace("~", "/"): stored.zarr(entry) for entry in folders}
    else:
        arrays = stored.npz(place)
    for beginning in ("params/", "opt/target/"):
        # Where nothing lies below it, the prefix is not of this file.
        below = _below(arrays, beginning)
        arrays = below or arrays
    arrays = _below(arrays, f"{part}/") if part else arrays
    if not any(name.startswith("Transformer/") for name in arrays):
        parts = sorted({name.partition("/")[0] for name in arrays})
        what = f"{path} holds no vision transformer"
        remedy = f"name a part of it: {file}:{parts[0]}" if parts else "give the npz file"
        raise CheckpointError(Problem(what, remedy=remedy))
    return _layers(_renamed(arrays))


def _below(arrays: Mapping[str, StoredArray], beginning: str) -> dict[str, StoredArray]:
    return {n.removeprefix(beginning): a for n, a in arrays.items() if n.startswith(beginning)}


def _renamed(arrays: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Return the arrays under the names of today, and positions as we hold them.

    The first programs had the class token among the patches when positions were added; later ones
    put it before them afterwards, so that it has none.
    """
    # `has_all`: whether the positions are those of the first programs, which include the class
    # token.
    renamed = {}
    has_all = False
    for name, array in arrays.items():
        new = "/".join(_OLD.get(part, part) for part in name.split("/"))
        if new in (f"Transformer/posembed_input/{_POSITIONS}", f"Transformer/{_POSITIONS}"):
            new, has_all = _POSITIONS, True
        renamed[new] = array
    if _POSITIONS in renamed and _CLASS in renamed and not has_all:
        positions = renamed[_POSITIONS]
        # The shape decides as well: a grid of patches is square, so that a square plus one has a
        # row for the class token already.
        if math.isqrt(positions.shape[1]) ** 2 + 1 != positions.shape[1]:
            # Zero adds nothing: the class token keeps having no position.
            none = in_memory(np.zeros((1, 1, positions.shape[2]), np.float32))
            renamed[_POSITIONS] = with_first(none, positions)
    return renamed


def _layers(arrays: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Return the arrays with stacked ones split into their layers."""
    # As views: `layer_of` reads nothing until a block of the layer is asked for, so that a process
    # reads only what its devices hold.
    layers: dict[str, StoredArray] = {}
    for name, array in arrays.items():
        if _SCANNED.fullmatch(name):
            layers |= {f"{name}[{i}]": layer_of(array, 0, i) for i in range(array.shape[0])}
        else:
            layers[name] = array
    return layers


@dataclasses.dataclass(frozen=True)
class BigVision(Importer):
    """Starts from a vision transformer of big_vision: an npz file, or a folder of arrays.

    On the command line `restore=big_vision:FILE` is the same as
    `restore=luthier.contrib.importers.BigVision("FILE")`.

    Args:
      directory: The file or folder; behind a colon the part of a model of several, as
        `siglip.npz:img`.
      rules: Rules that take, initialize or skip parameters; the first match decides. By default
        all are taken except adapters.
    """

    directory: str
    rules: Sequence[Rule] = (Init(ADAPTERS), Take())

    def read_arrays(self, path: pathlib.Path) -> tuple[Mapping[str, StoredArray], Family]:
        """Return the arrays of a checkpoint, and their map. Raises as `Importer.read_arrays`.

        Args:
          path: `directory`; it or what is before its colon exists.

        Returns:
          Arrays by their names, which are read when they are used; and the map to ours.
        """
        arrays = read(path)
        return arrays, family_of(arrays)
