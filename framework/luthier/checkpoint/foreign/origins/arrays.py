"""Arrays of a foreign checkpoint by name, whatever they are stored in; read by blocks, when asked.

Views make one layer of a stack, a multiple, or another order of numbers look like an array too.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from luthier.checkpoint.foreign.family import Index, Shape
from luthier.checkpoint.foreign.safetensors_folder import Described


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


class StoredArrays:
    """The arrays of a checkpoint by name, as weights of a family are read.

    Args:
      path: Where they are.
      arrays: What is there.
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
    """Return an array that is in memory."""
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
