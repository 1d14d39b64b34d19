"""The sink that copies a run's directory to an object store, while the run goes on.

Small files are copied whole when they changed; files that grow, in segments; checkpoints once they
are committed, with the file that commits them last. So the copy is a run at every moment, and never
ahead in its checkpoints of what its metrics tell.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
from collections.abc import Callable, Mapping

from luthier.errors import RunError
from luthier.records.events import Event, Saved
from luthier.records.object_storage.bucket import Bucket
from luthier.records.object_storage.lease import Lease
from luthier.records.object_storage.segments import Segments

VARIABLE = "LUTHIER_MIRROR"
"""The environment variable with the URL below which runs are copied, as `<name>/<id>`, and trials
of sweeps, as `<study>/trials/<number>/run`."""

PUSH_SECONDS = 30.0
CHECKPOINTS = "checkpoints"
COMMIT = "commit.json"
LOCAL = ("lock", "wandb", "profile", "stacks")
"""What is of this machine only: the lock, traces, and what W&B keeps by itself."""

_GROWING = (".jsonl", ".log")
_TRIALS = "trials"


def of_environment(
    path: pathlib.Path, environment: Mapping[str, str] = os.environ
) -> Bucket | None:
    """Return where a run is copied to; None where it is not.

    Args:
      path: The run's directory.
      environment: Such as `os.environ`.

    Raises:
      RunError: The URL is none of an object store.
    """
    url = environment.get(VARIABLE)
    parts = path.absolute().parts
    own = parts[-4:] if parts[-3:-2] == (_TRIALS,) else parts[-2:]
    return Bucket(url) / "/".join(own) if url else None


class Mirror:
    """Copies a run's directory, in a thread.

    Args:
      path: The run's directory, locked by the caller.
      bucket: Where it goes.
      report: Is given one line about trouble, and one when it is over; called from any thread.

    Raises:
      RunError: Another machine writes there, or the store refuses.
    """

    essential = False

    def __init__(self, path: pathlib.Path, bucket: Bucket, report: Callable[[str], None]):
        self._path, self._bucket, self._report = path, bucket, report
        self._lease = Lease(bucket, str(path.absolute()))
        self._copied: dict[str, tuple[int, int]] = {}
        self._segments: dict[str, Segments] = {}
        self._checkpoints = _committed(bucket.list(f"{CHECKPOINTS}/"))
        self._trouble = ""
        self._pushing = threading.Lock()
        self._due, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="luthier-mirror", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Copy soon where there is a checkpoint."""
        if isinstance(event, Saved):
            self._due.set()

    def flush(self) -> None:
        """Do nothing: nobody waits for the store."""

    def close(self) -> None:
        """Copy what is left, and let go of the copy; a second call does nothing.

        Raises:
          RunError: Not everything was copied.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._due.set()
        self._thread.join()
        self.push()
        self._lease.release()

    def push(self) -> None:
        """Copy what is new.

        Raises:
          RunError: The store does not answer or refuses, or another process has taken over.
        """
        with self._pushing:
            self._lease.renew()
            for name in _files(self._path):
                path = self._path / name
                with contextlib.suppress(FileNotFoundError):
                    if name.endswith(_GROWING):
                        self._segments.setdefault(name, Segments(self._bucket, name)).push(path)
                    else:
                        self._copy(name, path)
            self._push_checkpoints()

    def _copy(self, name: str, path: pathlib.Path) -> None:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if self._copied.get(name) != stamp:
            self._bucket.write(name, path.read_bytes())
            self._copied[name] = stamp

    def _push_checkpoints(self) -> None:
        folder = self._path / CHECKPOINTS
        here = {path.parent.name for path in folder.glob(f"*/{COMMIT}")}
        for step in sorted(here - self._checkpoints, key=lambda name: (len(name), name)):
            with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                self._push_checkpoint(folder / step)
                self._checkpoints.add(step)
        for step in self._checkpoints - here:
            self._delete(f"{CHECKPOINTS}/{step}/")
            self._checkpoints.discard(step)

    def _push_checkpoint(self, folder: pathlib.Path) -> None:
        # What a killed process left of it may be of another save.
        self._delete(f"{CHECKPOINTS}/{folder.name}/")
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in sorted(paths, key=lambda path: path == folder / COMMIT):
            name = path.relative_to(self._path).as_posix()
            self._bucket.write(name, path.read_bytes())

    def _delete(self, folder: str) -> None:
        """Delete a checkpoint, first the file that makes it one."""
        names = self._bucket.list(folder)
        for name in sorted(names, key=lambda name: name != f"{folder}{COMMIT}"):
            self._bucket.delete(name)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.push()
                if self._trouble:
                    self._report(f"{self._bucket.url} is up to date again")
                self._trouble = ""
            except RunError as error:
                if not self._trouble:
                    self._report(f"{error}; training goes on, and it is tried again")
                self._trouble = str(error)
            self._due.wait(PUSH_SECONDS)
            self._due.clear()


def _files(path: pathlib.Path) -> list[str]:
    """Return the files of a run that are copied, without those of its checkpoints."""
    found = []
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        hidden = any(part.startswith(".") for part in parts)
        if parts[0] not in (*LOCAL, CHECKPOINTS) and not hidden and file.is_file():
            found.append("/".join(parts))
    return found


def _committed(names) -> set[str]:
    return {name.split("/")[1] for name in names if name.endswith(f"/{COMMIT}")}
