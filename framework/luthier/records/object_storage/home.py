"""Runs whose home is an object store: their working copy, and the right to write them.

`records.directory=gs://lab/runs` keeps a run in the bucket. Records are appended, replaced and
locked, which objects cannot be. So a run has a working copy of them on the machine of process 0,
in the user's cache (`project.working_copy`), and the bucket gets what changes there, as a mirror
does. Checkpoints are not part of it: every process writes its own shards into the bucket.

The bucket counts, and the working copy is disposable:

- Whoever writes holds the lease of the bucket besides the lock of the working copy.
- A checkpoint is committed after the records that belong to it are in the bucket.
- A start replaces the working copy by what the bucket holds, unless the last writer worked on this
  very copy: then it has everything that the bucket has, and maybe more.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luthier import project
from luthier.errors import LockLost, LuthierError, Problem, RunError, StoreError, StoreUnavailable
from luthier.faults import chain
from luthier.records.object_storage.lease import (
    KEY,
    Lease,
    LeaseWriter,
    TakenOver,
    read_writer,
)
from luthier.records.object_storage.mirror import (
    CHECKPOINTS,
    CONFIG,
    LOCAL,
    Mirror,
    Uploader,
    check_name,
)
from luthier.storage import (
    Lock,
    ProcessIdentity,
    holder,
    read_json,
    run_error,
    segments,
    write_json,
)
from luthier.storage.bucket import Bucket, Object, open_below, patiently

STATE = ".copy.json"
"""Which state of the bucket a working copy holds, and who wrote it there."""

_LOCK, _COPY_LOCK = "lock", ".copy.lock"
_COPY_SECONDS = 600.0  # for another process that is bringing the same working copy up to date
_LOOK_SECONDS = 5.0
_NUM_THREADS = 8
_NUM_TRIES = 5


def home_of(path: str | os.PathLike[str]) -> Bucket | None:
    """Return the bucket that a run's directory is the working copy of; None for one on a disk.

    Args:
      path: The run's directory.
    """
    url = project.bucket_url(path)
    return Bucket(url) if url else None


def refresh(path: pathlib.Path, bucket: Bucket, is_writer: bool = False) -> bool:
    """Bring the working copy of a run up to date; return whether there is such a run.

    Nothing is done while a process of this machine writes the run: its copy is newer.

    Args:
      path: The working copy, which need not exist.
      bucket: The folder of the run.
      is_writer: Whether the caller will make the run if there is none.

    Raises:
      RunError: The store or the disk refuses, or an object has a name that leads elsewhere.
    """
    if holder(path / _LOCK) is not None:
        return True
    lease = bucket.read(KEY)
    if _is_current(path, lease):
        return True
    names = bucket.list(skipped=f"{CHECKPOINTS}/")
    if not {CONFIG, CONFIG + segments.INDEX}.intersection(names):
        # Not a run, or not any more. What is here is of a run that was deleted; or, without the
        # state of a copy, of one that is being made at this moment, or was killed while it was.
        if is_writer or (path / STATE).is_file():
            shutil.rmtree(path, ignore_errors=True)
        return False
    path.mkdir(parents=True, exist_ok=True)
    with Lock(path / _COPY_LOCK, patience_seconds=_COPY_SECONDS):
        # A process of this machine may have begun to write meanwhile: it has brought it up to date.
        if holder(path / _LOCK) is None:
            _download(path, bucket, names, lease)
    return True


def refresh_all(root: pathlib.Path) -> None:
    """Bring the working copies of all runs of a bucket up to date.

    Args:
      root: The working copy of the folder of runs; nothing is done for a folder of a disk.

    Raises:
      RunError: The store or the disk refuses.
    """
    bucket = home_of(root)
    if bucket is None:
        return
    runs = {
        "/".join(parts[:2])
        for name in bucket.list()
        if len(parts := name.split("/")) > 2 and name.split("/", 2)[2].startswith(CONFIG)
    }
    for state in root.glob(f"*/*/{STATE}"):  # deleted from the bucket
        own = state.parent.relative_to(root).as_posix()
        if own not in runs and holder(state.parent / _LOCK) is None:
            shutil.rmtree(state.parent, ignore_errors=True)
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        list(pool.map(lambda run: refresh(root / run, bucket / run), sorted(runs)))


def recorded_writer(path: pathlib.Path) -> LeaseWriter | None:
    """Return the process that wrote the run when its working copy was last brought up to date.

    Args:
      path: The working copy.
    """
    data = read_json(path / STATE, default={}).get("lease")
    return None if data is None else read_writer(Object(data.encode(), b""))


def _is_current(path: pathlib.Path, lease: Object) -> bool:
    """Return whether a working copy holds all that the bucket does."""
    if not (path / CONFIG).is_file():
        return False
    state, writer = _state(path), read_writer(lease)
    if writer is None:
        return False
    # Whatever the last writer wrote, it wrote here first.
    if writer.token and state.get("token") == writer.token:
        return True
    # A writer releases the lease after everything else, and each writes it when it begins: where it
    # is the release that was seen then, nobody has written since. Before it is released anything
    # may be on its way.
    return writer.renewed == 0 and state.get("version") == lease.version.hex()


def _state(path: pathlib.Path) -> Mapping[str, Any]:
    with contextlib.suppress(RunError):  # half of it, after a crash: it is not known
        return read_json(path / STATE, default={})
    return {}


def _write_state(path: pathlib.Path, lease: Object, token: str = "") -> None:
    text = None if lease.data is None else lease.data.decode("utf-8", "replace")
    write_json(path / STATE, {"version": lease.version.hex(), "token": token, "lease": text})


def _download(path: pathlib.Path, bucket: Bucket, names: Sequence[str], lease: Object) -> None:
    """Make the working copy what the bucket holds, also while its writer replaces segments."""
    for _ in range(_NUM_TRIES - 1):
        try:
            return _download_once(path, bucket, names, lease)
        except RunError:
            before, names = names, bucket.list(skipped=f"{CHECKPOINTS}/")
            if names == before:
                raise
    return _download_once(path, bucket, names, lease)


def _download_once(path: pathlib.Path, bucket: Bucket, names: Sequence[str], lease: Object) -> None:
    for name in names:
        check_name(bucket, name)
    building = path / f".{os.urandom(8).hex()}.fetched"
    try:
        # Whatever it was before, it is in between now.
        (path / STATE).unlink(missing_ok=True)
        building.mkdir()
        fetched = set()
        for name, content in segments.files_in(bucket, [name for name in names if name != KEY]):
            with open_below(building, name) as file:
                file.writelines(content)
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(building / name, path / name)
            fetched.add(name)
        for place in sorted(path.rglob("*")):
            parts = place.relative_to(path).parts
            is_own = parts[0] in LOCAL or any(part.startswith(".") for part in parts)
            if place.is_file() and not is_own and "/".join(parts) not in fetched:
                place.unlink()
    except OSError as error:
        raise run_error("write", path, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    _write_state(path, lease)


_held: dict[str, HomeLock] = {}


def held(path: str | os.PathLike[str]) -> HomeLock | None:
    """Return the right to write a run that this process holds; None where it holds none.

    Args:
      path: The run's directory.
    """
    return _held.get(os.path.abspath(path))


class HomeLock:
    """The right to write a run whose home is a bucket: the lock of its working copy, and a lease.

    It is used as `luthier.storage.Lock` is. The working copy is brought up to date by it, and what
    was written there is in the bucket when it is released.

    Args:
      path: The working copy.
      bucket: The folder of the run.
      is_new: Whether the run was made just now: there must be none in the bucket.

    Raises:
      RunError: Another process writes the run, or the store refuses.
    """

    def __init__(self, path: pathlib.Path, bucket: Bucket, is_new: bool = False):
        self._path, self._bucket = path, bucket
        self._mirror: Mirror | None = None
        self._lost = ""
        self._is_downloaded = False
        self._released = threading.Event()
        self._lock = Lock(path / _LOCK)
        try:
            self._lease = Lease(bucket, str(path.absolute()), ProcessIdentity.current())
            self._take_in(is_new)
        except BaseException:
            self._lock.release()
            raise
        self._keeper = threading.Thread(target=self._keep, name="luthier-lease", daemon=True)
        self._keeper.start()
        _held[os.path.abspath(path)] = self

    def _take_in(self, is_new: bool) -> None:
        lease = self._lease.found
        try:
            is_current = _is_current(self._path, lease)
            names: Sequence[str] = (
                () if is_current else self._bucket.list(skipped=f"{CHECKPOINTS}/")
            )
            if CONFIG in names or CONFIG + segments.INDEX in names:
                if is_new:
                    what = f"{self._bucket.url} was made by another process just now"
                    raise RunError(Problem(what, remedy="rerun the command to continue it"))
                with Lock(self._path / _COPY_LOCK, patience_seconds=_COPY_SECONDS):
                    _download(self._path, self._bucket, names, lease)
                self._is_downloaded = True
            # From here on the bucket has nothing that is not here.
            _write_state(self._path, lease, self._lease.token)
            if is_new:
                self._uploader().push()
        except BaseException:
            with contextlib.suppress(LuthierError):
                self._lease.release()
            raise

    def list_again(self) -> None:
        """Bring a working copy up to date that was made of the bucket just now; before `start`.

        Not every store lists at once what was written to it.

        Raises:
          RunError: The store or the disk refuses.
        """
        if self._is_downloaded:  # any other has everything that the bucket has
            names = self._bucket.list(skipped=f"{CHECKPOINTS}/")
            _download(self._path, self._bucket, names, self._lease.found)
            _write_state(self._path, self._lease.found, self._lease.token)

    @property
    def notice(self) -> str:
        """One line about a dead writer that was taken over, or empty."""
        former = self._lease.former
        if former is None or not former.renewed:
            return ""
        return f"took over {self._bucket.url} from a process on {former.host}, which ended early"

    @property
    def took_over(self) -> LeaseWriter | None:
        """The former writer, where it ended without releasing the run."""
        former = self._lease.former
        return former if former is not None and former.renewed else None

    def check(self) -> None:
        """Return where this process may still write; called before every write that counts.

        Raises:
          LockLost: Another process has taken over.
        """
        self._lock.check()
        if self._lost:
            raise LockLost(self._lost)

    def start(self, report: Callable[[str], None]) -> None:
        """Upload in the background from now on: the records were cut back, and only grow.

        Args:
          report: Is given one line about trouble, and one when it is over; from any thread.
        """
        self._mirror = Mirror(self._path, self._bucket, report, self._lease)

    def push(self) -> None:
        """Upload what is new, and prove that the lease is held.

        Raises:
          LockLost: Another process has taken over.
          RunError: The store or the disk refuses.
        """
        self.check()
        try:
            (self._mirror or self._uploader()).push()
        except TakenOver as error:
            self._lost = str(error)
            raise LockLost(self._lost) from error

    def _uploader(self) -> Uploader:
        # A new one each time: it remembers what it has uploaded of files that only grow, and until
        # `start` they may be cut back.
        report = lambda line: print(f"luthier: {line}", file=sys.stderr)  # noqa: E731
        return Uploader(self._path, self._bucket, self._lease, report, is_home=True)

    def release(self, waits: bool = True) -> None:
        """Upload what is left, and let others write; a second call does nothing.

        Args:
          waits: Whether to wait for a store that is away.

        Raises:
          RunError: The store does not have everything; the working copy has.
        """
        if self._released.is_set():
            return
        self._released.set()
        self._keeper.join()
        _held.pop(os.path.abspath(self._path), None)
        try:
            if not self._lost:
                self._leave(waits)
        finally:
            self._lock.release()

    def _leave(self, waits: bool) -> None:
        try:
            try:
                if self._mirror is not None:
                    self._mirror.close()
                else:
                    self._uploader().push()
            except StoreUnavailable:
                if not waits:
                    raise
                patiently(self._uploader().push)
            self._lease.release()
        except TakenOver:
            return
        except RunError as error:
            what = f"the last records are in {self._path} only, and not in {self._bucket.url}"
            remedy = "rerun the command on this machine to upload them"
            problems = [Problem(what, remedy=remedy), *error.problems]
            raise RunError(problems, error.exit_code) from error

    def _keep(self) -> None:
        while not self._released.wait(_LOOK_SECONDS):
            try:
                self._lease.keep()
            except TakenOver as error:
                self._lost = str(error)
                return
            except RunError:
                continue  # the store is away for a moment; `push` reports it

    def __enter__(self) -> HomeLock:
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        try:
            # A run that ends because its store is away has waited for it already.
            self.release(waits=raised is None)
        except RunError as error:
            if raised is None:
                raise
            # The exception that ends the run is the one to report; this one must be seen, too. It
            # has nothing to add to a refusal of the same store: what was recorded since the last
            # checkpoint is repeated from there.
            if not any(isinstance(link, StoreError) for link in chain(raised)):
                print(f"luthier: {error}", file=sys.stderr)
