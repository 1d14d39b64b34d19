"""Reading folders of safetensors: one file, or several with an index; nothing before it is asked.

model.safetensors
model-00001-of-00003.safetensors ... with model.safetensors.index.json
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from luthier.checkpoint.foreign.layout import Index, Shape
from luthier.errors import CheckpointError, Problem

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"
"""How a model is sampled from: nothing here reads it, and it travels with the weights."""

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
        for name in file.keys():  # noqa: SIM118  # the handle is no dict
            part = file.get_slice(name)
            kind = part.get_dtype()
            self.described[name] = Described(tuple(part.get_shape()), DTYPES.get(kind, kind), path)


def read_config(directory: str | os.PathLike[str], name: str = CONFIG) -> Mapping[str, Any] | None:
    """Return what `config.json` of a folder says; None where there is none.

    Args:
      directory: The folder.
      name: Another file of settings.

    Raises:
      CheckpointError: It is no JSON object.
    """
    path = pathlib.Path(directory).expanduser() / name
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        raise CheckpointError(Problem(f"{path} cannot be read: {error}")) from None
    return content


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise CheckpointError(Problem(f"{path} does not exist", remedy=_suggest(path)))
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
