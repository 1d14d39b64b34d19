"""Files of completion below the user's cache folder: whole or not there, and never in a project.

What runs at a Tab imports little: no pathlib, dataclasses, typing or argparse.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time

_PATIENCE_SECONDS = 120.0  # after which a claim is taken for one of a process that was killed


def folder() -> str:
    """Return the folder of the cached files; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    base = root if os.path.isabs(root) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "luthier", "completion")


def digest(content: bytes) -> str:
    """Return a fingerprint of some bytes, which is a name of a file as well."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def fingerprints(files: object) -> dict[str, str]:
    """Return the fingerprint of each file; an empty one where it cannot be read.

    Args:
      files: The names of the files.
    """
    found = {}
    for file in files:  # type: ignore[attr-defined]
        try:
            with open(file, "rb") as opened:
                found[file] = digest(opened.read())
        except OSError:
            found[file] = ""
    return found


def read(name: str) -> str:
    """Return the text of a cached file; nothing where there is none that can be read."""
    try:
        with open(os.path.join(folder(), name), encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def write(name: str, text: str) -> None:
    """Write a cached file at once, or not at all; a cache that cannot be written is no error."""
    path = os.path.join(folder(), name)
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(folder(), exist_ok=True)
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(temporary, path)


def claim(name: str) -> bool:
    """Return whether this process is the one to make a cached file: no other has begun to.

    Args:
      name: The file.
    """
    path = os.path.join(folder(), f"{name}.claim")
    try:
        os.makedirs(folder(), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if time.time() - os.stat(path).st_mtime > _PATIENCE_SECONDS:
                os.unlink(path)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError:
        return False
    return True


def release(name: str) -> None:
    """Give a claim up."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder(), f"{name}.claim"))
