"""The folder of a study, with a copy of the source that its trials run.

Workers import from the copy, so that an edit in the middle of a study changes nothing in its
trials; the driver notes it.

A study in an object store has a working copy of this folder on the machine of its driver. In the
store, the copy of the source is one archive.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from luthier import graph as graphs
from luthier import project
from luthier.errors import Problem, RunError, UnknownReference, listed
from luthier.graph import Graph, nearest
from luthier.records import object_storage, redaction, trust
from luthier.records.redaction import write_json
from luthier.records.source import hash_package
from luthier.storage import (
    Lock,
    fence,
    read_json,
    replacing,
    run_error,
    sync_directory,
    write_atomically,
)
from luthier.storage.bucket import is_url, patiently

FOLDER = "source"
HASHES = "hashes.json"
ARCHIVE = "source.tar.gz"
"""The copy of the source, where the study is kept in an object store."""
# Hidden folders are git's and editors'.
_LEFT_OUT = shutil.ignore_patterns(".*", "node_modules")
_BYTECODE = "__pycache__"


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Return what is not copied of a folder, for `shutil.copytree`."""
    left = set(_LEFT_OUT(folder, names))
    if os.path.basename(folder) == _BYTECODE:
        # Workers would compile every module again. Python compares time and size of the source,
        # which a copy keeps, and replaces the path. What other processes are writing has names that
        # end otherwise, and may be gone before it is copied.
        mine = f".{sys.implementation.cache_tag}.pyc"
        left |= {name for name in names if not name.endswith(mine)}
    return left


def copy_source(
    directory: str | os.PathLike[str], packages: Sequence[str], *, anew: bool = False
) -> pathlib.Path:
    """Copy the source of luthier and of packages; what was copied before stays as it is.

    Args:
      directory: The study's folder.
      packages: Import names of the user's packages; subpackages of one count with it.
      anew: Whether a copy that is there is replaced.

    Returns:
      The folder of the copy, which belongs in front of the workers' `sys.path`.

    Raises:
      RunError: It cannot be written.
    """
    root = pathlib.Path(directory)
    target, temporary = root / FOLDER, root / f".{FOLDER}.tmp"
    is_in_store = bool(project.bucket_url(root))
    if not anew and is_in_store and (root / ARCHIVE).is_file():
        return unpack_source(root / ARCHIVE, target)
    if not anew and not is_in_store and (target / HASHES).is_file():
        return target
    # Whole top-level packages: a module may import its siblings.
    names = _top_level(packages)
    try:
        # Before the copy: what is edited while it is taken is then reported as edited, and not
        # taken for the source that the workers run. Packages are found by their import names, so
        # the copy, which is not on this process's path, cannot be hashed instead.
        hashes = {name: hash_package(name) for name in names}
        shutil.rmtree(temporary, ignore_errors=True)
        # Into a folder beside the target, and renamed at the end: workers may start from the copy
        # at any moment after it exists.
        temporary.mkdir()
        for name in names:
            for place in _places(name):
                # A namespace package has several folders; they are merged into one, as the import
                # system sees them (`dirs_exist_ok`).
                copy = temporary / place.name
                if place.is_dir():
                    shutil.copytree(place, copy, ignore=_left_out, dirs_exist_ok=True)
                else:
                    shutil.copy2(place, copy)
        write_json(temporary / HASHES, hashes)
        if is_in_store:
            _pack(temporary, root / ARCHIVE)
        # The hashes are written last into the temporary folder: a copy that has them is complete,
        # and one that was interrupted is taken again. That holds for a process that is killed; the
        # files of the copy are not synced one by one, as a power cut would need.
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    except OSError as error:  # `shutil.Error` of `copytree` is one, too
        raise run_error("copy the source to", target, error) from error
    sync_directory(root)
    return target


def _pack(folder: pathlib.Path, archive: pathlib.Path) -> None:
    """Write the archive of a copy; the hashes are its first member."""
    with replacing(archive) as file, tarfile.open(fileobj=file, mode="w:gz") as packed:
        packed.add(folder / HASHES, HASHES, filter=_without_owner)
        for place in sorted(folder.iterdir()):
            if place.name != HASHES:
                packed.add(place, place.name, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if _BYTECODE in member.name.split("/"):
        return None  # the machines that unpack it may have another Python
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack_source(archive: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Unpack the source of a study, unless it is there; return its folder.

    Args:
      archive: The archive, which came from the study's object store.
      target: The folder.

    Raises:
      RunError: The archive is damaged, or the folder cannot be written.
    """
    building = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        with tarfile.open(archive, "r:gz") as packed:
            first = packed.next()
            hashes = packed.extractfile(first) if first and first.name == HASHES else None
            if hashes is None:
                raise RunError(Problem(f"{archive} is damaged: it does not begin with {HASHES}"))
            found = json.loads(hashes.read())
            if found == read_json(target / HASHES):
                return target
            building.mkdir(parents=True)
            # Whoever can write to the bucket chose the names: the filter refuses those that lead
            # out of the folder, links that do, and devices.
            packed.extractall(building, filter="data")
        # Another process of this machine may have done the same meanwhile.
        if found != read_json(target / HASHES):
            shutil.rmtree(target, ignore_errors=True)
            building.rename(target)
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise RunError(Problem(f"{archive} is damaged: {error}")) from error
    except OSError as error:
        raise run_error("copy the source to", target, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def edited_packages(directory: str | os.PathLike[str]) -> list[str]:
    """Return the packages whose source is not what the study's workers run.

    Args:
      directory: The study's folder.
    """
    taken = read_json(pathlib.Path(directory, FOLDER, HASHES), {})
    return [name for name, digest in taken.items() if hash_package(name) != digest]


def _top_level(packages: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.split(".")[0] for name in ("luthier", *packages)))


def _places(name: str) -> Iterator[pathlib.Path]:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return
    # A package. A single module has only the file of its origin.
    if spec.submodule_search_locations is not None:
        yield from map(pathlib.Path, spec.submodule_search_locations)
    elif spec.origin:
        yield pathlib.Path(spec.origin)


# The directory of a study: `<directory>/<name>/`, with everything that is known about it.
#
# study.json the recorded graph of the study study.history.json where each of its values was set
# modules.json the modules that its words may name facts.json what its trials are judged by, for
# those who do not build it journal.jsonl everything that happened source/ the source that its
# workers run, and its hashes trials/0007/ config.json, config.history.json, assignment.json,
# result.json, run/ optuna.journal Optuna's copy, for its dashboard; optuna.log: what went wrong
# with it lock who drives it

KIND = object_storage.HomeKind(
    record="study.json",
    # Written by the workers of trials, on whichever machine they are (`protocol`, `HomeLock`).
    apart=re.compile(r"trials/\d+/(rungs/\d+/)?(run/|result\.json$|traceback\.txt$)"),
    skipped="",
    local=(*object_storage.LOCAL, FOLDER, "optuna.lock", "optuna.journal.lock"),
    remedy="end it, or give this study another name (--name)",
    once=re.compile(r"trials/\d+/(rungs/\d+/)?(config|config\.history|assignment)\.json$"),
)
"""How a study is kept in an object store."""

ASSIGNMENT_FORMAT = 1
"""The format of assignment.json; a file without one is of format 1."""

STUDIES = "studies"
"""Where studies are looked for."""


@dataclasses.dataclass(frozen=True)
class StudyDirectory:
    """A study on the disk.

    Args:
      path: Its folder.
    """

    path: pathlib.Path

    @property
    def journal_path(self) -> pathlib.Path:
        """The journal."""
        return self.path / "journal.jsonl"

    @property
    def exists(self) -> bool:
        """Whether there is a study here."""
        return (self.path / KIND.record).is_file()

    @property
    def address(self) -> str:
        """Where the study is kept: its path, or the URL where an object store is its home."""
        return project.address(self.path)

    def fetch(self, is_writer: bool = False) -> bool:
        """Bring the working copy of a study in an object store up to date.

        Args:
          is_writer: Whether the caller will make the study if there is none.

        Returns:
          Whether there is a study here, or in the object store.

        Raises:
          RunError: The store or the disk refuses.
        """
        home = object_storage.home_of(self.path)
        if home is not None:
            return object_storage.refresh(self.path, home, is_writer, KIND)
        return self.exists

    def lock(self) -> Lock | object_storage.HomeLock:
        """Become the one driver of this study; to be used in a `with`.

        Returns:
          The lock, held.

        Raises:
          RunError: Another process is; the message names it. Or the object store refuses.
        """
        home = object_storage.home_of(self.path)
        if home is None:
            return Lock(self.path / "lock", patience_seconds=_PATIENCE_SECONDS)
        return object_storage.HomeLock(
            self.path, home, kind=KIND, patience_seconds=_PATIENCE_SECONDS
        )

    @property
    def fence(self) -> Callable[[], None]:
        """Raises `LockLost` where this process drove the study, and another one does now."""
        home = object_storage.held(self.path)
        return fence(self.path / "lock") if home is None else home.check

    def trial_path(self, trial: int) -> pathlib.Path:
        """Return the folder of a trial."""
        return self.path / "trials" / f"{trial:04d}"

    def rung_path(self, trial: int, rung: int) -> pathlib.Path:
        """Return the folder of a trial's run to a rung, where its schedule ends at that rung."""
        return self.trial_path(trial) / "rungs" / str(rung)

    def work_path(self, trial: int, rung: int) -> pathlib.Path:
        """Return the folder in which a trial trains towards a rung.

        Args:
          trial: Its number.
          rung: The rung, from 1.

        Returns:
          The folder of its run to that rung, where it has one; else its own.
        """
        path = self.rung_path(trial, rung)
        return path if (path / "config.json").is_file() else self.trial_path(trial)

    def create(self) -> None:
        """Make the folder.

        Raises:
          RunError: It cannot be made.
        """
        try:
            (self.path / "trials").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise run_error("make", self.path, error) from error
        sync_directory(self.path)

    def write_study(self, graph: Graph, shelves: Sequence[str], packages: Sequence[str]) -> None:
        """Write the record of the study; `study.json` last, as the sign that it is complete.

        Args:
          graph: The study's graph, as `without_secrets` returns it.
          shelves: Modules whose fiddlers may be named without their module.
          packages: The user's modules that values may name.
        """
        modules = {"shelves": list(shelves), "packages": list(packages)}
        write_json(self.path / "modules.json", modules)
        text = json.dumps(graphs.history_record(graph), default=str)
        write_atomically(self.path / "study.history.json", redaction.redact(text))
        write_atomically(self.path / "study.json", graphs.to_json(graph))

    def read_modules(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the shelves and the packages that the study was started with."""
        found = read_json(self.path / "modules.json", {})
        return tuple(found.get("shelves", ())), tuple(found.get("packages", ()))

    def read_study(self) -> Graph:
        """Return the study's graph, with its history.

        Raises:
          BadInput: There is none, or it is damaged.
        """
        _, packages = self.read_modules()
        return _read(self.path / "study.json", self.path / "study.history.json", packages)

    def write_trial(self, trial: int, graph: Graph, words: Sequence[str], **asked: Any) -> None:
        """Write the folder of a trial, before it runs.

        Args:
          trial: Its number.
          graph: Its whole graph.
          words: What it sets in the base, in words.
          **asked: What the journal says of its setting, and what else its line can be made again
            from where it is lost: `assignment`, `notes`, `copy_of`.
        """
        assignment = json.dumps(
            {"format": ASSIGNMENT_FORMAT, "trial": trial, "words": list(words), **asked}
        )
        files = {"assignment.json": assignment + "\n"}
        self._write_graph(self.trial_path(trial), graph, files)

    def write_rung(self, trial: int, rung: int, graph: Graph) -> None:
        """Write the folder of a trial's run to a rung, before it runs.

        Args:
          trial: Its number.
          rung: The rung, from 1.
          graph: The trial's graph, with a schedule that ends at the rung.
        """
        path = self.rung_path(trial, rung)
        if not (path / "config.json").is_file():
            self._write_graph(path, graph, {})

    def _write_graph(self, path: pathlib.Path, graph: Graph, files: Mapping[str, str]) -> None:
        # Before the journal is asked: a driver that was paused must not write into the trials of
        # the one that has taken over.
        self.fence()
        history = json.dumps(graphs.history_record(graph), default=str)
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Not synced: the journal knows all of it, and a history can be done without.
            for name, text in {"config.history.json": history, **files}.items():
                (path / name).write_text(redaction.redact(text), encoding="utf-8")
        except OSError as error:
            raise run_error("write", path, error) from error
        # Last and atomically: a trial's folder with this file is complete (`read_trial`).
        write_atomically(path / "config.json", graphs.to_json(graph))
        if (home := object_storage.held(self.path)) is not None:
            # Before the trial is leased: its worker may be on another machine.
            names = [*files, "config.history.json", "config.json"]
            pushed = [(path / name).relative_to(self.path).as_posix() for name in names]
            patiently(lambda: home.push(*pushed))

    def read_trial(self, trial: int) -> Graph:
        """Return the graph of a trial, with its history; None where it was not written.

        Raises:
          BadInput: It is damaged.
        """
        path = self.trial_path(trial)
        if not (path / "config.json").is_file():
            return None
        _, packages = self.read_modules()
        return _read(path / "config.json", path / "config.history.json", packages)


def without_secrets(graph: Graph) -> Graph:
    """Return a study as it is recorded: its storage without the password that a URL may hold.

    Args:
      graph: The study's graph.

    Raises:
      RecordError: Something else of it holds a secret.
    """
    storage = graphs.get(graph, "storage")
    recorded = graph
    if isinstance(storage, str) and redaction.redact(storage) != storage:
        # A copy: the driver itself needs the storage with its password.
        recorded = graphs.copy_graph(graph)
        recorded.storage = redaction.redact(storage)
    # Nothing but the storage is expected to hold a secret. Redacting anything else would record
    # another study than the one that runs, so it is refused.
    redaction.require_none(graphs.to_dict(recorded), "the record of the study")
    return recorded


_PATIENCE_SECONDS = 2.0  # for a driver of this machine that is about to end


def _read(path: pathlib.Path, history: pathlib.Path, packages: Sequence[str]) -> Graph:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise run_error("read", path, error) from error
    graph = graphs.from_json(text, trust.packages_of_study(path, text, packages), source=str(path))
    try:
        record: Mapping[str, Any] | None = read_json(history)
    except RunError:  # a damaged history hides who set what, and nothing else
        record = None
    graphs.restore_history(graph, record)
    return graph


def find_study(
    name: str | os.PathLike[str], directory: str | os.PathLike[str] = STUDIES
) -> StudyDirectory:
    """Return the directory of a study.

    Args:
      name: Its name, its folder, or its URL in an object store.
      directory: Root directory of the studies, or its URL.

    Raises:
      UnknownReference: There is none; the problem holds the nearest names.
      RunError: An object store refuses.
    """
    name = os.fspath(name)
    root = project.records_folder(directory)
    places = [pathlib.Path(name), root / name]
    if is_url(name):
        places = [project.working_copy(name)]
        root = places[0].parent
    for path in places:
        if name and StudyDirectory(path).fetch():
            return StudyDirectory(path)
    known = _known_studies(root)
    near = nearest(name if not is_url(name) else places[0].name, known)
    remedy = f"{project.address(root)}/ holds no studies"
    remedy = f"there are {listed(known)}" if known else remedy
    what = f"there is no study {name!r}"
    raise UnknownReference(Problem(what, nearest=near, remedy="" if near else remedy))


def _known_studies(root: pathlib.Path) -> list[str]:
    """Return the names of the studies in a folder, on a disk or in an object store."""
    # Folders without `study.json` are not offered: they are of starts that were interrupted, or of
    # something else.
    if (home := object_storage.home_of(root)) is not None:
        parts = [name.split("/") for name in home.list()]
        return sorted(part[0] for part in parts if part[1:] == [KIND.record])
    found = [entry.name for entry in root.iterdir()] if root.is_dir() else []
    return sorted(entry for entry in found if StudyDirectory(root / entry).exists)


def trial_graph(reference: str, directory: str | os.PathLike[str] = STUDIES) -> Graph:
    """Return the graph of a trial, from which it can be run again exactly.

    Args:
      reference: `NAME/17`; for NAME, the folder or the URL of the study is right as well.
      directory: Root directory of the studies, or its URL.

    Returns:
      The graph of the experiment, with the overrides of the trial in it.

    Raises:
      BadInput: There is no such study or trial, or it is damaged.
    """
    name, _, number = reference.rpartition("/")
    if not name or not number.isdecimal():
        remedy = "write study:NAME/17"
        raise UnknownReference(
            Problem(f"{reference!r} does not name a trial of a study", remedy=remedy)
        )
    study = find_study(name, directory)
    graph = study.read_trial(int(number))
    if graph is None:
        there = sorted(entry.name for entry in (study.path / "trials").glob("[0-9]*"))
        remedy = f"its trials go from 0 to {int(there[-1])}" if there else "it has none yet"
        raise UnknownReference(Problem(f"{name} has no trial {number}", remedy=remedy))
    return graph
