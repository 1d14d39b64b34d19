"""What a process tells the parent process that watches it."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from typing import Any

VARIABLE = "LUTHIER_NOTES"
"""The environment variable with the file of a process's notes."""


_LOCK = threading.Lock()


class Notes:
    """A file of notes about one process, which that process writes and its parent reads.

    Args:
      path: The file; it may be missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)

    def read(self) -> dict[str, Any]:
        """Return all notes by name; empty while there are none."""
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}

    def add(self, **notes: Any) -> None:
        """Add notes, JSON values by name; whoever reads sees all of them or none."""
        building = self.path.with_suffix(".tmp")
        with _LOCK:  # several threads of a process have notes
            building.write_text(json.dumps(self.read() | notes), encoding="utf-8")
            os.replace(building, self.path)


def tell_parent(**notes: Any) -> None:
    """Leave notes for the parent process, where one watches this process.

    Args:
      **notes: JSON values by name.
    """
    if path := os.environ.get(VARIABLE):
        Notes(path).add(**notes)
