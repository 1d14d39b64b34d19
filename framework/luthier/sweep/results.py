"""`result.json`: how a trial ended; whole or absent, and on the disk before anyone is told."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from typing import Any

from luthier.errors import Problem, RunError
from luthier.records.files import read_json, write_json
from luthier.sweep.protocol import Ended

NAME = "result.json"
TRACEBACK = "traceback.txt"
"""In the folder of a trial that failed: where in the code it did."""

FORMAT = 1
"""The format of result.json; a file without one is of format 1."""

_FIELDS = {field.name for field in dataclasses.fields(Ended)}


def write_result(directory: str | os.PathLike[str], ended: Ended) -> None:
    """Write how a trial ended into its directory.

    Args:
      directory: `TrialWork.directory`.
      ended: What the driver will be told.
    """
    write_json(
        pathlib.Path(directory, NAME), {"format": FORMAT, **_encode(dataclasses.asdict(ended))}
    )


def read_result(directory: str | os.PathLike[str]) -> Ended | None:
    """Return how the trial in a directory ended; None where that is not written.

    Args:
      directory: `TrialWork.directory`.

    Raises:
      RunError: The file is damaged, or cannot be read.
      VersionError: It was written by a later luthier.
    """
    path = pathlib.Path(directory, NAME)
    found = read_json(path, newest=FORMAT)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise RunError(Problem(f"{path} is damaged: it holds no result"))
    try:
        # What a later version adds is not known here, and harmless.
        return Ended(**{k: v for k, v in _decode(found).items() if k in _FIELDS})
    except (TypeError, ValueError) as error:
        raise RunError(Problem(f"{path} is damaged: {error}")) from error


def _encode(value: Any) -> Any:
    """Return a value as strict JSON can hold it: numbers that are none are words."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, dict):
        return {key: _encode(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(child) for child in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"float"}:
            return float(value["float"])
        return {key: _decode(child) for key, child in value.items()}
    return [_decode(child) for child in value] if isinstance(value, list) else value
