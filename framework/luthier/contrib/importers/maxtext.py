"""MaxText: decoders like Llama's in Orbax checkpoints, whose layers are mostly stacked.

checkpoints/1000/items/_METADATA, with params.params.decoder.layers.mlp.wi_0.kernel

Attention there does not divide by the root of a head's size: it is in the weights of the queries,
but for models with norms of queries and keys. Where `rope_type` is `llama3.1`, the two numbers that
are rotated together stand side by side; ours are half a head apart.
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
from luthier.checkpoint.foreign.stored import StoredArray, layer_of, multiple, reordered
from luthier.checkpoint.restore.rules import ADAPTERS
from luthier.errors import CheckpointError, Problem

_LAYERS = "decoder/layers"
_SCANNED = re.compile(rf"{_LAYERS}/(.+)")
_ROTATED = re.compile(r".*self_attention/(?:query|key)(?:_norm)?/(?:kernel|scale)(?:\[\d+\])?")
_QUERY = re.compile(r".*self_attention/query/kernel(?:\[\d+\])?")
_OURS = "blocks.{layer}"


def _tensors(at: Callable[[str], str]) -> tuple[Tensor, ...]:
    """Return all tensors; `at` maps the name of a layer's part to that in the checkpoint."""
    # A superset for all decoders of this shape: norms of queries and keys and the unembedding are
    # matched only where the checkpoint has them (a tied model has no `logits_dense`).
    attention = dict.fromkeys(("query", "key", "value"), "embed heads head_dim")
    mlp = {"wi_0": ("gate", "embed mlp"), "wi_1": ("up", "embed mlp"), "wo": ("down", "mlp embed")}
    norms = {"pre_self_attention_layer_norm": "attention_norm"}
    norms |= {"post_self_attention_layer_norm": "mlp_norm"}
    norms |= {f"self_attention/{n}_norm": f"attention.query_key.{n}_norm" for n in ("query", "key")}
    return (
        tensor("token_embedder/embedding", "embedding.table", "vocab embed"),
        tensor("decoder/decoder_norm/scale", "norm.scale", "dim"),
        tensor("decoder/logits_dense/kernel", "unembedding.kernel", "embed vocab"),
        *(
            tensor(at(f"self_attention/{name}/kernel"), f"{_OURS}.attention.{name}.kernel", layout)
            for name, layout in attention.items()
        ),
        tensor(
            at("self_attention/out/kernel"),
            f"{_OURS}.attention.output.kernel",
            "heads head_dim embed",
        ),
        *(
            tensor(at(f"mlp/{theirs}/kernel"), f"{_OURS}.mlp.{ours}.kernel", layout)
            for theirs, (ours, layout) in mlp.items()
        ),
        *(
            tensor(at(f"{theirs}/scale"), f"{_OURS}.{ours}.scale", "dim")
            for theirs, ours in norms.items()
        ),
    )


_UNROLLED = Family("maxtext", (), "", _tensors(lambda part: f"{_LAYERS}_{{layer}}/{part}"))
_STACKED = Family("maxtext, scanned", (), "", _tensors(lambda part: f"{_LAYERS}/{part}[{{layer}}]"))


def family_of(names: Iterable[str]) -> Family:
    """Return the map for some arrays: their layers have arrays of their own, or are stacked.

    Args:
      names: Their names.
    """
    # A scanned model has one `layers`, an unrolled one `layers_0`, `layers_1`, ...
    return _STACKED if any(name.startswith(f"{_LAYERS}/") for name in names) else _UNROLLED


def read(
    path: pathlib.Path, scan_axis: int = 1, interleaved: bool = False
) -> dict[str, StoredArray]:
    """Return the parameters of a checkpoint; the optimizer's state is left.

    Args:
      path: The folder of a step, the one that all steps are in (its last one is read), or the one
        with the items.
      scan_axis: The dimension of the layers where they are stacked: `param_scan_axis`.
      interleaved: Whether the numbers that are rotated together stand side by side.

    Raises:
      CheckpointError: The checkpoint does not exist or is damaged.
    """
    # Three differences beyond names, none of which a checkpoint records: where the layers are, in
    # which order a head's elements are rotated, and where the scale of attention went. The first
    # two are settings of the user's, who has MaxText's config; the third follows from the norms.
    #
    # `params` twice: a training state's field, and the collection of flax in it.
    arrays: dict[str, StoredArray] = {}
    for name, array in stored.orbax_tree(_items(path), ("params", "params")).items():
        if _SCANNED.fullmatch(name):
            if len(array.shape) <= scan_axis:
                what = f"{name} {list(array.shape)} has no dimension {scan_axis} of layers"
                raise CheckpointError(Problem(what, "restore.scan_axis", remedy="set it to 0"))
            layers = range(array.shape[scan_axis])
            arrays |= {f"{name}[{layer}]": layer_of(array, scan_axis, layer) for layer in layers}
        else:
            arrays[name] = array
    has_norms = any("/query_norm/" in name for name in arrays)
    return {name: _as_ours(name, array, has_norms, interleaved) for name, array in arrays.items()}


def _as_ours(name: str, array: StoredArray, has_norms: bool, interleaved: bool) -> StoredArray:
    """Return an array with the scale and the order of ours."""
    if interleaved and _ROTATED.fullmatch(name):
        size = array.shape[-1]
        # From neighbours that are rotated together to our halves: even elements, then odd ones. The
        # same permutation of queries and keys (and of their norms' scales) leaves their products as
        # they are, so that values and the output need no change.
        array = reordered(array, np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)]))
    if _QUERY.fullmatch(name) and not has_norms:
        # MaxText has the scale 1 / sqrt(head_dim) of attention in its query kernels, unless queries
        # are normalized; ours scales in attention.
        array = multiple(array, math.sqrt(array.shape[-1]))
    return array


def _items(path: pathlib.Path) -> pathlib.Path:
    # The user may name the run, its `checkpoints`, a step, or the items in it. `default` is the
    # name that Orbax gives to the only item of a step.
    folder = stored.newest(path) or stored.newest(path / "checkpoints") or path
    for place in (folder / "items", folder / "default", folder):
        if (place / stored.METADATA).is_file() or (place / stored.MSGPACK).is_file():
            return place
    what = f"{path} holds no checkpoint of MaxText"
    remedy = "give the folder of a step, such as checkpoints/1000, or that of all steps"
    raise CheckpointError(Problem(what, remedy=remedy))


@dataclasses.dataclass(frozen=True)
class MaxText(Importer):
    """Starts from a checkpoint of MaxText: a decoder like Llama's or Mistral's, as Orbax wrote it.

    On the command line `restore=maxtext:DIR` is the same as
    `restore=luthier.contrib.importers.MaxText("DIR")`.

    Args:
      directory: The folder of a step, or the one that all steps are in.
      scan_axis: The dimension of the layers where they are stacked: its `param_scan_axis`.
      interleaved: Whether the two numbers of a rotated pair are adjacent, as where `rope_type` is
        `llama3.1`.
      rules: Rules that take, initialize or skip parameters; the first match decides. By default
        all are taken except adapters.
    """

    directory: str
    scan_axis: int = 1
    interleaved: bool = False
    rules: Sequence[Rule] = (Init(ADAPTERS), Take())

    def read_arrays(self, path: pathlib.Path) -> tuple[Mapping[str, StoredArray], Family]:
        """Return the arrays of a checkpoint, and their map. Raises as `Importer.read_arrays`.

        Args:
          path: `directory`; it or what is before its colon exists.

        Returns:
          Arrays by their names, which are read when they are used; and the map to ours.
        """
        arrays = read(path, self.scan_axis, self.interleaved)
        return arrays, family_of(arrays)
