"""Reads the tensors of a file that PyTorch's `torch.save` wrote, without PyTorch.

Such a file holds a pickle, which could call anything. This reader knows the few names that rebuild
tensors, and refuses a file that asks for any other, before it is called. Both forms are read: the
zip archive of PyTorch 1.6 and later, and the bare pickles of earlier versions.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from luthier.errors import CheckpointError, Problem

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001

_STORAGES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}


def read_torch_file(path: str | Path) -> dict[str, np.ndarray]:
    """Read all tensors of a file such as `pytorch_model.bin`.

    Args:
      path: The file.

    Returns:
      Array by name; names of nested dictionaries are joined by a dot, and what is no tensor is
      left out. Names that share a tensor share the array.

    Raises:
      CheckpointError: The file is no such file, is cut off, or asks for more than tensors.
    """
    try:
        with Path(path).open("rb") as file:
            read = _read_archive if zipfile.is_zipfile(file) else _read_bare
            file.seek(0)
            content, storages = read(file)
            return {name: tensor.view(storages) for name, tensor in _tensors(content, ())}
    except FileNotFoundError:
        raise CheckpointError(Problem(f"{path} does not exist")) from None
    except _Unusable as error:
        raise CheckpointError(_problem(path, str(error))) from None
    except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise CheckpointError(_problem(path, f"it cannot be read ({error})")) from error
    except Exception as error:  # a pickle that is no pickle fails in any way
        what = f"it cannot be read ({type(error).__name__}: {error})"
        raise CheckpointError(_problem(path, what)) from error


def _problem(path: str | Path, what: str) -> Problem:
    remedy = (
        "it must be a dictionary of tensors that torch.save wrote; or convert it to safetensors"
    )
    return Problem(f"{path}: {what}", remedy=remedy)


class _Unusable(Exception):
    """The file is readable, but holds what is not served."""


@dataclasses.dataclass(frozen=True)
class _Storage:
    """A reference to the bytes of tensors: their key in the file, and their type."""

    key: str
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A tensor as the pickle tells it: a window on a storage, in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, storages: Mapping[str, bytes]) -> np.ndarray:
        dtype = self.storage.dtype
        data = storages.get(self.storage.key)
        if data is None:
            raise _Unusable(f"the storage {self.storage.key!r} is missing")
        flat = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
        if 0 in self.shape:
            return np.zeros(self.shape, dtype)
        lengths = (*self.shape, *self.strides, self.offset)
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        if min(lengths) < 0 or self.offset + reach >= flat.size:
            raise _Unusable(f"a tensor reaches beyond its storage {self.storage.key!r}")
        strides = tuple(s * dtype.itemsize for s in self.strides)
        window = np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, strides)
        return np.ascontiguousarray(window).reshape(self.shape)


def _rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise _Unusable("a tensor has no storage")
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
}


class _Unpickler(pickle.Unpickler):
    """Knows the names that rebuild tensors, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        found = _ALLOWED.get((module, name))
        if found is None:
            raise _Unusable(f"it asks for {module}.{name}, which is not of a tensor")
        return found

    def persistent_load(self, identity: Any) -> _Storage:
        kind, dtype, key, *_ = identity
        if kind != "storage" or not isinstance(dtype, np.dtype):
            raise _Unusable(f"it refers to a {kind!r}, not to a storage")
        return _Storage(str(key), dtype)


def _read_archive(file: BinaryIO) -> tuple[Any, dict[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        pickles = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1:
            raise _Unusable("it is a zip archive without a single data.pkl")
        folder = pickles[0].removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in names and archive.read(order) != b"little":
            raise _Unusable("its numbers are not little-endian")
        content = _Unpickler(io.BytesIO(archive.read(pickles[0]))).load()
        prefix = f"{folder}data/"
        wanted = {tensor.storage.key for _, tensor in _tensors(content, ())}
        present = wanted & {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        return content, {key: archive.read(prefix + key) for key in sorted(present)}


def _read_bare(file: BinaryIO) -> tuple[Any, dict[str, bytes]]:
    if _Unpickler(file).load() != _MAGIC or _Unpickler(file).load() != _PROTOCOL:
        raise _Unusable("it is no file of torch.save")
    if not _Unpickler(file).load().get("little_endian"):
        raise _Unusable("its numbers are not little-endian")
    content = _Unpickler(file).load()
    keys = _Unpickler(file).load()
    sizes = {tensor.storage.key: tensor.storage.dtype for _, tensor in _tensors(content, ())}
    storages = {}
    for key in keys:
        count = int(np.frombuffer(_exactly(file, 8), "<i8")[0])
        if key not in sizes:
            raise _Unusable(f"the storage {key!r} is of no tensor")
        storages[key] = _exactly(file, count * sizes[key].itemsize)
    return content, storages


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size) if size >= 0 else b""
    if len(data) != size:
        raise _Unusable("it is cut off")
    return data


def _tensors(content: Any, names: tuple[str, ...]) -> Iterator[tuple[str, _Tensor]]:
    if isinstance(content, _Tensor):
        yield ".".join(names), content
    elif isinstance(content, Mapping):
        for name, value in content.items():
            yield from _tensors(value, (*names, str(name)))
