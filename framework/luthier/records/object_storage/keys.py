"""Names of objects as paths of files: whoever may write to a bucket chooses them, not the user."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import unicodedata
from typing import BinaryIO

_DRIVE = re.compile(r"[A-Za-z]:")


def fault_of(key: str) -> str:
    """Return why an object's name is no path below a run's directory; empty where it is one.

    Args:
      key: The name, as `checkpoints/20/commit.json`.
    """
    if key.startswith("/"):
        return "it is absolute"
    if any(unicodedata.category(letter)[0] == "C" for letter in key):
        return "it has control characters"
    if "\\" in key:
        return "it has a backslash"
    parts = key.split("/")
    if "" in parts:
        return "a part of it is empty"
    if not {".", ".."}.isdisjoint(parts):
        return "it leads to another folder"
    if any(_DRIVE.match(part) for part in parts):
        return "it names a drive"
    return ""


def open_below(folder: pathlib.Path, key: str) -> BinaryIO:
    """Return a new file below a folder, open for writing; no link on the way is followed.

    Args:
      folder: A folder that exists.
      key: Its path there, without a fault.

    Raises:
      OSError: The file is there already, a folder on the way is none or a link, or the disk
        refuses.
    """
    *folders, name = key.split("/")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    place = os.open(folder, flags)
    try:
        for part in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=place)
            below = os.open(part, flags, dir_fd=place)
            os.close(place)
            place = below
        created = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.fdopen(os.open(name, created, 0o666, dir_fd=place), "wb")
    finally:
        os.close(place)
