"""The file that makes a directory a checkpoint.

Orbax commits its arrays by a rename, but does not notice a flipped bit in them. So once all of its
files are in place they are listed, with checksums, in one more file that is moved in last: a
directory with that file is a whole checkpoint, and one without is the remains of a save.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

from luthier.errors import CheckpointError, Problem

FILE = "commit.json"
_FORMAT = 1
_BLOCK_BYTES = 1 << 20
_NUM_THREADS = 4


@dataclasses.dataclass(frozen=True)
class Commit:
    """What is in a checkpoint.

    Args:
      step: Optimizer steps done.
      arrays: Shape and dtype name of every array.
      extra: What the trainer keeps beside the arrays, JSON-able.
      metrics: What was known when it was saved, by `evaluation/metric`.
      versions: Versions of the packages that wrote it.
      has_iterator: Whether the state of a data iterator is inside.
      files: Size in bytes and CRC-32 of every file, by its path in the checkpoint.
    """

    step: int
    arrays: Mapping[str, tuple[tuple[int, ...], str]]
    extra: Mapping[str, Any]
    metrics: Mapping[str, float]
    versions: Mapping[str, str]
    has_iterator: bool
    files: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


def write(directory: pathlib.Path, commit: Commit) -> Commit:
    """Make `directory` a checkpoint: list its files in a commit file, and return the commit.

    Everything is on the disk, not only in its cache, before the commit file is.
    """
    paths = _paths(directory)
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        sums = pool.map(lambda path: _checksum(directory / path, sync=True), paths)
        files = dict(zip(paths, sums, strict=True))
    commit = dataclasses.replace(commit, files=files)
    content = {"format": _FORMAT, **dataclasses.asdict(commit)}
    text = json.dumps({"checksum": _text_checksum(content), **content}, indent=1)
    temporary = directory / f"{FILE}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / FILE)
    _sync_directory(directory)
    _sync_directory(directory.parent)
    return commit


def read(directory: pathlib.Path) -> Commit:
    """Return what is in the checkpoint in `directory`.

    Raises:
      CheckpointError: The commit file is damaged or of a later format.
    """
    try:
        content = json.loads((directory / FILE).read_text(encoding="utf-8"))
        checksum = content.pop("checksum")
        if checksum != _text_checksum(content):
            raise ValueError("its checksum differs")
        if content.pop("format") != _FORMAT:
            raise CheckpointError(
                Problem(f"{directory} was written by a later luthier", remedy="update luthier")
            )
        for name in ("arrays", "files"):
            content[name] = {key: tuple(value) for key, value in content[name].items()}
        content["arrays"] = {
            key: (tuple(shape), dtype) for key, (shape, dtype) in content["arrays"].items()
        }
        commit = Commit(**content)
        json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        if not _is_sound(commit):
            raise ValueError("a field of it is not what it should be")
        return commit
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = Problem(f"{directory} is damaged: {FILE} cannot be read ({error})")
        raise CheckpointError(problem) from error


def _is_sound(commit: Commit) -> bool:
    """Return whether every field is of its kind, and every file lies in the checkpoint."""
    kinds = {"step": int, "extra": dict, "metrics": dict, "versions": dict, "has_iterator": bool}
    shapes = (shape for shape, _ in commit.arrays.values())
    paths = (pathlib.PurePosixPath(path) for path in commit.files)
    return (
        all(isinstance(getattr(commit, name), kind) for name, kind in kinds.items())
        and all(isinstance(size, int) for shape in shapes for size in shape)
        and all(isinstance(dtype, str) for _, dtype in commit.arrays.values())
        and all(isinstance(value, int | float) for value in commit.metrics.values())
        and all(isinstance(version, str) for version in commit.versions.values())
        and all(list(map(type, sums)) == [int, int] for sums in commit.files.values())
        and not any(path.is_absolute() or ".." in path.parts for path in paths)
    )


def check(directory: pathlib.Path, commit: Commit) -> list[str]:
    """Return what is damaged, by reading every file: `path is missing` and the like."""

    def compare(path: str) -> str | None:
        try:
            actual = _checksum(directory / path)
        except OSError as error:
            return f"{path} is missing" if isinstance(error, FileNotFoundError) else f"{error}"
        if actual[0] != commit.files[path][0]:
            return f"{path} has {actual[0]} bytes, not {commit.files[path][0]}"
        return None if actual == commit.files[path] else f"{path} differs from what was written"

    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        return [damage for damage in pool.map(compare, sorted(commit.files)) if damage]


def _paths(directory: pathlib.Path) -> list[str]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in paths)


def _checksum(path: pathlib.Path, sync: bool = False) -> tuple[int, int]:
    size, checksum = 0, 0
    with open(path, "rb", buffering=0) as file:
        block = memoryview(bytearray(_BLOCK_BYTES))
        while count := file.readinto(block):
            size += count
            checksum = zlib.crc32(block[:count], checksum)
        if sync:
            os.fsync(file.fileno())
    return size, checksum


def _text_checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _sync_directory(directory: pathlib.Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
