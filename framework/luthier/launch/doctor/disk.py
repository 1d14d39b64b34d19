"""How fast a disk is written and read."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import tempfile
import time

from luthier.parallel import distributed
from luthier.records.files import run_error

_BYTES = 64 << 20
_BLOCK = 4 << 20


@dataclasses.dataclass(frozen=True)
class DiskRates:
    """What a disk does, in bytes per second.

    Args:
      write: With everything on the disk at the end.
      read: Past the cache of the operating system, where it lets go of the file.
    """

    write: float
    read: float


def disk_rates(directory: str | os.PathLike[str]) -> DiskRates:
    """Write a file, read it, and delete it.

    Args:
      directory: Where; or the nearest folder above that exists.

    Raises:
      RunError: The disk refuses.
    """
    place = _place(directory)
    block = os.urandom(_BLOCK)
    try:
        with tempfile.TemporaryFile(dir=place, prefix=".luthier-doctor-", buffering=0) as file:
            start = time.perf_counter()
            for _ in range(_BYTES // _BLOCK):
                file.write(block)
            os.fsync(file.fileno())
            written = time.perf_counter() - start
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            start = time.perf_counter()
            while file.read(_BLOCK):
                pass
            read = time.perf_counter() - start
    except OSError as error:
        raise run_error("write", place, error) from error
    return DiskRates(_BYTES / written, _BYTES / read)


def is_shared(directory: str | os.PathLike[str]) -> bool:
    """Return whether this process finds a file where process 0 made it; all processes call this.

    Args:
      directory: Where; or the nearest folder above that exists.

    Raises:
      ProcessLost: Another process has ended.
    """
    if not distributed.is_several():
        return True
    with contextlib.ExitStack() as stack:

        def make() -> str:
            made = stack.enter_context(
                tempfile.NamedTemporaryFile(dir=_place(directory), prefix=".luthier-doctor-")
            )
            return os.path.basename(made.name)

        name = distributed.from_primary(make)
        os.listdir(_place(directory))  # what a network disk remembers of the folder is read anew
        found = _place(directory).joinpath(name).exists()
        distributed.gather(None)  # process 0 deletes it when all have looked
        return found


def _place(directory: str | os.PathLike[str]) -> pathlib.Path:
    place = pathlib.Path(directory).absolute()
    while not place.is_dir():
        place = place.parent
    return place
