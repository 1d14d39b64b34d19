"""Writing folders of safetensors: split by size, with an index, a config and metadata."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from luthier.checkpoint.foreign.family import Family, Resolved
from luthier.checkpoint.foreign.layers import Stacked, slots
from luthier.checkpoint.foreign.layout import Shape
from luthier.checkpoint.foreign.tensors import CONFIG, FILE, INDEX
from luthier.errors import CheckpointError, Problem

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
    """Return what a family's files hold for a model of ours: shape, dtype, and how it is made.

    Args:
      family: The map.
      arrays: Our parameters by name, on the host or on devices.
      stacked: Which of them hold many layers.
      limits: For dimensions that are padded in ours, their size without.

    Raises:
      CheckpointError: The family has no tensor for a parameter; all are listed.
    """
    places = slots(stacked)
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
            whole = arrays[slot.parameter]
            own = np.asarray(whole if slot.index is None else whole[slot.index])
            parts.append((view.offset, view.layout.write(own, limits), view.axis))
        parts.sort(key=lambda part: part[0])
        if len(parts) == 1:
            return parts[0][1]
        return np.ascontiguousarray(np.concatenate([p for _, p, _ in parts], axis=parts[0][2]))

    def described(foreign: str, resolved: Resolved) -> tuple[Shape, str, Make]:
        first = places[resolved.ours_of(foreign)[0]].parameter
        dtype = str(np.dtype(arrays[first].dtype))
        return resolved.shapes[foreign], dtype, lambda: make(foreign)

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
      config: What `config.json` says; None writes none.
      metadata: What the head of every file says.
      shard_bytes: The most bytes in one file; a larger tensor has a file of its own.

    Returns:
      The files.

    Raises:
      CheckpointError: The folder has something in it, or the disk refuses.
    """
    target = pathlib.Path(directory).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        what = f"{target} exists and is not empty"
        raise CheckpointError(Problem(what, remedy="name another folder with --output"))
    building = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        building.mkdir(parents=True)
        names = _write_shards(building, tensors, metadata, shard_bytes)
        if config is not None:
            text = json.dumps(config, indent=2, sort_keys=True) + "\n"
            (building / CONFIG).write_text(text, encoding="utf-8")
            names.append(CONFIG)
        if target.exists():
            target.rmdir()
        os.rename(building, target)
    except OSError as error:
        what = f"{target} cannot be written: {error.strerror or error}"
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

    sizes = {n: int(np.prod(s)) * _itemsize(dtype) for n, (s, dtype, _) in tensors.items()}
    shards = list(_shards(sizes, shard_bytes))
    names = [
        FILE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        for number in range(1, len(shards) + 1)
    ]
    weight_map: dict[str, str] = {}
    for file, shard in zip(names, shards, strict=True):
        # One file's worth of tensors is on the host at a time.
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
        if shard and held + size > shard_bytes:
            yield shard
            shard, held = [], 0
        shard.append(name)
        held += size
    yield shard


def _itemsize(dtype: str) -> int:
    import ml_dtypes  # noqa: F401  # numpy knows bfloat16 by its name from then on

    return np.dtype(dtype).itemsize
