"""The files of a checkpoint, on a disk or in an object store."""

from __future__ import annotations

import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

from luthier.storage.bucket import is_url

if TYPE_CHECKING:
    from luthier.checkpoint.bucket_path import BucketPath

Folder: TypeAlias = "pathlib.Path | BucketPath"
"""The folder of a checkpoint, on a disk or in an object store."""

# `zlib.crc32` and reads release the interpreter's lock for blocks of this size, so that threads
# checksum in parallel with each other and with the training loop.
_BLOCK_BYTES = 1 << 20


class Files(Protocol):
    """The files of a checkpoint."""

    def paths(self) -> list[str]:
        """Return the names of all files, sorted."""

    def checksum(self, name: str, sync: bool = False) -> tuple[int, int]:
        """Return the size and CRC-32 of a file; `sync` makes it durable first."""

    def read_text(self, name: str) -> str:
        """Return the text of a file."""

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file, block by block."""

    def write(self, name: str, content: Iterable[bytes]) -> None:
        """Write a file; `checksum` says whether it arrived."""

    def delete(self, name: str) -> None:
        """Delete a file."""

    def write_last(self, name: str, text: str) -> None:
        """Write the file that makes the folder a checkpoint, when all others are durable."""


class DiskFiles:
    """The files of a checkpoint on a disk.

    Args:
      path: The folder.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path

    def paths(self) -> list[str]:
        """Return the names of all files."""
        paths = (path for path in self._path.rglob("*") if path.is_file())
        return sorted(path.relative_to(self._path).as_posix() for path in paths)

    def checksum(self, name: str, sync: bool = False) -> tuple[int, int]:
        """Return the size and CRC-32 of a file.

        Args:
          name: The file.
          sync: Whether to flush it to the disk, whoever wrote it.

        Raises:
          OSError: It cannot be read.
        """
        size, checksum = 0, 0
        with open(self._path / name, "rb", buffering=0) as file:
            # No larger than the file: most files of a checkpoint are small.
            num_bytes = max(1, min(_BLOCK_BYTES, os.fstat(file.fileno()).st_size))
            block = memoryview(bytearray(num_bytes))
            while count := file.readinto(block):
                size += count
                checksum = zlib.crc32(block[:count], checksum)
            # fsync on a descriptor that was opened for reading flushes the file's pages, whoever
            # wrote them.
            if sync:
                os.fsync(file.fileno())
        return size, checksum

    def read_text(self, name: str) -> str:
        """Return the text of a file.

        Args:
          name: The file.

        Raises:
          OSError: It cannot be read.
          UnicodeDecodeError: It is not text.
        """
        return (self._path / name).read_text(encoding="utf-8")

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file, block by block.

        Args:
          name: The file.

        Raises:
          OSError: It cannot be read.
        """
        with open(self._path / name, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block

    def write(self, name: str, content: Iterable[bytes]) -> None:
        """Write a file, and the folders that it is in.

        Args:
          name: The file.
          content: Its blocks.

        Raises:
          OSError: The disk refuses.
        """
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.writelines(content)

    def delete(self, name: str) -> None:
        """Delete a file.

        Args:
          name: The file.
        """
        (self._path / name).unlink(missing_ok=True)

    def write_last(self, name: str, text: str) -> None:
        """Write the file that makes the folder a checkpoint; all others are on the disk.

        Args:
          name: The file.
          text: Its content.
        """
        temporary = self._path / f"{name}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path / name)
        # The names of the files, of the commit file and of the checkpoint itself; each is durable
        # only with the directory it is in.
        _sync_directory(self._path)
        _sync_directory(self._path.parent)


def folder(path: str | os.PathLike[str]) -> Folder:
    """Return a folder, absolute where it is one of a disk.

    Args:
      path: A path, or the URL of an object store.
    """
    if not is_url(os.fspath(path)):
        return pathlib.Path(path).absolute()
    from luthier.checkpoint.bucket_path import BucketPath

    return BucketPath(os.fspath(path).rstrip("/"))


def files_of(directory: Folder) -> Files:
    """Return the files of a checkpoint.

    Args:
      directory: The checkpoint.
    """
    return DiskFiles(directory) if isinstance(directory, pathlib.Path) else directory.files


def _sync_directory(directory: pathlib.Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
