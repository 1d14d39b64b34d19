"""The commit of a checkpoint: its last file, its checks, and how processes agree on it.

Orbax has its own commit, which says that all files were written. It does not say what is in them,
and restores a flipped bit without an error. Therefore `commit.json` is written last of all and
lists every file with its size and CRC-32: a folder without it is not a checkpoint, and one whose
files differ from it is damaged.

How several processes save: each writes its shards, flushes and checksums its own files
(`seal_own`), and sends the sums to the primary (`finish`). The primary alone gives the folder its
name and writes the commit file, after all have reported success, and answers all of them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import json
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from luthier.checkpoint import arrays as arrays_lib
from luthier.checkpoint.files import Files, Folder, files_of, folder
from luthier.errors import CheckpointError, LuthierError, Problem, VersionError

if TYPE_CHECKING:
    from luthier.parallel.distributed import Rounds


# The file that makes a directory a checkpoint.
#
# Orbax commits its arrays by a rename, but does not notice a flipped bit in them. So once all of
# its files are in place they are listed, with checksums, in one more file that is moved in last: a
# directory with that file is a whole checkpoint, and one without is the remains of a save.

FILE = "commit.json"
_FORMAT = 1
_NUM_THREADS = 4
# Orbax's names: arrays/ocdbt.process_3/..., arrays/array_metadatas/process_3.
_OF_PROCESS = re.compile(r"(?:.*[._-])?process_(\d+)(?:[._-].*)?")


@dataclasses.dataclass(frozen=True)
class Commit:
    """The contents of a checkpoint.

    Args:
      step: Optimizer steps done.
      arrays: Shape and dtype name of every array.
      extra: JSON-able facts that the trainer keeps beside the arrays.
      metrics: Metrics known when it was saved, by `evaluation/metric`.
      versions: Versions of the packages that wrote it.
      has_iterator: Whether the state of a data iterator is inside.
      files: Size in bytes and CRC-32 of every file, by its path in the checkpoint.
    """

    step: int
    arrays: Mapping[str, tuple[tuple[int, ...], str]]
    extra: Mapping[str, Any]
    metrics: Mapping[str, float]
    versions: Mapping[str, str]
    has_iterator: bool
    files: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


def describe(
    step: int,
    arrays: Mapping[str, Any],
    extra: Mapping[str, Any] | None,
    metrics: Mapping[str, float] | None,
    versions: Mapping[str, str],
    has_iterator: bool,
) -> Commit:
    """Return the commit of a save that begins, without its files.

    Args:
      step: Optimizer steps done.
      arrays: Arrays by name.
      extra: JSON-able facts, copied.
      metrics: Values by `evaluation/metric`.
      versions: Versions of the packages that write it.
      has_iterator: Whether the state of a data iterator is saved.
    """
    return Commit(
        step=step,
        arrays={name: (tuple(a.shape), str(a.dtype)) for name, a in arrays.items()},
        # A deep copy, and a proof here and now that it is JSON: the commit file is written by
        # another thread, minutes later.
        extra=json.loads(json.dumps(extra or {})),
        metrics={name: float(value) for name, value in (metrics or {}).items()},
        versions=versions,
        has_iterator=has_iterator,
    )


def seal_own(directory: Folder, process: int) -> dict[str, tuple[int, int]]:
    """Put the files that a process wrote onto the disk; return their sizes and checksums.

    Every process does this for its own files, right after writing them: it finds them in its page
    cache, and only the host that wrote a file can flush it where disks are shared over a network.

    Args:
      directory: The checkpoint, which holds all arrays and is not committed.
      process: Index of this process among those of the run.
    """
    files = files_of(directory)
    return _seal(files, [path for path in files.paths() if writer(path) == process])


def writer(path: str) -> int | None:
    """Return the process that wrote a file; None for those that Orbax's primary writes for all.

    Args:
      path: In the checkpoint, as `arrays/ocdbt.process_3/d/0f...`.
    """
    # The last match: a file of `ocdbt.process_3` may lie below a folder with another process's
    # number.
    parts = [match for part in path.split("/") if (match := _OF_PROCESS.fullmatch(part))]
    return int(parts[-1][1]) if parts else None


def write(
    directory: Folder, commit: Commit, sums: Mapping[str, tuple[int, int]] | None = None
) -> Commit:
    """Make `directory` a checkpoint: list its files in a commit file, and return the commit.

    Everything is on the disk, not only in its cache, before the commit file is.

    Args:
      directory: The checkpoint.
      commit: Its content, without its files.
      sums: Results of `seal_own` in the processes; other files are read here.
    """
    # Sums of other processes arrive as JSON, where pairs are lists.
    files = {path: (size, checksum) for path, (size, checksum) in (sums or {}).items()}
    stored = files_of(directory)
    # What no process claimed was written by Orbax's primary for all of them (metadata, the merged
    # manifest); we are that primary, so these are in our page cache.
    files |= _seal(stored, [path for path in stored.paths() if path not in files])
    commit = dataclasses.replace(commit, files=dict(sorted(files.items())))
    # The commit file has a checksum of itself, over its JSON in sorted order: a flipped bit in a
    # step number or a metric would otherwise be believed.
    content = {"format": _FORMAT, **dataclasses.asdict(commit)}
    text = json.dumps({"checksum": _text_checksum(content), **content}, indent=1)
    stored.write_last(FILE, text)
    return commit


def read(directory: Folder) -> Commit:
    """Read the commit file of the checkpoint in `directory`.

    Raises:
      CheckpointError: The commit file is damaged.
      VersionError: It is whole, and was written by another version of luthier.
      OSError: It is there, and cannot be read now.
    """
    # A file that is gone or no text is damage, which a start passes over; any other error of the
    # disk may pass by itself, and must not cost a good checkpoint.
    try:
        text = files_of(directory).read_text(FILE)
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError) as error:
        raise _damaged(directory, error) from error
    try:
        content = json.loads(text)
        checksum = content.pop("checksum")
        if checksum != _text_checksum(content):
            raise ValueError("its checksum differs")
        # The order of the two tests separates damage from a later version. Damage lets a start fall
        # back to an older checkpoint; a later version must end the start, because falling back
        # would throw away good steps. Where the checksum is right, an unknown field was written on
        # purpose. A known field that is missing ends as damage, at `Commit(**content)`: none may go
        # without another `_FORMAT`.
        format, fields = content.pop("format"), dataclasses.fields(Commit)
        if format != _FORMAT or set(content) - {field.name for field in fields}:
            raise _foreign(directory, content)
        for name in ("arrays", "files"):
            content[name] = {key: tuple(value) for key, value in content[name].items()}
        content["arrays"] = {
            key: (tuple(shape), dtype) for key, (shape, dtype) in content["arrays"].items()
        }
        commit = Commit(**content)
        # Fails for half of a surrogate pair, which JSON can spell and no message or file can hold.
        json.dumps(content, ensure_ascii=False).encode()
        if not _is_sound(commit):
            raise ValueError("one of its fields has the wrong type")
        return commit
    # All that JSON of another form leads to: a list has no `pop` of names, a number no `items`.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(directory, error) from error


def _damaged(directory: Folder, error: Exception) -> CheckpointError:
    return CheckpointError(Problem(f"{directory} is damaged: {FILE} cannot be read ({error})"))


def _foreign(directory: Folder, content: Mapping[str, Any]) -> VersionError:
    versions = content.get("versions")
    writer = versions.get("luthier") if isinstance(versions, dict) else None
    by = f"luthier {writer}" if isinstance(writer, str) else "another version of luthier"
    what = f"{directory} was written by {by}, in a format that this version does not know"
    return VersionError(Problem(what, remedy="continue the run with that version; nothing changed"))


def _is_sound(commit: Commit) -> bool:
    """Return whether every field is of its kind, and every file lies in the checkpoint."""
    kinds = {"step": int, "extra": dict, "metrics": dict, "versions": dict, "has_iterator": bool}
    shapes = (shape for shape, _ in commit.arrays.values())
    paths = (pathlib.PurePosixPath(path) for path in commit.files)
    return (
        all(isinstance(getattr(commit, name), kind) for name, kind in kinds.items())
        and all(isinstance(size, int) for shape in shapes for size in shape)
        and all(isinstance(dtype, str) for _, dtype in commit.arrays.values())
        and all(isinstance(value, int | float) for value in commit.metrics.values())
        and all(isinstance(version, str) for version in commit.versions.values())
        and all(list(map(type, sums)) == [int, int] for sums in commit.files.values())
        # A commit file may come with a checkpoint that somebody else made; checking it must not
        # read files outside of it.
        and not any(path.is_absolute() or ".." in path.parts for path in paths)
    )


def check(directory: Folder, commit: Commit, paths: Sequence[str] | None = None) -> list[str]:
    """Read every file and return the damage found, such as `path is missing`.

    Args:
      directory: The checkpoint.
      commit: Its commit.
      paths: The files to read; None means all.

    Raises:
      OSError: A file is there, and cannot be read now.
    """

    files = files_of(directory)

    def compare(path: str) -> str | None:
        try:
            actual = files.checksum(path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{path} is missing"
        if actual[0] != commit.files[path][0]:
            return f"{path} has {actual[0]} bytes, not {commit.files[path][0]}"
        return None if actual == commit.files[path] else f"{path} differs from what was written"

    # In order of paths, so that every run reports the same damage first. `pool.map` raises an
    # OSError of any file, after which nothing is known about the others.
    wanted = sorted(commit.files) if paths is None else paths
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        return [damage for damage in pool.map(compare, wanted) if damage]


def share(commit: Commit, process: int, num_processes: int) -> list[str]:
    """Return the files of a checkpoint that a process checks; every file is checked by one.

    As far as that is fair a process checks what it wrote: it is likely to restore that next, and
    then finds it in its page cache.

    Args:
      commit: The commit of the checkpoint.
      process: Index of the process.
      num_processes: Number of processes that check together.
    """
    load = [0] * num_processes
    # All processes compute the same assignment from the same list without talking: largest files
    # first, each to its writer unless that would have a quarter more than its share, else to the
    # least loaded (the first of equals). Writers never have equal parts: without the quarter, files
    # would leave warm page caches to even out what does not matter. A writer that does not exist
    # any more (the run has fewer processes now) has no cache either.
    fair = 1.25 * sum(size for size, _ in commit.files.values()) / num_processes
    mine = []
    for path, (size, _) in sorted(commit.files.items(), key=lambda item: (-item[1][0], item[0])):
        chosen, least = writer(path), min(range(num_processes), key=load.__getitem__)
        if chosen is None or chosen >= num_processes or load[chosen] + size > fair:
            chosen = least
        load[chosen] += size
        if chosen == process:
            mine.append(path)
    return sorted(mine)


def _seal(files: Files, paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        sums = pool.map(lambda path: files.checksum(path, sync=True), paths)
        return dict(zip(paths, sums, strict=True))


def _text_checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


# Checking the files of a checkpoint with all processes of a run, each a part of them.
#
# The primary decides which checkpoint is looked at; the others help it until it has found one. All
# of them read at the same time, and what one of them finds, the primary learns.

# The primary looks for the newest whole checkpoint by reading everything, which takes minutes where
# one host reads what many wrote. So the others enter a loop (`help_primary`), in which each
# receives a directory, checks its share and gives back the damage; None ends the loop. A context
# variable tells `check_in_parallel` whether the others are in that loop: an exchange that they do
# not answer would wait for ever.
_is_helped = contextvars.ContextVar("is_helped", default=False)


@contextlib.contextmanager
def helped() -> Iterator[None]:
    """Let the other processes, which call `help_primary`, take their part in each `check`.

    Within the `with` block of the primary; of one process alone this changes nothing.
    """
    from luthier.parallel import distributed

    if not distributed.is_several():
        yield
        return
    token = _is_helped.set(True)
    try:
        yield
    finally:
        _is_helped.reset(token)
        distributed.from_primary(lambda: None)  # there is nothing more to do


def help_primary() -> None:
    """Check parts of the checkpoints that the primary looks at, until it has found one."""
    from luthier.parallel import distributed

    while (directory := distributed.from_primary(lambda: None)) is not None:
        _check_part(folder(directory), None)


def check_in_parallel(directory: Folder, commit: Commit) -> list[str]:
    """Read every file of a checkpoint and return the damage found.

    Args:
      directory: The checkpoint.
      commit: Its commit.

    Raises:
      OSError: A file is there, and cannot be read now.
    """
    if not _is_helped.get():
        return check(directory, commit)
    from luthier.parallel import distributed

    distributed.from_primary(lambda: str(directory))
    return _check_part(directory, commit)


def _check_part(directory: Folder, commit: Commit | None) -> list[str]:
    from luthier.parallel import distributed

    damage: list[str] = []
    refusal: tuple[int | None, str] | None = None
    try:
        # Errors are caught and exchanged instead of raised: a process that left here would let the
        # others wait in `gather`.
        commit = read(directory) if commit is None else commit
        part = share(commit, distributed.process_index(), distributed.process_count())
        damage = check(directory, commit, part)
    except OSError as error:
        refusal = (error.errno, str(error))
    except LuthierError as error:  # the primary could read the commit file, and this one cannot
        damage = [f"process {distributed.process_index()}: {error}"]
    everything = distributed.gather([damage, refusal])
    for _, refused in everything:
        if refused is not None and distributed.process_index() == 0:
            raise OSError(*refused)  # the primary decides whether all try again
    return sorted(line for lines, _ in everything for line in lines)


# How the processes of a run agree that a save is done, or why it is not.

Sums = Mapping[str, tuple[int, int]]
"""Size in bytes and CRC-32 of files, by their path in the checkpoint."""

Failure: TypeAlias = "Sequence[Any] | None"
"""The line of an error and its exit code; None for success. JSON, since processes exchange it."""

# Exchanges are addressed by name, and a process may open a second store on the same directory (a
# resumed run within a notebook): without the number its first exchange would read the answers of
# the first store.
_num_saving: dict[Folder, int] = {}
"""The number of stores that have saved in a directory: the same in all processes."""


def rounds(directory: Folder) -> Rounds:
    """Return the exchanges of one more store that saves in a directory.

    Args:
      directory: The same in all processes, which call this in the same order.
    """
    from luthier.parallel.distributed import Rounds

    number = _num_saving[directory] = _num_saving.get(directory, 0) + 1
    return Rounds(f"commits{directory}/{number}")


_TRIM_BYTES = 2**24


def finish(
    pending: arrays_lib.Pending,
    rounds: Rounds,
    *,
    seal: Callable[[], Sums],
    commit: Callable[[Sums], None],
    summarize: Callable[[Exception], tuple[str, int]],
) -> None:
    """Wait for the arrays of all processes, and have the primary commit them.

    The others wait for as long as that takes; an error of one process is raised in all of them.

    Args:
      pending: The arrays of this process that are being written.
      rounds: The exchanges of the processes.
      seal: Puts the files of this process onto the disk; returns their checksums.
      commit: Commits the checkpoint, with the checksums of all processes; called by the primary,
        when all arrays are written.
      summarize: Returns an error in one line, and its exit code, for other processes.

    Raises:
      Exception: This process's own error.
      CheckpointError: The error of another process.
    """
    # Every path through here reaches `exchange` exactly once, in every process, whatever fails: a
    # process that raised before would leave the others waiting. Only then does each raise its own
    # error, or report that of another.
    own: Exception | None = None

    def commit_all(outcomes: Sequence[tuple[Failure, Sums]]) -> Failure:
        nonlocal own
        if (why := next((why for why, _ in outcomes if why), None)) is None:
            try:
                commit({path: entry for _, sums in outcomes for path, entry in sums.items()})
            # Not raised here, inside of the exchange: the others would get no answer.
            except Exception as error:
                own, why = error, summarize(error)
        return why

    sums: Sums = {}
    try:
        with arrays_lib.without_logs():
            pending.result()
        sums = seal()
        # Orbax's host copies are freed now, and glibc would keep their pages for the process. It
        # takes milliseconds, which small ones are not worth.
        if sum(size for size, _ in sums.values()) >= _TRIM_BYTES:
            arrays_lib.trim()
    except Exception as error:
        own = error
    why = rounds.exchange((None if own is None else summarize(own), sums), commit_all)
    # `why` is the first reason only, since every process that failed raises its own. `commit` was
    # called only where none had, so that the primary has at most one error, too.
    if own is not None:
        raise own
    if why is not None:
        line, exit_code = why
        raise CheckpointError(Problem(line), exit_code)
