"""T5X: encoders with decoders, in its own layout (msgpack beside zarr arrays) and in Orbax's.

checkpoint_1000/checkpoint        flax's msgpack, with a note for every array that lies beside it
checkpoint_1000/target.encoder.encoder_norm.scale/   such an array
checkpoint_1000/state/_METADATA   where Orbax wrote it
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from luthier.checkpoint import Importer, Init, Rule, Take
from luthier.checkpoint.foreign import stored
from luthier.checkpoint.foreign.family import Family, Tensor, tensor
from luthier.checkpoint.foreign.stored import StoredArray, in_memory
from luthier.checkpoint.restore.rules import ADAPTERS
from luthier.errors import CheckpointError, Problem

_TARGET = "target"
_STATE = "state"
_IN = "embed (heads head_dim) -> embed heads head_dim"
_OUT = "(heads head_dim) embed -> heads head_dim embed"


def _attention(foreign: str, ours: str) -> tuple[Tensor, ...]:
    # T5X stores the kernels of attention as matrices; the number of heads is taken from our model.
    names = {"query": ("query", _IN), "key": ("key", _IN), "value": ("value", _IN)}
    names["out"] = ("output", _OUT)
    return tuple(
        tensor(f"{foreign}/{theirs}/kernel", f"{ours}.{name}.kernel", layout)
        for theirs, (name, layout) in names.items()
    )


def _tensors(up: Mapping[str, str]) -> tuple[Tensor, ...]:
    """Return all tensors; `up` maps their input kernels of the feed-forward parts to ours."""
    # `rel_embedding` belongs to the stack: T5 shares one table of position biases between the
    # layers of an encoder, another between those of a decoder; cross attention has none.
    tensors = [
        tensor("token_embedder/embedding", "embedding.table", "vocab embed"),
        tensor("decoder/logits_dense/kernel", "unembedding.kernel", "embed vocab"),
    ]
    for stack, own in (("encoder", "attention"), ("decoder", "self_attention")):
        foreign, ours = f"{stack}/layers_{{layer}}", f"{stack}.blocks.{{layer}}"
        tensors += [
            *_attention(f"{foreign}/{own}", f"{ours}.attention"),
            tensor(f"{foreign}/pre_{own}_layer_norm/scale", f"{ours}.attention_norm.scale", "dim"),
            tensor(f"{foreign}/pre_mlp_layer_norm/scale", f"{ours}.mlp_norm.scale", "dim"),
            *(
                tensor(f"{foreign}/mlp/{theirs}/kernel", f"{ours}.mlp.{name}.kernel", "embed mlp")
                for theirs, name in up.items()
            ),
            tensor(f"{foreign}/mlp/wo/kernel", f"{ours}.mlp.down.kernel", "mlp embed"),
            tensor(f"{stack}/{stack}_norm/scale", f"{stack}.norm.scale", "dim"),
            tensor(
                f"{stack}/relpos_bias/rel_embedding",
                f"{stack}.bias.table",
                "heads buckets -> buckets heads",
            ),
        ]
    foreign, ours = "decoder/layers_{layer}", "decoder.blocks.{layer}"
    return (
        *tensors,
        *_attention(f"{foreign}/encoder_decoder_attention", f"{ours}.cross_attention"),
        tensor(
            f"{foreign}/pre_cross_attention_layer_norm/scale", f"{ours}.cross_norm.scale", "dim"
        ),
    )


def _family(name: str, up: Mapping[str, str]) -> Family:
    return Family(name, (), "", _tensors(up))


_PLAIN = _family("t5x", {"wi": "up"})
_GATED = _family("t5x, gated", {"wi_0": "gate", "wi_1": "up"})


def family_of(names: Iterable[str]) -> Family:
    """Return the map for some arrays: their feed-forward parts are plain, or gated as from 1.1 on.

    Args:
      names: Their names.
    """
    return _GATED if any("/mlp/wi_0/" in name for name in names) else _PLAIN


def read(path: pathlib.Path) -> dict[str, StoredArray]:
    """Return the parameters of a checkpoint; the optimizer's state is left.

    Args:
      path: The folder `checkpoint_1000`, or the one that it is in: then its last one.

    Raises:
      CheckpointError: The checkpoint does not exist or is damaged.
    """
    # T5X wrote its own layout first: flax's msgpack with small arrays in it, and a note for each
    # large one that lies beside it in zarr. Later versions write Orbax trees below `state`.
    folder = stored.newest(path, "checkpoint_") or path
    if (folder / _STATE).is_dir():
        return stored.orbax_tree(folder / _STATE, (_TARGET,))
    if not (folder / stored.MSGPACK).is_file():
        what = f"{path} holds no checkpoint of T5X"
        remedy = "give the folder checkpoint_N, or the one that it is in"
        raise CheckpointError(Problem(what, remedy=remedy))
    content = stored.msgpack_tree(folder / stored.MSGPACK)
    try:
        leaves = dict(stored.flat(content["optimizer"][_TARGET]))
    except (KeyError, TypeError, AttributeError):
        what = f"{folder / stored.MSGPACK} holds no optimizer with a target"
        remedy = "checkpoints of T5X of version 2 or later have one"
        raise CheckpointError(Problem(what, remedy=remedy)) from None
    return {name: _array(folder, name, leaf) for name, leaf in leaves.items()}


def _array(folder: pathlib.Path, name: str, leaf: Any) -> StoredArray:
    """Return an array of the msgpack file, or one in a folder beside it that a note refers to."""
    if not isinstance(leaf, Mapping):
        return in_memory(np.asarray(leaf))
    # The note is a TensorStore spec with the path from the time of writing, often in a bucket that
    # is out of reach or has moved. Only its last part counts: the folder lies beside the note.
    path = leaf["kvstore"].get("path") or leaf.get("path", "")  # as older tensorstores have it
    beside = folder / pathlib.PurePosixPath(path.rstrip("/")).name
    if not path or not beside.is_dir():
        what = f"{folder} lacks the array of {name}: {beside.name or 'it is not recorded where'}"
        raise CheckpointError(Problem(what, remedy="fetch the whole folder again"))
    return stored.zarr(beside)


@dataclasses.dataclass(frozen=True)
class T5X(Importer):
    """Starts from a checkpoint of T5X: an encoder with a decoder, as its own files or as Orbax's.

    On the command line `restore=t5x:DIR` is the same as
    `restore=luthier.contrib.importers.T5X("DIR")`.

    Args:
      directory: The folder `checkpoint_N`, or the one that it is in.
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
