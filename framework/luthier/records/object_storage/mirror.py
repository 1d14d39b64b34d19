"""Copies a run's directory to an object store during the run, and fetches such a copy.

The copy must be usable whenever the machine disappears, although an object store has neither
renames nor appends. Three rules provide for that:

- Files that grow are kept as segments (`segments.Segments`), so that a push writes what is new.
- A checkpoint's `commit.json` is written last and deleted first, as on a disk.
- The commits are listed before the files are copied: metrics.jsonl in the copy then reaches at
  least as far as every checkpoint in the copy, which is what a resume cuts it back to.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import stat
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping

from luthier.errors import Problem, RunError
from luthier.records.events import Event, Saved
from luthier.records.object_storage.lease import KEY, Lease, Leased
from luthier.storage import run_error, segments, sync_directory
from luthier.storage.bucket import Bucket, fault_of, open_below
from luthier.storage.segments import FOLDER, Segments

# The sink that copies a run's directory to an object store, while the run trains.
#
# Small files are copied whole when they changed, large ones in pieces; files that grow, in
# segments; checkpoints once they are committed, with the file that commits them last. So the copy
# is a run at every moment, and never ahead in its checkpoints of what its metrics tell.

VARIABLE = "LUTHIER_MIRROR"
"""The environment variable with the URL below which runs are copied, as `<name>/<id>`, and trials
of sweeps, as `<study>/trials/<number>/run`."""

PUSH_SECONDS = 30.0
CHECKPOINTS = "checkpoints"
COMMIT = "commit.json"
LOCAL = ("lock", "wandb", "profile", "stacks")
"""Files of this machine only: the lock, traces, and the files of W&B itself."""

_GROWING = (".jsonl", ".log")
_TRIALS = "trials"
# How often the keeper thread looks; a renewal is due every 30 s (`Lease.keep`).
_LOOK_SECONDS = 5.0


def of_environment(
    path: pathlib.Path, environment: Mapping[str, str] = os.environ
) -> Bucket | None:
    """Return where a run is copied to; None where it is not.

    Args:
      path: The run's directory.
      environment: Such as `os.environ`.

    Raises:
      RunError: The URL does not belong to an object store.
    """
    url = environment.get(VARIABLE)
    parts = path.absolute().parts
    own = parts[-4:] if parts[-3:-2] == (_TRIALS,) else parts[-2:]
    return Bucket(url) / "/".join(own) if url else None


class Uploader:
    """Copies the files of a run's directory, and its checkpoints where they are files, too.

    Args:
      path: The run's directory, locked by the caller.
      bucket: Where it goes.
      lease: The lease of it.
      report: Is given one line about files that cannot be copied.
      is_home: Whether the bucket is the run's home: its checkpoints are written there by the
        processes themselves, and files that are deleted here are deleted there.
    """

    def __init__(
        self,
        path: pathlib.Path,
        bucket: Bucket,
        lease: Lease,
        report: Callable[[str], None],
        is_home: bool = False,
    ):
        self._path, self._report, self._lease = path, report, lease
        self._bucket = Leased(bucket.url, lease, bucket.stall_seconds)
        self._is_home = is_home
        self._copied: dict[str, tuple[int, int]] = {}
        self._segments: dict[str, Segments] = {}
        self._unnamable: set[str] = set()
        self._pushing = threading.Lock()
        # By step the checksum of the file that commits it: a checkpoint that was saved again after
        # its run was cut back is another one.
        self._checkpoints: dict[str, int] = {}
        if not is_home:
            self._checkpoints = {
                step: zlib.crc32(bucket.read(f"{CHECKPOINTS}/{step}/{COMMIT}").data or b"")
                for step in _committed(bucket.list(f"{CHECKPOINTS}/"))
            }
        self._there: set[str] | None = None

    def push(self) -> None:
        """Copy what is new.

        Raises:
          RunError: The store does not answer or refuses, another process has taken over, or a
            file cannot be read.
        """
        with self._pushing:
            self._lease.renew()
            try:
                if self._is_home:
                    self._delete_all_but(self._push_files())
                    return
                # Listed first: what is committed from here on waits for the metrics before it.
                committed = _committed_here(self._path / CHECKPOINTS)
                self._push_files()
                self._push_checkpoints(committed)
            except OSError as error:
                raise run_error("read", error.filename or self._path, error) from error

    def _push_files(self) -> set[str]:
        """Copy the files that changed; return the names of all that are here."""
        here = set()
        files = _files(self._path, skipped=(*LOCAL, CHECKPOINTS))
        # The file that makes it a run comes last: a first push that is killed leaves no run without
        # its plan, or its status.
        for path in sorted(files, key=lambda path: path == self._path / CONFIG):
            parts = path.relative_to(self._path).parts
            name = "/".join(parts)
            if any(part.startswith(".") for part in parts) or not self._can_name(name):
                continue
            with contextlib.suppress(FileNotFoundError), _named(path):
                if name.endswith(_GROWING):
                    self._segments.setdefault(name, Segments(self._bucket, name)).push(path)
                else:
                    self._copy(name, path)
                here.add(name)
        return here

    def _delete_all_but(self, here: set[str]) -> None:
        """Delete files from the store that were cut off or deleted here."""
        if self._there is None:
            names = self._bucket.list(skipped=f"{CHECKPOINTS}/")
            self._there = {segments.whole_name(name) for name in names} - {KEY}
        for name in self._there - here:
            self._bucket.delete(name)
            for kind in (f"{FOLDER}/", segments.PIECES_FOLDER):
                for piece in self._bucket.list(f"{name}{kind}"):
                    self._bucket.delete(piece)
            self._copied.pop(name, None)
            self._segments.pop(name, None)
        self._there = here

    def _copy(self, name: str, path: pathlib.Path) -> None:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        before = self._copied.get(name)
        if before != stamp:
            # A file that was and is one object has no pieces to look for, which saves a listing for
            # each of the small files that change often (status.json).
            is_small = before is not None and max(before[1], stamp[1]) <= segments.WHOLE_BYTES
            there = () if is_small else self._bucket.list(f"{name}{segments.PIECES_FOLDER}")
            written = segments.upload(self._bucket, name, path, there)
            for old in {*there, name}.difference(written):  # it was larger, or smaller
                self._bucket.delete(old)
            # Only after everything was written: what failed is copied again by the next push. The
            # stamp is from before the reading, so that a change meanwhile is noticed, too.
            self._copied[name] = stamp

    def _can_name(self, name: str) -> bool:
        """Return whether a copy of a file could be fetched; if not, report it once."""
        fault = fault_of(name)
        if fault and name not in self._unnamable:
            self._unnamable.add(name)
            self._report(f"{self._path}/{name!r} is not copied to {self._bucket.url}: {fault}")
        return not fault

    def _push_checkpoints(self, committed: Mapping[str, int]) -> None:
        for step in sorted(committed, key=lambda name: (len(name), name)):
            if self._checkpoints.get(step) != committed[step]:
                with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                    self._push_checkpoint(self._path / CHECKPOINTS / step)
                    self._checkpoints[step] = committed[step]
        # New ones are complete before old ones are deleted, as on the disk.
        for step in self._checkpoints.keys() - committed:
            self._delete(f"{CHECKPOINTS}/{step}/")
            del self._checkpoints[step]

    def _push_checkpoint(self, folder: pathlib.Path) -> None:
        place = f"{CHECKPOINTS}/{folder.name}/"
        there, written = set(self._bucket.list(place)), set()
        # The same step was saved again after a restart. Without its commit the copy of the old save
        # is no checkpoint while its files are replaced one by one.
        if f"{place}{COMMIT}" in there:  # it commits another save
            self._bucket.delete(f"{place}{COMMIT}")
        files = [path for path in _files(folder) if path != folder / COMMIT]
        names = {path.relative_to(self._path).as_posix(): path for path in files}
        # What a killed process left stays where it is a piece of this save, however long that took.
        for name, path in names.items():
            if fault := fault_of(name):
                raise RunError(Problem(f"{self._path}/{name!r} cannot be copied: {fault}"))
            own = [key for key in there if key.startswith(name + segments.PIECES_FOLDER)]
            with _named(path):
                written |= {*segments.upload(self._bucket, name, path, own)}
        for old in there - written - {f"{place}{COMMIT}"}:
            self._bucket.delete(old)
        with _named(folder / COMMIT):
            data = (folder / COMMIT).read_bytes()
        self._lease.renew()  # whoever was taken over commits nothing
        self._bucket.write(f"{place}{COMMIT}", data)

    def _delete(self, folder: str) -> None:
        """Delete a checkpoint, first the file that makes it one."""
        names = self._bucket.list(folder)
        for name in sorted(names, key=lambda name: name != f"{folder}{COMMIT}"):
            self._bucket.delete(name)


class Mirror:
    """Copies a run's directory, in a thread.

    Args:
      path: The run's directory, locked by the caller.
      bucket: Where it goes.
      report: Is given one line about trouble, and one when it is over; called from any thread.
      lease: The lease of the bucket, which is the run's home; None takes one for a copy.

    Raises:
      RunError: Another machine writes there, or the store refuses.
    """

    # Training continues where the store does not answer: the copy catches up later.
    essential = False

    def __init__(
        self,
        path: pathlib.Path,
        bucket: Bucket,
        report: Callable[[str], None],
        lease: Lease | None = None,
    ):
        self._report, self._url = report, bucket.url
        # Taken in the constructor, so that a start fails before it trains where another machine is
        # writing the same copy.
        self._own_lease = Lease(bucket, str(path.absolute())) if lease is None else None
        lease = lease or self._own_lease
        assert lease is not None
        self._uploader = Uploader(path, bucket, lease, report, is_home=self._own_lease is None)
        self._trouble = ""
        self._due, self._closing, self._closed = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name="luthier-mirror", daemon=True)
        self._thread.start()
        # Two threads, because one push may take longer than the lease lasts: the keeper renews
        # meanwhile. A home has one already.
        self._keeper: threading.Thread | None = None
        if self._own_lease is not None:
            self._keeper = threading.Thread(target=self._keep, name="luthier-lease", daemon=True)
            self._keeper.start()

    def emit(self, event: Event) -> None:
        """Copy soon where there is a checkpoint."""
        if isinstance(event, Saved):
            self._due.set()

    def flush(self) -> None:
        """Do nothing: nobody waits for the store."""

    def push(self) -> None:
        """Copy what is new; see `Uploader.push`."""
        self._uploader.push()

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
        try:
            self.push()
        finally:
            self._closed.set()
        if self._keeper is not None and self._own_lease is not None:
            self._keeper.join()  # what it renewed after the release would not be free
            self._own_lease.release()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.push()
                if self._trouble:
                    self._report(f"{self._url} is up to date again")
                self._trouble = ""
            except RunError as error:
                if not self._trouble:
                    self._report(f"{error}; training continues, and the copy is retried")
                self._trouble = str(error)
            self._due.wait(PUSH_SECONDS)
            self._due.clear()

    def _keep(self) -> None:
        """Keep the lease while a single object, or the next push, is waited for."""
        assert self._own_lease is not None
        while not self._closed.wait(_LOOK_SECONDS):
            with contextlib.suppress(RunError):  # `push` asks again, and reports it
                self._own_lease.keep()


@contextlib.contextmanager
def _named(path: pathlib.Path) -> Iterator[None]:
    """Name the file in an error of reading it: only those of opening it do."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _files(folder: pathlib.Path, skipped: Collection[str] = ()) -> list[pathlib.Path]:
    """Return the files in a folder and below, sorted.

    Args:
      folder: Where.
      skipped: Names in the folder itself that are left out.

    Raises:
      OSError: It cannot be listed; `rglob` would leave out, silently, what it cannot read.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) or error.filename == str(folder):
            raise error

    # `os.walk` swallows errors by default. A folder that could not be listed would look empty, and
    # the copy of its content would be deleted as if the files were gone.
    found = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        if place == str(folder):
            folders[:] = [name for name in folders if name not in skipped]
            names = [name for name in names if name not in skipped]
        found += [pathlib.Path(place, name) for name in names]
    return sorted(path for path in found if _is_file(path))


def _is_file(path: pathlib.Path) -> bool:
    """Return whether a path is a file; raise where that cannot be determined."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _committed_here(folder: pathlib.Path) -> dict[str, int]:
    """Return the checksum of the file that commits each checkpoint, by its step."""
    found = {}
    try:
        for path in folder.iterdir():
            if _is_file(path / COMMIT):
                with contextlib.suppress(FileNotFoundError), _named(path / COMMIT):
                    found[path.name] = zlib.crc32((path / COMMIT).read_bytes())
    except FileNotFoundError:  # nothing was saved yet
        pass
    return found


def _committed(names) -> set[str]:
    return {name.split("/")[1] for name in names if name.endswith(f"/{COMMIT}")}


# A run's directory from its copy, on a machine that has none.

CONFIG = "config.json"


def bring_back(path: pathlib.Path) -> bool:
    """Make a run's directory of the copy that the environment names; return whether there was one.

    Args:
      path: Where; nothing is done where there is a run already.

    Raises:
      RunError: The store or the disk refuses.
    """
    bucket = of_environment(path)
    return bucket is not None and fetch(path, bucket)


def fetch(path: pathlib.Path, bucket: Bucket) -> bool:
    """Make a run's directory of its copy; return whether there was one.

    The directory appears whole, or not at all. Of checkpoints, those that are committed come.

    Args:
      path: Where; nothing is done where there is a run already.
      bucket: The folder of the copy.

    Raises:
      RunError: The store or the disk refuses, or an object has a name that leads out of the
        directory; nothing was written then.
    """
    if (path / CONFIG).is_file():
        return False
    names = bucket.list()
    # Either as one object or in pieces, where it is large.
    if not {CONFIG, CONFIG + segments.INDEX}.intersection(names):
        return False
    # All before the first is written: names come from whoever can write to the bucket.
    for name in names:
        check_name(bucket, name)
    # A new folder under a name that nobody can guess, and so prepare.
    building = path.with_name(f".{path.name}.{os.urandom(8).hex()}.fetched")
    try:
        building.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir()
        for name, content in segments.files_in(bucket, _wanted(names)):
            with open_below(building, name) as file:
                file.writelines(content)
        os.rename(building, path)
        sync_directory(path.parent)
    except OSError as error:
        raise run_error("create", path, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return True


def check_name(bucket: Bucket, name: str) -> None:
    """Refuse a copy with a name that no `Mirror` has written."""
    fault = fault_of(name)
    if not fault and name.split("/")[0] in LOCAL:
        fault = "it is of the machine that writes it only"
    if fault:
        what = f"{bucket.url} is not a copy of a run: it has an object {name!r}: {fault}"
        remedy = "nothing was copied; see who writes to that bucket, and delete the object"
        raise RunError(Problem(what, remedy=remedy))


def _wanted(names) -> list[str]:
    # Checkpoints without a commit are an upload that was killed, and the lease belongs to the
    # writer.
    whole = {name.rpartition("/")[0] for name in names if name.endswith(f"/{COMMIT}")}
    wanted = []
    for name in names:
        step = "/".join(name.split("/")[:2])
        of_checkpoint = name.startswith(f"{CHECKPOINTS}/") and name.count("/") > 1
        if name != KEY and (not of_checkpoint or step in whole):
            wanted.append(name)
    return wanted
