"""URLs of object stores as paths, for Orbax and for the files of a checkpoint.

Orbax writes arrays through TensorStore, and everything else through `etils.epath`, which needs
gcsfs or s3fs for object stores: a second client, with settings of its own. `BucketPath` gives it
the client that all of luthier uses.
"""

from __future__ import annotations

import concurrent.futures
import fnmatch
import functools
import io
import os
import posixpath
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any

from etils import epath

# Private modules: `epath.register_path_cls` is public and takes a class of one's own for a scheme,
# but only this class has what `epath.Path` promises. Its one private name here is `_backend`.
from etils.epath import backend, gpath

from luthier.errors import CheckpointError, Problem, StoreError, StoreUnavailable
from luthier.parallel.distributed import process_count, process_index
from luthier.storage.bucket import (
    REMOTE_SCHEMES,
    Bucket,
    MissingObject,
    incomplete,
    limit_stalls,
    most_patience_seconds,
    refusal,
    tensorstore_spec,
)
from luthier.storage.segments import LISTING_SECONDS
from luthier.storage.transfer import STALL_SECONDS

_NUM_THREADS = 8
_ARRAYS, MANIFEST, _DATA, _PROCESS = "arrays", "manifest.ocdbt", "d/", "ocdbt.process_"
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
    return patient(url)


def patient(url: str) -> Bucket:
    """Return a folder of an object store whose requests wait for a store that is away.

    Args:
      url: As of `Bucket`.
    """
    # A save must outlast an outage: its arrays are gone when the next steps have been taken.
    seconds = most_patience_seconds()
    # The limit is longer than the repetitions: the message of the last one has the reason.
    return Bucket(url, STALL_SECONDS + 2 * seconds, seconds)


class _Writer(io.BytesIO):
    """An object that is written when it is closed: whole, or not at all."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def close(self) -> None:
        if not self.closed:
            bucket, key = _place(self._path)
            data = self.getvalue()
            bucket.write(key, data)
            _written[f"{bucket.url}{key}"] = (len(data), zlib.crc32(data))
        super().close()


_written: dict[str, tuple[int, int]] = {}
"""Size and CRC-32 of what Orbax has written through this module, until it is read back."""


# Not every store lists at once what was written to it, but all of them return it. A checkpoint must
# not lose what is not listed yet.
def _written_below(url: str) -> Iterator[str]:
    """Yield the names of files below a folder that this process wrote and did not read back."""
    return (name.removeprefix(url) for name in list(_written) if name.startswith(url))


def _unlisted_processes(folder: str, listed: Iterable[str]) -> Iterator[str]:
    """Yield the folders of arrays of processes that are there, and are not listed."""
    bucket, key = _place(folder)
    for index in range(process_count()):
        name = f"{_PROCESS}{index}"
        is_listed = name in listed
        if not is_listed and bucket.read(f"{key}/{name}/{MANIFEST}").data is not None:
            yield name


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
        return any(_written_below(f"{bucket.url}{key}/")) or bool(bucket.list(f"{key}/"))

    def listdir(self, path: Any) -> list[str]:
        bucket, key = _place(path)
        names = (name.removeprefix(f"{key}/") for name in bucket.list(f"{key}/"))
        return sorted({name.partition("/")[0] for name in names})

    def glob(self, path: Any) -> list[str]:
        folder, pattern = posixpath.split(os.fspath(path))
        found = fnmatch.filter(self.listdir(folder), pattern)
        if pattern == f"{_PROCESS}*":
            # Orbax merges what it finds here, and is silent about what it does not find.
            found = sorted({*found, *_unlisted_processes(folder, found)})
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
    """The files of a checkpoint in an object store; see `files.DiskFiles`.

    Args:
      path: The folder.
    """

    def __init__(self, path: BucketPath):
        self._bucket = patient(os.fspath(path))

    def paths(self) -> list[str]:
        """Return the names of all files; those that this process has just written are waited for.

        Raises:
          StoreUnavailable: They are not listed.
        """
        deadline = time.monotonic() + LISTING_SECONDS
        while True:
            names = list(self._bucket.list())
            if not self._misses(names):
                return names
            if time.monotonic() > deadline:
                what = f"{self._bucket.url} does not list what was written to it"
                raise StoreUnavailable(Problem(what, remedy="use a store with consistent listings"))
            time.sleep(1)

    def _misses(self, listed: Collection[str]) -> bool:
        own = set(_written_below(self._bucket.url))
        if not own:  # a checkpoint that another process wrote, or one that was sealed
            return False
        trees = (f"{_ARRAYS}/{_PROCESS}{process_index()}/{MANIFEST}", f"{_ARRAYS}/{MANIFEST}")
        return not own.issubset(listed) or any(
            tree not in listed and self._bucket.read(tree).data is not None for tree in trees
        )

    def checksum(self, name: str, sync: bool = False) -> tuple[int, int]:
        """Return the size and CRC-32 of a file, as the store returns it.

        Args:
          name: The file.
          sync: Whether this process has just written it; then it is compared with what was written.

        Raises:
          FileNotFoundError: There is no such object.
        """
        # A save is read back before it is committed: nothing else proves that an upload arrived
        # whole, since stores check it only where the client sends a checksum, and TensorStore sends
        # none. It happens in the background, a piece at a time.
        size, checksum = 0, 0
        for piece in self.read(name):
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
        if sync and _written.pop(f"{self._bucket.url}{name}", (size, checksum)) != (size, checksum):
            raise incomplete(f"{self._bucket.url}{name}")
        folder, _, file = name.rpartition("/")
        if sync and file == MANIFEST:
            _check_tree(self._bucket / folder)
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

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file, piece by piece.

        Args:
          name: The file.

        Raises:
          FileNotFoundError: There is no such object.
        """
        try:
            yield from self._bucket.read_pieces(name)
        except MissingObject:
            raise FileNotFoundError(f"{self._bucket.url}{name} does not exist") from None

    def write(self, name: str, content: Iterable[bytes]) -> None:
        """Write a file as one object, whole in memory: as Orbax, which reads it, writes its own.

        Args:
          name: The file.
          content: Its blocks.
        """
        self._bucket.write(name, b"".join(content))

    def delete(self, name: str) -> None:
        """Delete a file.

        Args:
          name: The file.
        """
        self._bucket.delete(name)

    def write_last(self, name: str, text: str) -> None:
        """Write the file that makes the folder a checkpoint; there must be none.

        Args:
          name: The file.
          text: Its content.

        Raises:
          CheckpointError: Somebody has committed this folder.
        """
        data, found = text.encode(), self._bucket.read(name)
        # Where it holds this very text, an attempt before has written it, whose answer was lost.
        if found.data == data:
            return
        if found.data is not None or not self._bucket.write(name, data, over=found):
            what = f"{self._bucket.url}{name} was written by another process"
            raise CheckpointError(Problem(what, remedy="end that process"))
        try:
            has_arrived = self._bucket.read(name).data == data
        except StoreError:  # it has acknowledged the object, and does not answer any more
            return
        if not has_arrived:
            self._bucket.delete(name)
            raise incomplete(f"{self._bucket.url}{name}")


# Arrays are written by TensorStore, which does not report how many bytes it sent. Its files are
# trees: the manifest refers to nodes, which have checksums and are the ends of the files below
# `d/`, and the nodes refer to ranges of these files. `tensorstore.ocdbt.dump` would return the
# ranges, and never frees them (see `arrays.spare`).
def _check_tree(bucket: Bucket) -> None:
    """Check that the files of a database of TensorStore have the ends that they were written with.

    Raises:
      StoreUnavailable: They have not.
      RunError: The store does not answer, or refuses.
    """
    import tensorstore

    base = tensorstore_spec(bucket.url, most_patience_seconds())
    try:
        tree = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
        keys = tree.list().result(timeout=bucket.stall_seconds)
        # Only the last file ends with nodes. Where there are several (of 2 GB each), the end of
        # every value is asked for.
        if len(bucket.list(_DATA)) > 1:
            ends = [tree.read(key, byte_range=slice(-1, None)) for key in keys]
            for end in ends:
                end.result(timeout=bucket.stall_seconds)
    except (ValueError, OSError, KeyError) as error:  # a `TimeoutError` is an `OSError`
        raise refusal(bucket.url, error) from None


def delete_all(bucket: Bucket, names: Iterable[str]) -> None:
    """Delete objects, several at a time."""
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        list(pool.map(bucket.delete, names))


@functools.cache
def prepare_orbax() -> None:
    """Let Orbax write to object stores with luthier's client, for the rest of the process."""
    limit_stalls()
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
        return tensorstore_spec(path, most_patience_seconds())
