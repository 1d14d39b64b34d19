"""Folders of safetensors: read lazily; written split by size, with an index and a config."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from luthier.checkpoint.foreign.family import Family, Index, Resolved, Shape, Stacked
from luthier.errors import CheckpointError, Problem

# Reading folders of safetensors: one file, or several with an index; nothing before it is asked.
#
# model.safetensors model-00001-of-00003.safetensors ... with model.safetensors.index.json

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"
"""Settings for sampling: nothing here reads them, and they travel with the weights."""

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


@dataclasses.dataclass(frozen=True)
class Described:
    """A tensor of a file, without its content.

    Args:
      shape: Its shape.
      dtype: The name of its dtype, such as `bfloat16`.
      file: The file that it is in.
    """

    shape: Shape
    dtype: str
    file: pathlib.Path


class Tensors:
    """The tensors of a folder, by name; a context manager that keeps the files open.

    Args:
      directory: A folder, or one file of the format.

    Raises:
      CheckpointError: There is no such folder, nothing of the format in it, or a file is damaged
        or missing.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        self.path = pathlib.Path(directory).expanduser()
        self._open = contextlib.ExitStack()
        self._files: dict[pathlib.Path, Any] = {}
        self.described: dict[str, Described] = {}
        self.metadata: dict[str, str] = {}
        try:
            for path in _files(self.path):
                self._add(path)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Tensors:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def read(self, name: str, index: Index) -> np.ndarray:
        """Return a block of a tensor.

        Args:
          name: The tensor.
          index: A start and a stop for every dimension.
        """
        described = self.described[name]
        extents = [part.stop - part.start for part in index]
        if 0 in extents:
            return np.zeros(extents, np.float32)
        if not index:
            return np.asarray(self._files[described.file].get_tensor(name))
        # Only the block's bytes are read from the file.
        return self._files[described.file].get_slice(name)[index]

    def _add(self, path: pathlib.Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            file = self._open.enter_context(safe_open(path, framework="np"))
        except (OSError, SafetensorError) as error:
            what = f"{path} cannot be read: {' '.join(str(error).split())}"
            raise CheckpointError(Problem(what, remedy="fetch the file again")) from None
        self._files[path] = file
        self.metadata.update(file.metadata() or {})
        for name in file.keys():  # noqa: SIM118  # the handle is not a dict
            part = file.get_slice(name)
            kind = part.get_dtype()
            self.described[name] = Described(tuple(part.get_shape()), DTYPES.get(kind, kind), path)


def read_config(directory: str | os.PathLike[str], name: str = CONFIG) -> Mapping[str, Any] | None:
    """Return the content of a folder's `config.json`; None if the file does not exist.

    Args:
      directory: The folder.
      name: Another file of settings.

    Raises:
      CheckpointError: It is not a JSON object.
    """
    path = pathlib.Path(directory).expanduser() / name
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        raise CheckpointError(Problem(f"{path} cannot be read: {error}")) from None
    return content


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise CheckpointError(Problem(f"{path} does not exist", remedy=_suggest(path)))
    # The index first: a folder may hold both, and then model.safetensors is one of the files that
    # it names. Several files without an index are refused instead of merged: they may be
    # alternatives, such as adapters beside the model.
    if (path / INDEX).is_file():
        return _indexed(path)
    if (path / FILE).is_file():
        return [path / FILE]
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if not found:
        what, remedy = f"{path} holds no safetensors", _remedy(path)
    else:
        what = f"{path} holds {len(found)} files of safetensors and no {INDEX}"
        remedy = "name one of the files, or add the index"
    raise CheckpointError(Problem(what, remedy=remedy))


def _indexed(path: pathlib.Path) -> list[pathlib.Path]:
    try:
        weights = json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weights.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(Problem(f"{path / INDEX} cannot be read: {error!r}")) from None
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise CheckpointError(
            Problem(f"{path / name} is missing, and {INDEX} names it", remedy="fetch it again")
            for name in missing
        )
    return [path / name for name in names]


def _remedy(path: pathlib.Path) -> str:
    if list(path.glob("*.bin")):
        return "it holds PyTorch's *.bin files: convert them to safetensors first"
    return "give the folder that has model.safetensors in it"


def _suggest(path: pathlib.Path) -> str:
    import difflib

    parent = path.parent
    siblings = [p.name for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=1)
    return f"did you mean {parent / near[0]}?" if near else "give the folder of the weights"


# Writing folders of safetensors: split by size, with an index, a config and metadata.

PLAIN = "luthier"
"""The family, and the format in the metadata, of files under our own names."""

SHARD_BYTES = 5_000_000_000
"""The most bytes in one file."""

Make = Callable[[], np.ndarray]


def foreign_tensors(
    family: Family,
    arrays: Mapping[str, np.ndarray],
    stacked: Mapping[str, Stacked],
    limits: Mapping[str, int],
) -> dict[str, tuple[Shape, str, Make]]:
    """Return the tensors of a family's files for a model of ours: shape, dtype and a thunk each.

    Args:
      family: The map.
      arrays: Our parameters by name, on the host or on devices.
      stacked: Shape and stacking of each.
      limits: For dimensions that are padded in ours, their size without.

    Raises:
      CheckpointError: The family has no tensor for a parameter; all are listed.
    """
    # Nothing is converted here. Each tensor comes with a function that makes it, so that writing
    # needs host memory for one file and not for the model.
    places = family.places(stacked)
    resolved = family.resolve(places, limits)
    problems = [
        Problem(f"{name} {list(places[name].shape)} has no tensor in the {family.name} family")
        for name in resolved.unknown
    ]
    problems += [Problem(sentence) for sentence in resolved.broken]
    if problems:
        remedy = f"name another --family, or {PLAIN} for luthier's own names"
        what = f"these parameters are not those of the {family.name} family"
        raise CheckpointError([Problem(what, remedy=remedy), *problems])

    def make(foreign: str) -> np.ndarray:
        parts = []
        for name in resolved.ours_of(foreign):
            slot, view = places[name], resolved.views[name]
            own = np.asarray(slot.take(arrays[slot.parameter]))
            parts.append((view.offset, view.layout.write(own, limits), view.axis))
        # Parts of a fused tensor in the order of their offsets; a layer of a stacked parameter, or
        # one of its experts, is cut out before it comes to the host.
        parts.sort(key=lambda part: part[0])
        if len(parts) == 1:
            return parts[0][1]
        return np.ascontiguousarray(np.concatenate([p for _, p, _ in parts], axis=parts[0][2]))

    def described(foreign: str, resolved: Resolved) -> tuple[Shape, str, Make]:
        # The dtype is ours: an export does not convert. It serves to estimate sizes only, so that
        # of the first part will do for a fused tensor.
        first = places[resolved.ours_of(foreign)[0]].parameter
        dtype = str(np.dtype(arrays[first].dtype))
        return resolved.shapes[foreign], dtype, lambda: make(foreign)

    # Without `resolved.copies`: a tied head is not written. config.json says that it is tied
    # (`tie_word_embeddings`), or is of a class that ties by default.
    return {foreign: described(foreign, resolved) for foreign in sorted(resolved.shapes)}


def plain_tensors(arrays: Mapping[str, Any]) -> dict[str, tuple[Shape, str, Make]]:
    """Return our parameters as they are: shape, dtype, and how each gets to the host.

    Args:
      arrays: Parameters by name.
    """

    def described(array: Any) -> tuple[Shape, str, Make]:
        return tuple(array.shape), str(np.dtype(array.dtype)), lambda: np.asarray(array)

    return {name: described(array) for name, array in arrays.items()}


def write(
    directory: str | os.PathLike[str],
    tensors: Mapping[str, tuple[Shape, str, Make]],
    *,
    config: Mapping[str, Any] | None,
    metadata: Mapping[str, str],
    shard_bytes: int = SHARD_BYTES,
) -> list[pathlib.Path]:
    """Write a folder of safetensors; it appears whole, or not at all.

    Args:
      directory: The folder; it must not exist, or be empty.
      tensors: Shape, dtype, and how it is made, by name.
      config: The content of `config.json`; None writes no such file.
      metadata: The metadata in the header of every file.
      shard_bytes: The most bytes in one file; a larger tensor has a file of its own.

    Returns:
      The files.

    Raises:
      CheckpointError: The folder has something in it, or the disk refuses.
    """
    from safetensors import SafetensorError

    target = pathlib.Path(directory).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        what = f"{target} exists and is not empty"
        raise CheckpointError(Problem(what, remedy="name another folder with --output"))
    if target.resolve() == pathlib.Path.cwd():
        # It is replaced as a whole, which would leave processes in a folder that is gone.
        what = f"{target} is the working directory"
        raise CheckpointError(Problem(what, remedy="name a folder in it with --output"))
    # Written beside its place and renamed: a folder that was interrupted would lack files that its
    # index names. The name is random, since process ids repeat: in another container that writes
    # to the same place, and in what a process left behind that was killed.
    building = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(3).hex()}.tmp")
    try:
        building.mkdir(parents=True)
        names = _write_shards(building, tensors, metadata, shard_bytes)
        if config is not None:
            text = json.dumps(config, indent=2, sort_keys=True) + "\n"
            (building / CONFIG).write_text(text, encoding="utf-8")
            names.append(CONFIG)
        if target.exists():
            # It was empty above. `rmdir` refuses what was put into it since then; POSIX's `rename`
            # would replace an empty folder by itself, and Windows' would not.
            target.rmdir()
        os.rename(building, target)
    except (OSError, SafetensorError) as error:
        # Errors of the disk within a file of tensors are of the library's own class.
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        what = f"{target} cannot be written: {why}"
        raise CheckpointError(Problem(what, remedy="choose a place with room")) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return [target / name for name in names]


def _write_shards(
    folder: pathlib.Path,
    tensors: Mapping[str, tuple[Shape, str, Make]],
    metadata: Mapping[str, str],
    shard_bytes: int,
) -> list[str]:
    from safetensors.numpy import save_file

    # From shapes, before any tensor is made: the name of the first file holds the number of files.
    sizes = {n: int(np.prod(s)) * _itemsize(dtype) for n, (s, dtype, _) in tensors.items()}
    shards = list(_shards(sizes, shard_bytes))
    # The names that Hugging Face's loaders look for: one file without a number, or the index.
    names = [
        FILE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        for number in range(1, len(shards) + 1)
    ]
    weight_map: dict[str, str] = {}
    for file, shard in zip(names, shards, strict=True):
        # One file's worth of tensors is on the host at a time, in C order, since safetensors takes
        # the bytes of an array as they lie.
        content = {name: np.ascontiguousarray(tensors[name][2]()) for name in shard}
        save_file(content, folder / file, metadata=dict(metadata))
        weight_map |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / INDEX).write_text(text, encoding="utf-8")
        names.append(INDEX)
    return names


def _shards(sizes: Mapping[str, int], shard_bytes: int) -> Iterator[Sequence[str]]:
    shard: list[str] = []
    held = 0
    for name, size in sizes.items():
        # In the order of names, and never an empty file: a tensor larger than the limit gets one of
        # its own.
        if shard and held + size > shard_bytes:
            yield shard
            shard, held = [], 0
        shard.append(name)
        held += size
    yield shard


def _itemsize(dtype: str) -> int:
    import ml_dtypes  # noqa: F401  # numpy knows bfloat16 by its name from then on

    return np.dtype(dtype).itemsize


# The files of a tokenizer that lie beside weights, and travel with them.

NAMES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.tiktoken",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
)
"""Files that tokenizers are read from."""


def tokenizer_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the tokenizer files of a folder; an empty list if it has none.

    Args:
      directory: The folder, or a file in it.
    """
    folder = directory if directory.is_dir() else directory.parent
    return [folder / name for name in NAMES if (folder / name).is_file()]


def copy_tokenizer(source: pathlib.Path, target: pathlib.Path) -> list[str]:
    """Copy the files of a tokenizer from one folder to another.

    Args:
      source: A folder, or a file in it.
      target: A folder; made where there is something to copy.

    Returns:
      The names of what was copied.
    """
    files = tokenizer_files(source)
    for file in files:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / file.name)
    return [file.name for file in files]
