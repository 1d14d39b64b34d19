"""Moves a run to another folder of runs: between disks and object stores, with its checkpoints.

1. The run is locked, and gets a note of where it is going (`storage.moves`).
2. Checkpoints and records are copied to where nobody reads them, and read back and compared.
3. The copies of the checkpoints are sealed, and the config is put in its place: it is the run now.
4. What is at the former place is set aside there; only the note stays.

After a kill at any moment the same call continues: what was copied, and is as it should be, is not
written again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from luthier import project
from luthier.checkpoint import CheckpointCopy, require_space
from luthier.errors import BadInput, Problem, RunError
from luthier.records import Lock, RunDirectory, find, object_storage, trust
from luthier.records.object_storage import KEY, HomeLock
from luthier.records.object_storage.mirror import CHECKPOINTS, LOCAL, files_below
from luthier.storage import (
    move_contents_to_trash,
    moves,
    replacing,
    run_error,
    segments,
    sync_directory,
)
from luthier.storage.bucket import Bucket
from luthier.storage.moves import ARRIVING, CONFIG, HISTORY, NOTE, Move

_FORMER_CONFIG = "config.moved.json"
"""The name of the config in an object store that a run has left."""

_KEPT = (NOTE, HISTORY, "lock")
"""The files that stay at a former place on a disk, beside the trash."""

_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class MovedRun:
    """A run that was moved.

    Args:
      directory: The run, at its new place.
      source: Its former place.
      set_aside: Where the former files are until the user deletes them.
      num_files: Number of files of its records.
      num_bytes: Size of its records and checkpoints.
      steps: Steps of its checkpoints.
      left: Names in its directory that only concern the machine, and were not copied.
    """

    directory: RunDirectory
    source: str
    set_aside: str
    num_files: int = 0
    num_bytes: int = 0
    steps: Sequence[int] = ()
    left: Sequence[str] = ()


def move_run(
    run: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] = "runs",
    report: Callable[[str], None] = lambda text: None,
) -> MovedRun:
    """Move a run, with all of its records and checkpoints, to another folder of runs.

    The run keeps its id and name, and its run of Weights & Biases. The command that trained it
    resumes it with the new folder as `records.directory`. References to the former place lead to
    the new one.

    Args:
      run: The run's directory or URL, its id, or its name.
      destination: The other folder of runs: a directory, `gs://...` or `s3://...`.
      root: Where runs are kept, for an id.
      report: Is given a phrase about each part of the work.

    Returns:
      The run at its new place, and where its former files are.

    Raises:
      BadInput: There is no such run, or the folder is not one for runs.
      RunError: A process writes the run; there is a run at the new place; or a disk or a store
        refuses.
      CheckpointError: A checkpoint is damaged, or the disk has too little space.
    """
    directory = find(root, run)
    run_name = f"{directory.name}/{directory.id}"
    if directory.path.absolute().parts[-3:-2] == ("trials",):
        what = f"{directory.address} is a trial of a study, which only its study can find"
        raise BadInput(Problem(what, remedy="move the whole study"))
    if os.fspath(destination).rstrip("/").endswith(f"/{run_name}"):
        folder = os.fspath(destination).rstrip("/").removesuffix(f"/{run_name}")
        what = f"{os.fspath(destination)} is the place of one run, not a folder of runs"
        raise BadInput(Problem(what, remedy=f"write {folder}"))
    place = _place_at(project.records_folder(destination), directory)
    source = project.bucket_url(directory.path) or str(directory.path.resolve())
    if source == place.address:
        if (former := _finish(directory)) is not None:
            return former
        raise RunError(Problem(f"the run {run_name} is in {os.fspath(destination)} already"))
    if not place.is_remote:  # in the folder of this project it may call the user's packages
        text = directory.read_config()
        trust.packages_for(directory.config_path, text, project.find().packages)
    try:
        with directory.lock() as lock:
            directory.require_here()
            return _move(directory, lock, Move.between(source, place.address), place, report)
    except OSError as error:
        raise run_error("move", error.filename or directory.path, error) from error


def _move(
    directory: RunDirectory,
    lock: Lock | HomeLock,
    move: Move,
    place: _Place,
    report: Callable[[str], None],
) -> MovedRun:
    begun = moves.note_of(directory.path)
    if begun is not None and begun.destination == move.destination:
        move = begun
    checkpoints = CheckpointCopy(directory.checkpoints_path, place.checkpoints)
    records = _records_of(directory, place.is_remote)
    num_bytes = sum(path.stat().st_size for path in records.values()) + checkpoints.num_bytes
    with place.opened(move, num_bytes) as check_place:

        def check() -> None:
            lock.check()
            check_place()

        if isinstance(lock, HomeLock):
            lock.start(lambda line: None)  # `upload` reports trouble, too
        moves.write(directory.path / NOTE, [move])
        directory.upload()
        try:
            checkpoints.write(check, report)
            report("copying the records")
            place.take(records, check)
            report("sealing the copy")
            checkpoints.seal(check)
            # The last moment at which this process may have been taken over unnoticed is between
            # the check and the writing of one file, as in a save.
            check()
            place.commit([*moves.history(directory.path), move], directory.config_path)
        except BaseException:
            _give_up(directory, move)
            raise
    trust.record_move(directory.path, place.path)
    is_local = not project.bucket_url(directory.path)
    left = {name.partition("/")[0] for name in _local_files(directory)} if is_local else set()
    aside = _set_aside(directory, move)
    return MovedRun(
        directory=RunDirectory(place.path),
        source=move.source,
        set_aside=aside,
        num_files=len(records) + 1,
        num_bytes=num_bytes,
        steps=checkpoints.steps,
        left=sorted(left) if place.is_remote else (),
    )


def _give_up(directory: RunDirectory, move: Move) -> None:
    """Take the note back, unless the run is at the new place."""
    with contextlib.suppress(RunError, OSError):
        if not move.has_arrived:
            (directory.path / NOTE).unlink(missing_ok=True)
            directory.upload()


def _records_of(directory: RunDirectory, is_remote: bool) -> dict[str, pathlib.Path]:
    """Return the files of a run by name, but for its config and those of its checkpoints."""
    # Files of the machine are left out of object stores, as by a mirror, and of what comes from
    # there. Between disks all but the lock is taken along.
    is_local = not is_remote and not project.bucket_url(directory.path)
    own = ("lock",) if is_local else LOCAL
    return _files_of(directory.path, (CHECKPOINTS, CONFIG, NOTE, HISTORY, ARRIVING, *own))


def _local_files(directory: RunDirectory) -> list[str]:
    """Return the names of files that are of the machine only."""
    others = set(os.listdir(directory.path)).difference(LOCAL)
    return list(_files_of(directory.path, ("lock", *others)))


def _files_of(folder: pathlib.Path, skipped: Collection[str]) -> dict[str, pathlib.Path]:
    found = {}
    for path in files_below(folder, lambda name: name.partition("/")[0] in skipped):
        parts = path.relative_to(folder).parts
        if not any(part.startswith(".") for part in parts):
            found["/".join(parts)] = path
    return found


def _set_aside(directory: RunDirectory, move: Move) -> str:
    """Make the former place one of no run, whose files can be brought back; return where they are.

    The caller holds the lock.
    """
    reason = f"the run was moved to {move.destination}"
    if not project.bucket_url(directory.path):
        return str(move_contents_to_trash(directory.path, reason, first=CONFIG, kept=_KEPT))
    # Objects cannot be renamed, and copying all of them would cost as much as the move. Without its
    # config the folder is not a run; the other objects stay where they are.
    # In the bucket first, as when a run arrives.
    bucket = Bucket(move.source)
    segments.upload(bucket, _FORMER_CONFIG, directory.config_path)
    for name in (CONFIG, CONFIG + segments.INDEX):
        bucket.delete(name)
    directory.config_path.rename(directory.path / _FORMER_CONFIG)
    directory.upload()
    return move.source


def _finish(directory: RunDirectory) -> MovedRun | None:
    """Set aside what a move that was killed left at the former place; None if there is nothing."""
    if not (past := moves.history(directory.path)):
        return None
    move = past[-1]
    note = moves.note_of(move.source)
    if note is None or note.token != move.token:
        return None
    url = move.source if "://" in move.source else ""
    former = RunDirectory(project.working_copy(url) if url else move.source)
    if (home := object_storage.home_of(former.path)) is not None:
        if not object_storage.refresh(former.path, home):
            return None
    elif not set(os.listdir(former.path)).difference((*_KEPT, ".trash")):
        return None
    with former.lock():
        return MovedRun(directory, move.source, _set_aside(former, move))


# The two kinds of places.


class _Place(Protocol):
    """A place that a run is moved to."""

    path: pathlib.Path
    address: str
    checkpoints: str
    is_remote: bool

    def opened(
        self, move: Move, num_bytes: int
    ) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Hold the right to write there; yields the check of it."""

    def take(self, records: Mapping[str, pathlib.Path], check: Callable[[], None]) -> None:
        """Copy files, and compare what arrived."""

    def commit(self, history: Sequence[Move], config: pathlib.Path) -> None:
        """Make it the place of the run."""


def _place_at(root: pathlib.Path, directory: RunDirectory) -> _Place:
    path = RunDirectory.locate(root, directory.name, directory.id)
    return _BucketPlace(path) if project.bucket_url(path) else _DiskPlace(path.resolve())


def _require_no_run(address: str, is_run: bool, is_other: bool) -> None:
    if is_run:
        remedy = "choose another folder, or delete that run if it is a copy"
        raise RunError(Problem(f"there is a run at {address}", remedy=remedy))
    if is_other:
        what = f"{address} is not empty, and not a place that a run was moved from"
        raise RunError(Problem(what, remedy="choose another folder"))


class _DiskPlace:
    """A place on a disk: the run is put together beside it, and appears by a rename."""

    is_remote = False

    def __init__(self, path: pathlib.Path):
        self.path, self.address = path, str(path)
        # Of one name, so that the next attempt finds what this one copied.
        self._building = path.with_name(f".{path.name}.moving")
        self.checkpoints = str(self._building / CHECKPOINTS)

    @contextlib.contextmanager
    def opened(self, move: Move, num_bytes: int) -> Iterator[Callable[[], None]]:
        self._require_free()
        require_space(self.path.parent, num_bytes)
        self._building.mkdir(parents=True, exist_ok=True)
        with Lock(self._building / "lock") as lock:
            yield lock.check

    def _require_free(self) -> None:
        there = next(folder for folder in self.path.parents if folder.exists())
        if not there.is_dir():
            raise RunError(Problem(f"{there} is not a folder", remedy="choose another folder"))
        is_run = moves.has_config(self.path)
        # `rename` takes the place of an empty folder.
        is_other = self.path.exists() and (
            not self.path.is_dir()
            or (any(self.path.iterdir()) and moves.note_of(self.path) is None)
        )
        _require_no_run(self.address, is_run, is_other)

    def take(self, records: Mapping[str, pathlib.Path], check: Callable[[], None]) -> None:
        for name, path in records.items():
            check()
            sums = _copy(path, self._building / name)
            if _sums_of(_blocks(self._building / name)) != sums:
                raise _not_whole(self._building / name)
        for name, path in _files_of(self._building, (CHECKPOINTS, "lock")).items():
            if name not in records:
                path.unlink()

    def commit(self, history: Sequence[Move], config: pathlib.Path) -> None:
        moves.write(self._building / HISTORY, history)
        _copy(config, self._building / CONFIG)
        # Under its new name it would name this process, which does not write the run.
        (self._building / "lock").unlink()
        sync_directory(self._building)
        # What a run left here that was moved away earlier: its note, and what was set aside.
        former = None
        if self.path.exists() and any(self.path.iterdir()):
            former = self.path.with_name(f".{self.path.name}.{os.urandom(4).hex()}.moved")
            self.path.rename(former)
            if (former / ".trash").exists():
                (former / ".trash").rename(self._building / ".trash")
        os.rename(self._building, self.path)
        sync_directory(self.path.parent)
        if former is not None:
            shutil.rmtree(former, ignore_errors=True)


class _BucketPlace:
    """A place in an object store: the run is put together there, and its config comes last."""

    is_remote = True

    def __init__(self, path: pathlib.Path):
        self.path, self.address = path, project.bucket_url(path)
        self.checkpoints = f"{self.address}/{CHECKPOINTS}"
        self._bucket = Bucket(self.address)
        self._lock: HomeLock | None = None

    @contextlib.contextmanager
    def opened(self, move: Move, num_bytes: int) -> Iterator[Callable[[], None]]:
        is_run = object_storage.refresh(self.path, self._bucket, is_writer=True)
        names = self._bucket.list()
        # What is not known here may be somebody's: nothing is deleted then.
        is_other = not {KEY}.issuperset(names) and not {NOTE, ARRIVING}.intersection(names)
        _require_no_run(self.address, is_run, is_other)
        self.path.mkdir(parents=True, exist_ok=True)
        moves.write(self.path / ARRIVING, [move])
        if NOTE in names:  # leads its readers until the run is here
            (self.path / NOTE).write_bytes(self._bucket.read(NOTE).data or b"")
        with HomeLock(self.path, self._bucket, is_new=True) as self._lock:
            self._lock.start(lambda line: None)
            yield self._lock.check

    def take(self, records: Mapping[str, pathlib.Path], check: Callable[[], None]) -> None:
        sums = {}
        for name, path in records.items():
            check()
            sums[name] = _copy(path, self.path / name)
        self._push()
        names = self._bucket.list(skipped=f"{CHECKPOINTS}/")
        arrived = {
            name: _sums_of(content) for name, content in segments.files_in(self._bucket, names)
        }
        for name, expected in sums.items():
            if arrived.get(name, _EMPTY) != expected:  # an empty file that grows has no object
                raise _not_whole(f"{self.address}/{name}")

    def commit(self, history: Sequence[Move], config: pathlib.Path) -> None:
        # One after the other, because the objects of one push have no order: beside an older note
        # the history would lead readers in a circle.
        (self.path / NOTE).unlink(missing_ok=True)
        self._push()
        moves.write(self.path / HISTORY, history)
        self._push()
        # Into the bucket first, which counts: readers of this machine bring it here (`refresh`).
        size = config.stat().st_size
        if size > segments.WHOLE_BYTES:
            segments.upload(self._bucket, CONFIG, config)
        elif not self._bucket.write(CONFIG, config.read_bytes(), over=self._bucket.read(CONFIG)):
            what = f"a run was made at {self.address} just now"
            raise RunError(Problem(what, remedy="choose another folder"))
        _copy(config, self.path / CONFIG)
        (self.path / ARRIVING).unlink()
        self._push()

    def _push(self) -> None:
        assert self._lock is not None
        self._lock.push()


_EMPTY = (0, 0)


def _copy(source: pathlib.Path, destination: pathlib.Path) -> tuple[int, int]:
    """Copy a file, durably; return its size and CRC-32."""
    size, checksum = 0, 0
    destination.parent.mkdir(parents=True, exist_ok=True)
    with replacing(destination) as file:
        for block in _blocks(source):
            file.write(block)
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return size, checksum


def _blocks(path: pathlib.Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _sums_of(content: Iterable[bytes]) -> tuple[int, int]:
    size, checksum = 0, 0
    for block in content:
        size, checksum = size + len(block), zlib.crc32(block, checksum)
    return size, checksum


def _not_whole(name: str | os.PathLike[str]) -> RunError:
    return RunError(Problem(f"{name} did not arrive whole", remedy="rerun the command"))
