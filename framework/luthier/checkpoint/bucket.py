"""Checkpoints in an object store: the folder of a run's checkpoints, and Orbax's way into it.

An object store has no rename. A save is therefore written where it stays, into a folder that no
other save uses, and one object that is written last, on condition that it is not there, makes it a
checkpoint:

    900.019ac2f7e1b0-1f2e3d4c-3/   a save: its step; time and random number of its writer; its number
      arrays/..., commit_success.txt   the files of Orbax, which every process writes for itself
      commit.json                      written last; the folder is a checkpoint
      trashed.json                     in its place: moved aside, until a later step is committed
    900/                           a checkpoint that a run's mirror uploaded

Of two checkpoints of one step the later counts. A writer that was paused and superseded can at
worst commit one more whole checkpoint.

Orbax writes arrays through TensorStore, and everything else through `etils.epath`, which needs
gcsfs or s3fs: a second client, with settings of its own. `BucketPath` gives it the client that all
of luthier uses.
"""

from __future__ import annotations

import concurrent.futures
import fnmatch
import functools
import io
import json
import os
import posixpath
import re
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

from etils import epath

# Private modules: `epath.register_path_cls` is public and takes a class of one's own for a scheme,
# but only this class has what `epath.Path` promises. Its one private name here is `_backend`.
from etils.epath import backend, gpath

from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.policy import SavedCheckpoint
from luthier.errors import CheckpointError, Problem, RunError, VersionError
from luthier.storage.bucket import REMOTE_SCHEMES, Bucket, MissingObject, tensorstore_spec

TRASHED = "trashed.json"
_ORBAX_COMMIT = "commit_success.txt"
_NAME = re.compile(r"(\d+)(?:\.([0-9a-f]{12})-[0-9a-f]{8}-(\d+))?")
_NUM_THREADS = 8
_ENDPOINTS = ("TENSORSTORE_GCS_HTTP_URL", "AWS_ENDPOINT_URL")


def _place(path: Any) -> tuple[Bucket, str]:
    """Return the bucket of a URL, and the name of the object there."""
    scheme, _, rest = os.fspath(path).partition("://")
    name, _, key = rest.partition("/")
    # Opened once, since credentials are looked up then; the endpoints are where it is opened.
    endpoints = tuple(os.environ.get(variable) for variable in _ENDPOINTS)
    return _bucket(f"{scheme}://{name}/", endpoints), key.rstrip("/")


@functools.lru_cache(maxsize=16)
def _bucket(url: str, endpoints: tuple[str | None, ...]) -> Bucket:
    del endpoints  # part of the key
    return Bucket(url)


class _Writer(io.BytesIO):
    """An object that is written when it is closed: whole, or not at all."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def close(self) -> None:
        if not self.closed:
            bucket, key = _place(self._path)
            bucket.write(key, self.getvalue())
        super().close()


class _Backend(backend.Backend):
    """What `epath.Path` does, with objects. Folders are the beginnings of names: none is made."""

    def open(self, path: Any, mode: str) -> IO[Any]:
        if "r" in mode:
            bucket, key = _place(path)
            data = bucket.read(key).data
            if data is None:
                raise FileNotFoundError(f"{path} does not exist")
            file: io.BytesIO = io.BytesIO(data)
        elif "w" in mode:
            file = _Writer(os.fspath(path))
        else:
            raise NotImplementedError(f"objects cannot be opened with mode {mode!r}: {path}")
        return file if "b" in mode else io.TextIOWrapper(file, encoding="utf-8")

    def exists(self, path: Any) -> bool:
        bucket, key = _place(path)
        return bucket.read(key).data is not None or self.isdir(path)

    def isdir(self, path: Any) -> bool:
        bucket, key = _place(path)
        return bool(bucket.list(f"{key}/"))

    def listdir(self, path: Any) -> list[str]:
        bucket, key = _place(path)
        names = (name.removeprefix(f"{key}/") for name in bucket.list(f"{key}/"))
        return sorted({name.partition("/")[0] for name in names})

    def glob(self, path: Any) -> list[str]:
        folder, pattern = posixpath.split(os.fspath(path))
        found = fnmatch.filter(self.listdir(folder), pattern)
        return [posixpath.join(folder, name) for name in found]

    def walk(self, top: Any, *, top_down: bool = True, on_error: Any = None) -> Iterator[Any]:
        bucket, key = _place(top)
        below: dict[str, tuple[set[str], list[str]]] = {"": (set(), [])}
        for name in bucket.list(f"{key}/"):
            *folders, file = name.removeprefix(f"{key}/").split("/")
            for depth, folder in enumerate(folders):
                place = "/".join(folders[:depth])
                below.setdefault(place, (set(), []))[0].add(folder)
            below.setdefault("/".join(folders), (set(), []))[1].append(file)
        for place in sorted(below, reverse=not top_down):
            folders_here, files = below[place]
            yield posixpath.join(os.fspath(top), place).rstrip("/"), sorted(folders_here), files

    def makedirs(self, path: Any, *, exist_ok: bool = False, mode: Any = None) -> None:
        pass

    def mkdir(self, path: Any, *, exist_ok: bool = False, mode: Any = None) -> None:
        pass

    def rmtree(self, path: Any) -> None:
        bucket, key = _place(path)
        names = bucket.list(f"{key}/")
        if not names:
            raise FileNotFoundError(f"{path} does not exist")
        delete_all(bucket, names)

    def remove(self, path: Any) -> None:
        bucket, key = _place(path)
        if bucket.read(key).data is None:
            raise FileNotFoundError(f"{path} does not exist")
        bucket.delete(key)

    # A rename would be a copy of every object and a deletion: whatever asks for one was not meant
    # for an object store.
    def rename(self, path: Any, dst: Any) -> None:
        raise NotImplementedError(f"objects cannot be renamed: {path} to {dst}")

    def replace(self, path: Any, dst: Any) -> None:
        raise NotImplementedError(f"objects cannot be renamed: {path} to {dst}")

    def copy(self, path: Any, dst: Any, overwrite: bool) -> None:
        raise NotImplementedError(f"objects cannot be copied: {path} to {dst}")

    def stat(self, path: Any) -> Any:
        raise NotImplementedError(f"objects have no status: {path}")


_BACKEND = _Backend()


class BucketPath(gpath.PosixGPath):
    """The URL of an object or of a folder of an object store, as a path that Orbax understands."""

    @property
    def _backend(self) -> backend.Backend:
        return _BACKEND

    @property
    def files(self) -> BucketFiles:
        """The objects below it."""
        return BucketFiles(self)


class BucketFiles:
    """The files of a checkpoint in an object store; see `commit.DiskFiles`.

    Args:
      path: The folder.
    """

    def __init__(self, path: BucketPath):
        self._bucket = Bucket(os.fspath(path))

    def paths(self) -> list[str]:
        """Return the names of all files."""
        return list(self._bucket.list())

    def checksum(self, name: str, sync: bool = False) -> tuple[int, int]:
        """Return the size and CRC-32 of a file, as the store returns it.

        Args:
          name: The file.
          sync: Without effect: a store answers a write when it is durable.

        Raises:
          FileNotFoundError: There is no such object.
        """
        # A save is read back before it is committed: nothing else proves that an upload arrived
        # whole, since stores check it only where the client sends a checksum, and TensorStore sends
        # none. It happens in the background, a piece at a time.
        size, checksum = 0, 0
        try:
            for piece in self._bucket.read_pieces(name):
                size, checksum = size + len(piece), zlib.crc32(piece, checksum)
        except MissingObject:
            raise FileNotFoundError(f"{self._bucket.url}{name} does not exist") from None
        return size, checksum

    def read_text(self, name: str) -> str:
        """Return the text of a file.

        Args:
          name: The file.

        Raises:
          FileNotFoundError: There is no such object.
          UnicodeDecodeError: It is not text.
        """
        data = self._bucket.read(name).data
        if data is None:
            raise FileNotFoundError(f"{self._bucket.url}{name} does not exist")
        return data.decode("utf-8")

    def write_last(self, name: str, text: str) -> None:
        """Write the file that makes the folder a checkpoint; there must be none.

        Args:
          name: The file.
          text: Its content.

        Raises:
          CheckpointError: Somebody has committed this folder.
        """
        found = self._bucket.read(name)
        if found.data is not None or not self._bucket.write(name, text.encode(), over=found):
            what = f"{self._bucket.url}{name} was written by another process"
            raise CheckpointError(Problem(what, remedy="end that process"))


def delete_all(bucket: Bucket, names: Iterable[str]) -> None:
    """Delete objects, several at a time."""
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        list(pool.map(bucket.delete, names))


class BucketDirectory:
    """Finds and deletes the checkpoints of a run in an object store; see `directory.Directory`.

    Args:
      url: The folder of the checkpoints.
    """

    def __init__(self, url: str):
        prepare_orbax()
        self.path = BucketPath(url.rstrip("/"))
        self._bucket = Bucket(url)
        self._num_saves = 0

    def _folders(self) -> dict[str, set[str]]:
        """Return the names of the objects of each save, by its folder."""
        found: dict[str, set[str]] = {}
        for key in self._bucket.list():
            folder, _, name = key.partition("/")
            if name and _NAME.fullmatch(folder):
                found.setdefault(folder, set()).add(name)
        return found

    def committed(self) -> dict[int, BucketPath]:
        """Return the checkpoints by step; of two of one step the later.

        Returns:
          Folders by step.
        """
        return {step: self.path / folder for step, folder in _newest(self._folders()).items()}

    def saved(self) -> list[SavedCheckpoint]:
        """Return steps and metrics of the checkpoints; see `Directory.saved`.

        Returns:
          Steps and metrics, in order.
        """

        def look(item: tuple[int, BucketPath]) -> SavedCheckpoint:
            step, path = item
            try:
                return SavedCheckpoint(step, commit_lib.read(path).metrics)
            except VersionError:
                return SavedCheckpoint(step, {}, is_known=False)
            except CheckpointError:
                return SavedCheckpoint(step, {})
            except RunError:  # the store refuses now: no rule may delete it
                return SavedCheckpoint(step, {}, is_known=False)

        with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
            return list(pool.map(look, sorted(self.committed().items())))

    def unsealed(self) -> list[int]:
        """Return the steps of saves that Orbax finished and that were never committed.

        Returns:
          Steps, in order.
        """
        return sorted(
            _step(folder)
            for folder, names in self._folders().items()
            if _ORBAX_COMMIT in names and not names & {commit_lib.FILE, TRASHED}
        )

    def new_token(self) -> str:
        """Return what the saves of one writer have in their names.

        Returns:
          A time, later than that of every save that is there, and a random number.
        """
        # Of two checkpoints of one step the later counts, whatever the clocks of their machines
        # were: hence later than every other name, and not only later than now.
        names = (_NAME.fullmatch(folder) for folder in self._folders())
        times = [int(match[2], 16) for match in names if match and match[2]]
        now = max([time.time_ns() // 1_000_000, *(one + 1 for one in times)])
        return f"{now:012x}-{secrets.token_hex(4)}"

    def saving(self, step: int, token: str) -> BucketPath:
        """Return the folder in which a step is saved, and where it stays.

        Args:
          step: Optimizer steps done.
          token: Of `new_token`; the same in all processes of the run.

        Returns:
          The folder; every call returns another one.
        """
        self._num_saves += 1
        return self.path / f"{step}.{token}-{self._num_saves}"

    def put_in_place(self, saving: commit_lib.Folder, step: int) -> commit_lib.Folder:
        """Return the folder of a finished save: it is in its place.

        Args:
          saving: The result of `saving`.
          step: Its step.

        Returns:
          The same folder.
        """
        del step
        return saving

    def withdraw(self, saving: commit_lib.Folder) -> None:
        """Remove what a save wrote that may not be committed.

        Args:
          saving: The folder of the save.
        """
        delete_all(self._bucket, self._bucket.list(f"{saving.name}/"))

    def clean(self) -> None:
        """Remove the remains of killed saves, and checkpoints that a later one has replaced."""
        folders = self._folders()
        kept = set(_newest(folders).values())
        for folder, names in folders.items():
            if folder not in kept and TRASHED not in names:
                self._delete(folder, names)

    def remove_failed(self, step: int) -> None:
        """Remove what saves of a step left that were never committed.

        Args:
          step: Step of the checkpoint.
        """
        for folder, names in self._folders().items():
            if _step(folder) == step and not names & {commit_lib.FILE, TRASHED}:
                self._delete(folder, names)

    def move_to_trash(self, step: int, reason: str) -> None:
        """Set a checkpoint aside; it is removed when a later step is committed.

        Args:
          step: Step of the checkpoint.
          reason: The reason, in one line.
        """
        for folder, names in self._folders().items():
            if _step(folder) == step and commit_lib.FILE in names:
                commit = self._bucket.read(f"{folder}/{commit_lib.FILE}").data or b""
                note = {"reason": reason, "commit": commit.decode("utf-8", "replace")}
                self._bucket.write(f"{folder}/{TRASHED}", json.dumps(note, indent=1).encode())
                self._bucket.delete(f"{folder}/{commit_lib.FILE}")

    def empty_trash(self, step: int) -> None:
        """Remove what was set aside of earlier steps than one that is committed now.

        Args:
          step: Step of the checkpoint.
        """
        for folder, names in self._folders().items():
            if TRASHED in names and commit_lib.FILE not in names and _step(folder) < step:
                self._delete(folder, names)

    def delete(self, step: int) -> None:
        """Delete the checkpoint of that step.

        Args:
          step: Step of the checkpoint.
        """
        for folder, names in self._folders().items():
            if _step(folder) == step and commit_lib.FILE in names:
                self._delete(folder, names)

    def delete_replaced(self, step: int) -> None:
        """Delete the former checkpoint of a step, once the new one is committed.

        Args:
          step: Step of the checkpoint.
        """
        folders = self._folders()
        newest = _newest(folders).get(step)
        for folder, names in folders.items():
            if _step(folder) == step and folder != newest and commit_lib.FILE in names:
                self._delete(folder, names)

    def _delete(self, folder: str, names: set[str]) -> None:
        # First the file that makes it a checkpoint: half a checkpoint must not pass for one.
        if commit_lib.FILE in names:
            self._bucket.delete(f"{folder}/{commit_lib.FILE}")
        delete_all(self._bucket, (f"{folder}/{name}" for name in names - {commit_lib.FILE}))


def _step(folder: str) -> int:
    return int(folder.partition(".")[0])


def _newest(folders: dict[str, set[str]]) -> dict[int, str]:
    """Return the folder of each committed step: the one with the latest name."""
    newest: dict[int, tuple[tuple[str, int], str]] = {}
    for folder, names in folders.items():
        match = _NAME.fullmatch(folder)
        if match and commit_lib.FILE in names:
            order = (match[2] or "", int(match[3] or 0))
            newest[int(match[1])] = max(newest.get(int(match[1]), (order, folder)), (order, folder))
    return {step: folder for step, (_, folder) in newest.items()}


@functools.cache
def prepare_orbax() -> None:
    """Let Orbax write to object stores with luthier's client, for the rest of the process."""
    epath.register_path_cls(list(REMOTE_SCHEMES))(BucketPath)
    # A private module, see `arrays.spare`: Orbax 0.12 makes specifications of TensorStore from
    # paths here, and knows the drivers of Google's stores and of disks only. It would write the
    # arrays of `s3://lab/run` to a folder `s3:` of the disk, or refuse them. Everything that it
    # does for Google's stores (a commit file, no rename, requests that are merged) fits S3 as well.
    from orbax.checkpoint._src.serialization import tensorstore_utils as orbax

    orbax._use_gcs_driver = lambda directory: directory.startswith(REMOTE_SCHEMES)
    orbax._normalize_path = _normalized
    orbax.gcs_utils = _Specifications(orbax.gcs_utils)


def _normalized(path: str) -> str:
    """Return a path without slashes at its end; `os.path.normpath` makes `gs:/` of `gs://`."""
    scheme, mark, rest = path.partition("://")
    return f"{scheme}{mark}{os.path.normpath(rest)}" if mark else os.path.normpath(path)


class _Specifications:
    """Orbax's module of Google's stores, whose specifications are luthier's."""

    def __init__(self, module: Any):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def get_kvstore_for_gcs(self, path: str) -> Any:
        return tensorstore_spec(path)
