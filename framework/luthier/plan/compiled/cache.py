"""What compiling found, kept in the user's cache folder: the same program is compiled once."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

_LOCATIONS = re.compile(r"\s*loc\([^)]*\)|^#loc.*$", re.MULTILINE)


def folder() -> pathlib.Path:
    """Return the folder of what plans keep; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(root) if os.path.isabs(root) else pathlib.Path.home() / ".cache"
    return base / "luthier" / "plan"


def key_of(program: str, target: str, versions: Mapping[str, str]) -> str:
    """Return the name under which the compiled form of a program is kept.

    Args:
      program: The program as the compiler is given it.
      target: The slice, with all that its devices are described by.
      versions: Versions of what compiles.
    """
    parts = [_LOCATIONS.sub("", program), target, json.dumps(dict(versions), sort_keys=True)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def read(key: str) -> dict[str, Any] | None:
    """Return what is kept under a name; None where there is nothing that can be read.

    Args:
      key: The name.
    """
    try:
        packed = (folder() / f"{key}.json.gz").read_bytes()
        found: dict[str, Any] = json.loads(gzip.decompress(packed))
    except (OSError, ValueError, EOFError):
        return None
    return found


def write(key: str, values: Mapping[str, Any]) -> None:
    """Keep plain values under a name, whole or not at all; a full disk is no error.

    Args:
      key: The name.
      values: Plain values.
    """
    place = folder() / f"{key}.json.gz"
    temporary = place.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(gzip.compress(json.dumps(dict(values)).encode(), mtime=0))
        temporary.replace(place)
