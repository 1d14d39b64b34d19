"""Arrays of JAX checkpoints, read by blocks: zarr, Orbax trees, flax's msgpack, npz."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from luthier.checkpoint.foreign.family import Index, Shape
from luthier.checkpoint.foreign.safetensors_folder import Described
from luthier.errors import CheckpointError, Problem

# Arrays of a foreign checkpoint by name, whatever they are stored in; read by blocks, when asked.
#
# Views make one layer of a stack, a multiple, or another order of numbers look like an array too.


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array that is not read yet.

    Args:
      shape: Its shape.
      dtype: The name of its dtype, such as `bfloat16`.
      read: Returns a block of it; the index has a start and a stop for every dimension.
    """

    shape: Shape
    dtype: str
    read: Callable[[Index], np.ndarray]


# The same interface as `safetensors_folder.Tensors`, so that a family's map reads from either.
class StoredArrays:
    """The arrays of a checkpoint by name, as weights of a family are read.

    Args:
      path: Where they are.
      arrays: Its arrays.
    """

    def __init__(self, path: pathlib.Path, arrays: Mapping[str, StoredArray]):
        self.path = path
        self.metadata: dict[str, str] = {}
        self.described = {
            name: Described(array.shape, array.dtype, path) for name, array in arrays.items()
        }
        self._arrays = arrays

    def read(self, name: str, index: Index) -> np.ndarray:
        """Return a block of an array.

        Args:
          name: The array.
          index: A start and a stop for every dimension.
        """
        return self._arrays[name].read(index)


def in_memory(values: np.ndarray) -> StoredArray:
    """Return an array that is in memory.

    Args:
      values: The arrays, by name.
    """
    return StoredArray(values.shape, str(values.dtype), values.__getitem__)


def layer_of(array: StoredArray, axis: int, layer: int) -> StoredArray:
    """Return one layer of an array that holds those of all layers.

    Args:
      array: The layers, stacked.
      axis: The dimension of the layers.
      layer: The number of the layer.
    """

    def read(index: Index) -> np.ndarray:
        # A slice of one and not a number: readers take slices only.
        whole = (*index[:axis], slice(layer, layer + 1), *index[axis:])
        return array.read(whole).squeeze(axis)

    return StoredArray((*array.shape[:axis], *array.shape[axis + 1 :]), array.dtype, read)


def multiple(array: StoredArray, factor: float) -> StoredArray:
    """Return `factor` times an array, in float32.

    Args:
      array: The array.
      factor: A number.
    """

    def read(index: Index) -> np.ndarray:
        return array.read(index).astype(np.float32) * np.float32(factor)

    return dataclasses.replace(array, read=read)


def reordered(array: StoredArray, order: np.ndarray) -> StoredArray:
    """Return an array with its last dimension in another order.

    Args:
      array: The array.
      order: For each place the number of the element that belongs there.
    """

    def read(index: Index) -> np.ndarray:
        # A block of the new order comes from all over the old one, so the last dimension is read
        # whole.
        whole = (*index[:-1], slice(0, array.shape[-1]))
        return array.read(whole)[..., order[index[-1]]]

    return dataclasses.replace(array, read=read)


def with_first(first: StoredArray, rest: StoredArray) -> StoredArray:
    """Return two arrays as one, joined along their first dimension but one.

    Args:
      first: [1, A, ...].
      rest: [1, B, ...].
    """
    shape = (rest.shape[0], first.shape[1] + rest.shape[1], *rest.shape[2:])

    def read(index: Index) -> np.ndarray:
        whole = (index[0], slice(None), *index[2:])
        return np.concatenate([_read_all(first), _read_all(rest)], axis=1)[whole][:, index[1]]

    return StoredArray(shape, rest.dtype, read)


def _read_all(array: StoredArray) -> np.ndarray:
    return array.read(tuple(slice(0, size) for size in array.shape))


# Readers of the formats of JAX checkpoints: zarr arrays, Orbax trees, flax's msgpack, npz.

METADATA = "_METADATA"
"""The file of an Orbax tree that lists its arrays."""

MSGPACK = "checkpoint"
"""The file of a tree that flax wrote, or an Orbax of its time."""

_MANIFEST = "manifest.ocdbt"
_PLACEHOLDER = "PLACEHOLDER://"


def zarr(path: pathlib.Path) -> StoredArray:
    """Return a zarr array in a folder of its own.

    Args:
      path: The folder.

    Raises:
      CheckpointError: It is not there, or damaged.
    """
    return _opened({"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}}, path)


def orbax_tree(path: pathlib.Path, below: Sequence[str]) -> dict[str, StoredArray]:
    """Return the arrays of an Orbax tree, by name with slashes.

    Args:
      path: The folder that has `_METADATA` in it, or `checkpoint` where it is older.
      below: Keys that lead to what is wanted; they are left out of the names.

    Raises:
      CheckpointError: It is not there, or damaged.
    """
    found: dict[str, StoredArray] = {}
    is_new_zarr, names = _names_of(path)
    driver = "zarr3" if is_new_zarr else "zarr"
    is_one_database = (path / _MANIFEST).is_file()
    for keys in names:
        if tuple(keys[: len(below)]) != tuple(below):
            continue
        # Orbax names arrays by their keys with dots, as folders or within one OCDBT database.
        flat = ".".join(keys)
        store: dict[str, Any] = {"driver": "file", "path": f"{path / flat}/"}
        if is_one_database:
            base = {"driver": "file", "path": f"{path}/"}
            store = {"driver": "ocdbt", "base": base, "path": f"{flat}/"}
        found["/".join(keys[len(below) :])] = _opened({"driver": driver, "kvstore": store}, path)
    return found


def msgpack_tree(path: pathlib.Path) -> Any:
    """Read a msgpack file of flax as nested dicts.

    Args:
      path: The file.

    Raises:
      CheckpointError: It is not there, or damaged.
    """
    from flax import serialization

    try:
        return serialization.msgpack_restore(path.read_bytes())
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _unreadable(path, error) from None


def npz(path: pathlib.Path) -> dict[str, StoredArray]:
    """Return the arrays of an npz file; an array is read whole, once for all its blocks.

    Args:
      path: The file.

    Raises:
      CheckpointError: It is not there, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            # Only headers: shapes are compared with the model's before anything is read.
            headers = {name: _header(archive, name) for name in archive.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None

    @functools.lru_cache(maxsize=1)
    # zip members are compressed as a whole: a block cannot be read without what is before it. One
    # array is kept, since the blocks of an array are read one after another.
    def whole(name: str) -> np.ndarray:
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            return _typed(np.lib.format.read_array(file, allow_pickle=False))

    def array(name: str, shape: tuple[int, ...], dtype: str) -> StoredArray:
        def read(index: Index) -> np.ndarray:
            return whole(name)[index]

        return StoredArray(shape, dtype, read)

    return {name.removesuffix(".npy"): array(name, *header) for name, header in headers.items()}


def flat(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dicts with their names; what describes a zarr array is a leaf.

    Args:
      tree: The dicts.
      above: The keys that lead there.
    """
    for key, value in tree.items():
        inside = isinstance(value, Mapping) and not {"driver", "kvstore"} <= set(value)
        if inside:
            yield from flat(value, (*above, str(key)))
        else:
            yield "/".join((*above, str(key))), value


def newest(path: pathlib.Path, prefix: str = "") -> pathlib.Path | None:
    """Return the folder of the greatest number in a folder: `0`, or `checkpoint_1000`.

    Args:
      path: The folder.
      prefix: The text before the numbers.
    """
    numbers = {}
    for entry in path.iterdir() if path.is_dir() else ():
        number = entry.name.removeprefix(prefix)
        if entry.name.startswith(prefix) and number.isdecimal() and entry.is_dir():
            numbers[int(number)] = entry
    return numbers[max(numbers)] if numbers else None


def _names_of(path: pathlib.Path) -> tuple[bool, list[list[str]]]:
    """Return whether the arrays of an Orbax tree are of the third zarr, and their names."""
    # Old Orbax wrote the tree as msgpack, with the arrays' names as placeholders, and those names
    # lack nothing but their prefix.
    if not (path / METADATA).is_file():
        leaves = flat(msgpack_tree(path / MSGPACK))
        own = [str(leaf) for _, leaf in leaves if str(leaf).startswith(_PLACEHOLDER)]
        return False, [name.removeprefix(_PLACEHOLDER).split(".") for name in own]
    try:
        metadata = json.loads((path / METADATA).read_text(encoding="utf-8"))
        entries = [
            entry
            for entry in metadata["tree_metadata"].values()
            if entry["value_metadata"]["value_type"] in ("jax.Array", "np.ndarray")
        ]
        names = [[str(part["key"]) for part in entry["key_metadata"]] for entry in entries]
        return bool(metadata.get("use_zarr3")), names
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path / METADATA, error) from None


def _opened(spec: Mapping[str, Any], path: pathlib.Path) -> StoredArray:
    import tensorstore

    try:
        store = tensorstore.open(dict(spec), read=True, open=True).result()
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from None

    def read(index: Index) -> np.ndarray:
        return np.asarray(store[index].read().result())

    return StoredArray(tuple(store.shape), str(store.dtype.name), read)


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], str]:
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        is_old = version == (1, 0)
        read = (
            np.lib.format.read_array_header_1_0 if is_old else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    # Reading such an array would unpickle it, which can run any code.
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    return shape, str(_typed(np.empty(0, dtype)).dtype)


def _typed(values: np.ndarray) -> np.ndarray:
    """Return an array with the type that it was saved with: npz knows no bfloat16."""
    # `np.save` writes bfloat16 as two raw bytes ("V2").
    if values.dtype.kind == "V" and values.dtype.itemsize == 2:
        import ml_dtypes

        return values.view(ml_dtypes.bfloat16)
    return values


def _unreadable(path: pathlib.Path, error: Exception) -> CheckpointError:
    message = " ".join(str(error).split())[:200]
    return CheckpointError(Problem(f"{path} cannot be read: {message}"))
