"""Whether there is room for what will be saved."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil

from luthier.errors import CheckpointError, Problem


def require_space(directory: str | os.PathLike[str], bytes_needed: int) -> None:
    """Refuse before the start what would fill the disk after hours.

    Args:
      directory: Where checkpoints will be; need not exist yet.
      bytes_needed: What they will need at most, in bytes.

    Raises:
      CheckpointError: Less than that is free.
    """
    place = pathlib.Path(directory).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < bytes_needed:
        raise CheckpointError(
            Problem(
                f"{directory}: checkpoints need {_size(bytes_needed)} and {_size(free)} is free",
                path="checkpoints",
                remedy="free some space, choose another records.directory, or keep fewer",
            )
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a fault of the place


def _size(num_bytes: float) -> str:
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while num_bytes >= 1024 and len(units) > 1:
        num_bytes /= 1024
        units.pop(0)
    return f"{num_bytes:.1f} {units[0]}"
