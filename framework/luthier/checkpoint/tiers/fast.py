"""The fast tier: checkpoints on a disk that is near, made often, and lost with the machine."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
from typing import ClassVar

from luthier.durations import Duration
from luthier.errors import CheckpointError, Problem
from luthier.storage import replacing

FILE = "fast_tier.json"


@dataclasses.dataclass(frozen=True)
class FastTier:
    """Checkpoints on a fast disk, between those in the run's directory.

    All processes must see the directory: one machine, or a disk that the machines share.

    Args:
      directory: Where, as /dev/shm/luthier or a local disk; each run has a folder of its own there.
      every: How long from one to the next.
      keep_latest: How many of the newest are kept.
    """

    RANGES: ClassVar[dict[str, str]] = {"keep_latest": "1 <= x"}

    directory: str
    every: Duration
    keep_latest: int = 1

    def folder(self, checkpoints: pathlib.Path, primary: bool) -> pathlib.Path:
        """Return the folder of a run, made where there is none.

        A run finds it by a file among its own checkpoints: a run that was deleted and begun again
        never goes on from what was left here.

        Args:
          checkpoints: Where the run keeps its other checkpoints.
          primary: Whether this process makes it; the others come after it.

        Raises:
          CheckpointError: It cannot be made, or this process does not see it.
        """
        root = pathlib.Path(self.directory).expanduser().absolute()
        note = checkpoints / FILE
        try:
            if primary and _named(note) is None:
                checkpoints.mkdir(parents=True, exist_ok=True)
                content = json.dumps({"name": f"run-{os.urandom(8).hex()}"}) + "\n"
                with replacing(note) as file:
                    file.write(content.encode())
            name = _named(note)
            if name is None:
                raise CheckpointError(Problem(f"{note} is missing or damaged"))
            folder = root / name
            if primary:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            path, remedy = "checkpoints.fast.directory", "choose a directory that can be written"
            raise CheckpointError(Problem(f"{root}: {reason}", path, "", remedy)) from error
        if not folder.is_dir():
            what = f"{folder} is not there for every process"
            remedy = "choose a directory that all of them see"
            raise CheckpointError(Problem(what, "checkpoints.fast.directory", "", remedy))
        return folder


def _named(note: pathlib.Path) -> str | None:
    """Return the name that a run's note holds, if it is one of ours."""
    try:
        name = json.loads(note.read_text(encoding="utf-8"))["name"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    ours = isinstance(name, str) and name.startswith("run-") and name[4:].isalnum()
    return name if ours else None


def discard(folder: pathlib.Path) -> None:
    """Delete the folder of a run that is over."""
    shutil.rmtree(folder, ignore_errors=True)
