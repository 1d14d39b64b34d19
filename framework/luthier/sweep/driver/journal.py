"""The journal of a study: a line of JSON for all that happened, on the disk before it counts.

A line is whole or it is not there: what a killed driver left behind its last line break is cut off
when the next one opens the file. Everything else that a study keeps can be made again from here.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from luthier.errors import Problem, RunError
from luthier.records.files import run_error, sync_directory
from luthier.records.redaction import redact

NAME = "journal.jsonl"


class Journal:
    """Appends to a study's journal; its only writer holds the study's lock.

    Args:
      path: The file; it is made where there is none, and mended where its last line is torn.

    Raises:
      RunError: It cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)
        self._waiting: list[bytes] = []
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            self.mended = self._mend()
            sync_directory(self.path.parent)
        except OSError as error:
            raise run_error("write", self.path, error) from error

    def _mend(self) -> int:
        """Cut off a torn last line; return how many bytes it had."""
        size = os.fstat(self._descriptor).st_size
        end = size
        while end:
            start = max(0, end - 65536)
            cut = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            if cut >= 0:
                end = start + cut + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)
        return size - end

    def add(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Put down that something happened; it is on the disk after the next `commit`.

        Args:
          kind: What happened.
          **fields: What there is to say about it.

        Returns:
          The line.
        """
        line = {"kind": kind, "at": round(time.time(), 3), **fields}
        self._waiting.append(redact(encode_line(line).decode()).encode())
        return line

    def commit(self) -> None:
        """Return when all that was added is on the disk.

        Raises:
          RunError: The disk refuses.
        """
        if not self._waiting:
            return
        data = memoryview(b"".join(self._waiting))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise run_error("write", self.path, error) from error
        self._waiting.clear()

    def close(self) -> None:
        """Commit, and close the file."""
        self.commit()
        os.close(self._descriptor)


def encode_line(line: Mapping[str, Any]) -> bytes:
    """Return a line of the journal; numbers that are none are written as words."""
    return json.dumps(_strict(line), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _strict(value: Any) -> Any:
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Mapping):
        return {key: _strict(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(child) for child in value]
    return value


def read_journal(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal; one that is being written is left out.

    Args:
      path: The file; none has no lines.

    Raises:
      RunError: A line is damaged.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    except OSError as error:
        raise run_error("read", path, error) from error
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line, object_hook=_number)
            except (ValueError, RecursionError) as error:
                what = f"{os.fspath(path)} is damaged in line {number}: {error}"
                raise RunError(Problem(what)) from error


def _number(found: dict[str, Any]) -> Any:
    return float(found["float"]) if found.keys() == {"float"} else found
