"""Runs and studies whose home is an object store: their working copy, and the right to write them.

`records.directory=gs://lab/runs` keeps a run in the bucket. Records are appended, replaced and
locked, which objects cannot be. So a run has a working copy of them on the machine of process 0,
in the user's cache (`project.working_copy`), and the bucket gets what changes there, as a mirror
does. Checkpoints are not part of it: every process writes its own shards into the bucket.

A study (`directory=gs://lab/studies`) is kept in the same way on the machine of its driver. The
runs and the results of its trials are not part of it: workers write them into the bucket.

The bucket counts, and the working copy is disposable:

- Whoever writes holds the lease of the bucket besides the lock of the working copy.
- A checkpoint is committed after the records that belong to it are in the bucket.
- A start replaces the working copy by what the bucket holds, unless the last writer worked on this
  very copy: then it has everything that the bucket has, and maybe more.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from luthier.records.object_storage.mirror import RUN, HomeKind, Mirror, Uploader, check_name
from luthier.storage import (
    Holder,
    Lock,
    ProcessIdentity,
    holder,
    read_json,
    run_error,
    segments,
    write_bytes_atomically,
    write_json,
)
from luthier.storage.bucket import Bucket, Object, fault_of, open_below, patiently
from luthier.storage.moves import CONFIG, NOTE

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


def refresh(
    path: pathlib.Path, bucket: Bucket, is_writer: bool = False, kind: HomeKind = RUN
) -> bool:
    """Bring the working copy of a run or a study up to date; return whether there is such a one.

    Nothing is done while a process of this machine writes it: its copy is newer.

    Args:
      path: The working copy, which need not exist.
      bucket: The folder of the run or the study.
      is_writer: Whether the caller will make it if there is none.
      kind: Which of them it is.

    Raises:
      RunError: The store or the disk refuses, or an object has a name that leads elsewhere.
    """
    if holder(path / _LOCK) is not None:
        # But for a run that has just arrived from another place: it is in the bucket first.
        record = path / kind.record
        if not record.is_file() and (data := bucket.read(kind.record).data) is not None:
            write_bytes_atomically(record, data)
        return True
    lease = bucket.read(KEY)
    if _is_current(path, lease, kind):
        return True
    names = kind.objects(bucket)
    if not kind.is_in(names):
        # Not a run, or not any more. What is here is of a run that was deleted; or, without the
        # state of a copy, of one that is being made at this moment, or was killed while it was.
        if is_writer or (path / STATE).is_file():
            shutil.rmtree(path, ignore_errors=True)
        return False
    path.mkdir(parents=True, exist_ok=True)
    with Lock(path / _COPY_LOCK, patience_seconds=_COPY_SECONDS):
        # A process of this machine may have begun to write meanwhile: it has brought it up to date.
        if holder(path / _LOCK) is None:
            _download(path, bucket, names, lease, kind)
    return True


def refresh_all(root: pathlib.Path) -> None:
    """Bring the working copies of all runs of a bucket up to date.

    Of a run that was moved elsewhere, the note is there and nothing else.

    Args:
      root: The working copy of the folder of runs; nothing is done for a folder of a disk.

    Raises:
      RunError: The store or the disk refuses.
    """
    bucket = home_of(root)
    if bucket is None:
        return
    runs: set[str] = set()
    moved: set[str] = set()
    for name in bucket.list():
        run, file = "/".join(name.split("/")[:2]), "/".join(name.split("/")[2:])
        if file.startswith(CONFIG):
            runs.add(run)
        elif file == NOTE:
            moved.add(run)
    # Before any of them is a path on this machine.
    runs, moved = ({run for run in found if not fault_of(run)} for found in (runs, moved))
    for state in root.glob(f"*/*/{STATE}"):  # deleted from the bucket
        own = state.parent.relative_to(root).as_posix()
        if own not in runs and holder(state.parent / _LOCK) is None:
            shutil.rmtree(state.parent, ignore_errors=True)
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        list(pool.map(lambda run: refresh(root / run, bucket / run), sorted(runs)))
    for run in sorted(moved - runs):
        data = (bucket / run).read(NOTE).data
        (root / run).mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(root / run / NOTE, data or b"")


def writer(path: pathlib.Path) -> Holder | None:
    """Return the live process that writes a run or a study, if any.

    Args:
      path: Its directory, on a disk or as the working copy of an object store.
    """
    found = holder(path / _LOCK)
    if found is not None or home_of(path) is None:
        return found
    # Of another machine, as of the last time that the working copy was brought up to date.
    data = read_json(path / STATE, default={}).get("lease")
    other = None if data is None else read_writer(Object(data.encode(), b""))
    if other is None or other.process is None or not other.seems_alive:
        return None
    return Holder(**dataclasses.asdict(other.process), since=other.renewed)


def _is_current(path: pathlib.Path, lease: Object, kind: HomeKind) -> bool:
    """Return whether a working copy holds all that the bucket does."""
    if not (path / kind.record).is_file():
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


def _download(
    path: pathlib.Path, bucket: Bucket, names: Sequence[str], lease: Object, kind: HomeKind
) -> None:
    """Make the working copy what the bucket holds, also while its writer replaces segments."""
    for _ in range(_NUM_TRIES - 1):
        try:
            return _download_once(path, bucket, names, lease, kind)
        except RunError:
            before, names = names, kind.objects(bucket)
            if names == before:
                raise
    return _download_once(path, bucket, names, lease, kind)


def _download_once(
    path: pathlib.Path, bucket: Bucket, names: Sequence[str], lease: Object, kind: HomeKind
) -> None:
    for name in names:
        check_name(bucket, name, kind)
    building = path / f".{os.urandom(8).hex()}.fetched"
    try:
        # Whatever it was before, it is in between now.
        (path / STATE).unlink(missing_ok=True)
        building.mkdir()

        def fetch(file_and_content: tuple[str, Iterator[bytes]]) -> str:
            name, content = file_and_content
            with open_below(building, name) as file:
                file.writelines(content)
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(building / name, path / name)
            return name

        files = segments.files_in(bucket, [name for name in names if name != KEY])
        # Side by side: a study has several small files for each trial.
        with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
            fetched = set(pool.map(fetch, files))
        for place in sorted(kind.files(path)):
            if place.relative_to(path).as_posix() not in fetched:
                place.unlink()
    except OSError as error:
        raise run_error("write", path, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    _write_state(path, lease)


_held: dict[str, HomeLock] = {}


def held(path: str | os.PathLike[str]) -> HomeLock | None:
    """Return the right to write a run or a study that this process holds; None where it has none.

    Args:
      path: The directory of the run or the study.
    """
    return _held.get(os.path.abspath(path))


class HomeLock:
    """The right to write what has its home in a bucket: the lock of its working copy, and a lease.

    It is used as `luthier.storage.Lock` is. The working copy is brought up to date by it, and what
    was written there is in the bucket when it is released.

    Args:
      path: The working copy.
      bucket: The folder of the run or the study.
      is_new: Whether the run was made just now: there must be none in the bucket.
      kind: Whether it is of a run or of a study.
      patience_seconds: Time to wait for a process of this machine to release it.

    Raises:
      RunError: Another process writes there, or the store refuses.
    """

    def __init__(
        self,
        path: pathlib.Path,
        bucket: Bucket,
        is_new: bool = False,
        kind: HomeKind = RUN,
        patience_seconds: float = 0.3,
    ):
        self._path, self._bucket, self._kind = path, bucket, kind
        self._mirror: Mirror | None = None
        self._lost = ""
        self._is_downloaded = False
        self._released = threading.Event()
        self._lock = Lock(path / _LOCK, patience_seconds)
        try:
            process = ProcessIdentity.current()
            self._lease = Lease(bucket, str(path.absolute()), process, kind.remedy)
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
            is_current = _is_current(self._path, lease, self._kind)
            names = () if is_current else self._kind.objects(self._bucket)
            if self._kind.is_in(names):
                if is_new:
                    what = f"{self._bucket.url} was made by another process just now"
                    raise RunError(Problem(what, remedy="rerun the command to continue it"))
                with Lock(self._path / _COPY_LOCK, patience_seconds=_COPY_SECONDS):
                    _download(self._path, self._bucket, names, lease, self._kind)
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
            names = self._kind.objects(self._bucket)
            _download(self._path, self._bucket, names, self._lease.found, self._kind)
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
        self._mirror = Mirror(self._path, self._bucket, report, self._lease, self._kind)

    def push(self, *names: str) -> None:
        """Upload what is new, and prove that the lease is held.

        Args:
          *names: The files that are looked at; all where there is none. For these, a lease that
            was renewed a short time ago is proof enough.

        Raises:
          LockLost: Another process has taken over.
          RunError: The store or the disk refuses.
        """
        self.check()
        try:
            (self._mirror or self._uploader()).push(*names)
        except TakenOver as error:
            self._lost = str(error)
            raise LockLost(self._lost) from error

    def _uploader(self) -> Uploader:
        # A new one each time: it remembers what it has uploaded of files that only grow, and until
        # `start` they may be cut back.
        report = lambda line: print(f"luthier: {line}", file=sys.stderr)  # noqa: E731
        return Uploader(self._path, self._bucket, self._lease, report, self._kind)

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
            elif self._mirror is not None:
                self._mirror.abandon()
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
