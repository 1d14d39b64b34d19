"""The folders of a run's checkpoints.

150/                a checkpoint: Orbax's files, and commit.json
150.replaced/       the former one of that step, until the new one is committed
200, 200.anything   without commit.json: the remains of a save that was killed
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil

from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.policy import Saved
from luthier.errors import CheckpointError

_REPLACED = ".replaced"
_NAME = re.compile(rf"(\d+)({re.escape(_REPLACED)})?")
_OURS = re.compile(r"\d+(\..*)?")


class Directory:
    """Finds, moves and deletes checkpoints, so that a kill at any moment leaves whole ones.

    Only one process may change it at a time; any number may look.

    Args:
      path: The directory; made by `make_room`.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path

    def committed(self) -> dict[int, pathlib.Path]:
        """Return the checkpoints by step; one that is being replaced counts until it is."""
        found = {}
        for path in sorted(self._entries(), key=lambda path: -len(path.name)):
            match = _NAME.fullmatch(path.name)
            if match and (path / commit_lib.FILE).is_file():
                found[int(match[1])] = path
        return found

    def saved(self) -> list[Saved]:
        """Return steps and metrics of the checkpoints; without metrics where they are damaged."""
        saved = []
        for step, path in self.committed().items():
            try:
                metrics = commit_lib.read(path).metrics
            except CheckpointError:
                metrics = {}
            saved.append(Saved(step, metrics))
        return saved

    def make_room(self, step: int) -> None:
        """Make the directory, and move a checkpoint of that step aside."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / str(step)
        if (path / commit_lib.FILE).is_file():
            os.rename(path, self._replaced(step))
        elif path.exists():
            _delete(path)

    def clean(self) -> None:
        """Delete what is no checkpoint, and move back what was to be replaced and was not."""
        committed = self.committed()
        for path in self._entries():
            if _OURS.fullmatch(path.name) and path not in committed.values():
                _delete(path)
        for step, path in committed.items():
            if path.name != str(step):
                os.rename(path, path.with_name(str(step)))

    def delete(self, step: int) -> None:
        """Delete the checkpoint of that step."""
        if path := self.committed().get(step):
            _delete(path)

    def delete_replaced(self, step: int) -> None:
        """Delete the former checkpoint of a step, once the new one is committed."""
        _delete(self._replaced(step))

    def _replaced(self, step: int) -> pathlib.Path:
        return self.path / f"{step}{_REPLACED}"

    def _entries(self) -> list[pathlib.Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []


def _delete(path: pathlib.Path) -> None:
    # First the file that makes it a checkpoint: half a checkpoint must not pass for one.
    if path.is_dir():
        (path / commit_lib.FILE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
