"""Whether the tokens of prepared corpora are what was prepared, looked at while a run trains.

A start cannot read a corpus of terabytes. So a thread reads one shard after another, slowly, and
compares it with its digest; what was found right is remembered in the run by inode, time and size
of its files, and is not read again by later starts. What has changed since an earlier start is read
first, before training goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from luthier.data.filters.left_out import nodes_of
from luthier.data.prepared.prepared import Prepared
from luthier.errors import DataError, Problem, RunError
from luthier.storage import write_json

FILE = "verified.json"
"""What a run remembers of its shards."""

START_SECONDS = 120.0
"""How long a start reads shards that have changed; the others are left to the thread."""

_BLOCK_BYTES = 1 << 22
_DUTY = 0.1  # of one core and of the disk
_KINDS = ("tokens", "targets")
_REMEDY = (
    "restore the shard or prepare the corpus again; `luthier data prepare DIR --verify` checks"
)

Stamp = Sequence[Sequence[int]]
"""Inode, modification time in ns and size in bytes of the files of a shard."""


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A shard of a corpus: its folder, and the digest of its arrays."""

    folder: str
    digest: str

    def stamp(self) -> list[list[int]]:
        """Return what tells that its files were not written.

        Raises:
          DataError: A file is gone.
        """
        try:
            stats = [os.stat(os.path.join(self.folder, f"{kind}.npy")) for kind in _KINDS]
        except OSError as error:
            what = f"{self.folder}: cannot be read: {error.strerror}"
            raise DataError(Problem(what, remedy=_REMEDY)) from error
        return [[stat.st_ino, stat.st_mtime_ns, stat.st_size] for stat in stats]


class Verification:
    """Checks the prepared corpora of a run, within a `with` block.

    Args:
      data: The run's data: a node, or anything that is built of nodes.
      directory: The run's directory, which remembers what was verified.
      duty: The share of the time that the thread reads.
    """

    def __init__(self, data: Any, directory: str | os.PathLike[str], duty: float = _DUTY):
        self._path = pathlib.Path(directory, FILE)
        self._shards = list(_shards(data))
        self._remembered = self._read()
        self._duty = duty
        self._stamps: dict[str, Stamp] = {}
        self._refused: list[_Shard] = []
        self._problem: Problem | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="luthier-verify", daemon=True)

    def __enter__(self) -> Verification:
        if self._shards:
            self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stopped.set()
        if self._shards:
            self._thread.join()

    def start(self) -> list[Problem]:
        """Read what has changed since an earlier start; return what is no longer what it was.

        Raises:
          DataError: A file is gone.
        """
        until = time.monotonic() + START_SECONDS
        problems = []
        for shard in self._shards:
            self._stamps[shard.folder] = stamp = shard.stamp()
            known = self._remembered.get(shard.folder)
            has_changed = known is not None and known["stamp"] != stamp
            if has_changed and time.monotonic() < until:
                if _is_right(shard):
                    self._remember(shard, stamp, is_verified=True)
                else:
                    self._refused.append(shard)
                    problems.append(_changed(shard))
            elif has_changed or known is None:
                self._remember(shard, stamp, is_verified=False)
        if self._shards and not problems:
            self._write()
        return problems

    def accept(self) -> None:
        """Take the shards that `start` refused as they are: the user agreed to other tokens.

        Those that were not read yet are verified like any others.
        """
        for shard in self._refused:
            self._remember(shard, self._stamps[shard.folder], is_verified=True)
        self._refused.clear()
        if self._shards:
            self._write()

    def check(self) -> None:
        """Refuse to go on where files that are in use were written, or the thread found damage.

        Raises:
          DataError: With the shard.
        """
        for shard in self._shards:
            before, now = self._stamps.get(shard.folder), shard.stamp()
            if before is None or before == now:
                continue
            sizes = [(old[2], new[2]) for old, new in zip(before, now, strict=True)]
            cut = [f"{new:,} bytes, not {old:,}" for old, new in sizes if new != old]
            if cut or not _is_right(shard):
                what = f"{shard.folder}: its files were written while the run reads them"
                how = f" ({'; '.join(cut)})" if cut else ", and differ from their digest"
                raise DataError(Problem(what + how, remedy=_REMEDY))
            self._stamps[shard.folder] = now  # written anew, as it was
            self._remember(shard, now, is_verified=True)
            self._write()
        # Last: that a file was just written says more than that its tokens are others.
        if self._problem is not None:
            raise DataError(self._problem)

    def _run(self) -> None:
        for shard in self._shards:
            stamp = self._stamps.get(shard.folder)
            if stamp is None or self._remembered[shard.folder]["verified"]:
                continue
            try:
                is_right = _is_right(shard, self._stopped, self._duty)
            except (OSError, ValueError):  # reading it for a batch says more
                continue
            if self._stopped.is_set():
                return
            if not is_right:
                self._problem = self._problem or _changed(shard)
                # The next start reads it first: only there can the user agree to it.
                self._remember(shard, [], is_verified=False)
                self._write()
                continue
            self._remember(shard, stamp, is_verified=True)
            self._write()

    def _remember(self, shard: _Shard, stamp: Stamp, is_verified: bool) -> None:
        self._remembered[shard.folder] = {"stamp": stamp, "verified": is_verified}

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            shards = content["shards"]
            assert all({"stamp", "verified"} <= set(entry) for entry in shards.values())
            return dict(shards)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError):
            return {}

    def _write(self) -> None:
        """Write down what is known; what cannot be written is found out again."""
        with contextlib.suppress(RunError):
            write_json(self._path, {"version": 1, "shards": self._remembered})


def _shards(data: Any) -> Iterator[_Shard]:
    seen: set[str] = set()
    for node in nodes_of(data, Prepared):
        folder = os.path.abspath(os.path.expanduser(node.directory))
        for entry in node.manifest["shards"]:
            place = os.path.join(folder, entry["name"])
            if place not in seen:
                seen.add(place)
                yield _Shard(place, entry["digest"])


def _changed(shard: _Shard) -> Problem:
    return Problem(f"{shard.folder}: its tokens differ from their digest", remedy=_REMEDY)


def _is_right(
    shard: _Shard, stopped: threading.Event | None = None, duty: float | None = None
) -> bool:
    """Read a shard through files: a map of a file that is cut short would end the process."""
    hasher = hashlib.blake2b(digest_size=16)
    for kind in _KINDS:
        with open(os.path.join(shard.folder, f"{kind}.npy"), "rb") as file:
            try:
                dtype, shape = _header(file)
            except (ValueError, KeyError):  # cut short within its header: no array any more
                return False
            hasher.update(f"{dtype.str}{shape}".encode())
            while True:
                since = time.monotonic()
                block = file.read(_BLOCK_BYTES)
                if not block:
                    break
                hasher.update(block)
                if stopped is not None and duty is not None:
                    rest = (time.monotonic() - since) * (1 / duty - 1)
                    if stopped.wait(rest):
                        return False
    return hasher.hexdigest() == shard.digest


def _header(file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...]]:
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = read(file)
    return dtype, shape
