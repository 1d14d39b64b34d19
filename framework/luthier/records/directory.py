"""A run's directory: `<root>/<name>/<id>/`, with everything that is known about the run.

config.json          the recorded graph that was executed
config.history.json  where each of its values was set
config.txt           the same graph for reading
config.values.json   its values as nested plain data, for other programs
plan.json            what it was expected to cost
source.json          which source ran (and source-*.patch: how it differs from its commit)
status.json          the status of the run
goodput.jsonl        where its time went, over all its processes
hosts.jsonl          what each host of several took
metrics.jsonl        every step, evaluation, sample and notice
console.log          what was shown while it trained, over all starts
media/               the images, as <name>/<step>.png
lock                 who writes here
code.json, code/     the user's own code (and code.1.json: what an earlier start ran)
crash/               the traceback of each failure, and the state of the machine
checkpoints/         what training resumes from
restored.txt         where each first parameter came from, where some came from elsewhere
restored.json        the config.json and its like that came with them
tokenizer/           the tokenizer that came with them
wandb.json, wandb/   the mirror for Weights & Biases
.trash/              what restarts cut off, until a later step is saved
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luthier import project
from luthier.errors import Problem, RunError
from luthier.records import crash, events, goodput, object_storage
from luthier.records import source as source_lib
from luthier.records.media import MediaFiles
from luthier.records.metrics_file import CutBack, cut_back, read_last
from luthier.records.redaction import redact, require_none, write_json
from luthier.records.source import Source
from luthier.records.status import CREATED, Status, read_status, status_fields, write_status
from luthier.storage import (
    Holder,
    Lock,
    fence,
    json_text,
    moves,
    read_json,
    require_known_format,
    run_error,
    sync_directory,
    write_atomically,
    write_together,
)
from luthier.storage.bucket import patiently
from luthier.storage.segments import LISTING_SECONDS
from luthier.storage.trash import empty_before_step, move_to_trash

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*")


def new_id() -> str:
    """Return an id for a run that no other has: the time, which sorts, and four random digits.

    Returns:
      The id, as `20261125-143000-a1b2`.

    Example:
      >>> from luthier import records
      >>> len(records.new_id())
      20
    """
    return time.strftime("%Y%m%d-%H%M%S-") + os.urandom(2).hex()


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A graph in the forms in which it is recorded.

    Args:
      graph: The graph as JSON text, from which it can be rebuilt.
      history: Where each value was set, by path.
      text: The rendered graph, for reading.
      values: The graph's values as nested plain data, or None.
    """

    graph: str
    history: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    text: str = ""
    values: Mapping[str, Any] | None = None

    def files(self) -> dict[str, str]:
        """Return the text of every file, by name.

        Returns:
          Texts by file name.

        Raises:
          RecordError: The graph holds a secret; it is recorded as it is, or not at all.
        """
        files = {
            "config.json": self.graph if self.graph.endswith("\n") else self.graph + "\n",
            "config.history.json": json.dumps(self.history, indent=1, default=str) + "\n",
            "config.txt": self.text if self.text.endswith("\n") else self.text + "\n",
        }
        if self.values is not None:
            files["config.values.json"] = json.dumps(self.values, indent=1, default=str) + "\n"
            require_none(self.values, "the record of the run")
        # config.json is recorded as it is or refused (`require_none`): with stars in the place of a
        # value it would rebuild another experiment.
        return {n: text if n == "config.json" else redact(text) for n, text in files.items()}


def name_problem(value: str, owner: str, what: str = "name") -> Problem | None:
    """Return why a text cannot name a folder of records; None where it can.

    Args:
      value: The text.
      owner: Whose name it would be: `a run`.
      what: `name` or `id`.

    Returns:
      The problem, or None.

    Example:
      >>> from luthier import records
      >>> print(records.name_problem("gpt2-small", "a run"))
      None
      >>> print(records.name_problem("gpt2 small", "a run"))
      name: 'gpt2 small' cannot be the name of a run; use letters, digits ...
    """
    # Names become folders, lines of job scripts and keys of buckets: spaces, slashes, quotes and
    # control characters are refused once, here.
    if _NAME.fullmatch(value):
        return None
    remedy = "use letters, digits and ._=,+-, and start with a letter or digit"
    return Problem(f"{value!r} cannot be the {what} of {owner}", what, remedy=remedy)


class RunDirectory:
    """A run's directory, which exists; make one with `create`, `open` or `luthier.records.find`.

    Args:
      path: The directory.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        # Resolved, since the same run is reached by a relative path, an absolute one, or a link.
        return isinstance(other, RunDirectory) and self.path.resolve() == other.path.resolve()

    def __hash__(self) -> int:
        return hash(self.path.resolve())

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        name: str,
        id: str | None = None,
        *,
        configuration: Configuration,
        source: Source | None = None,
        plan: Mapping[str, Any] | None = None,
    ) -> RunDirectory:
        """Make a run's directory; it appears whole, or not at all.

        Args:
          root: Where runs are kept.
          name: The experiment's name.
          id: The run's id; a new one when it is None.
          configuration: The graph that will be executed.
          source: The source that will run.
          plan: The predicted cost of the run.

        Returns:
          The directory, not locked yet.

        Raises:
          RunError: The run exists, a name cannot name a directory, or the disk refuses.
        """
        id = new_id() if id is None else id
        path = cls.locate(root, name, id)
        # config.json decides whether there is a run: folders that hold anything else are not taken
        # over.
        if (path / "config.json").exists():
            remedy = "open it to continue the run, or choose another id"
            raise RunError(Problem(f"the run {path} exists already", remedy=remedy))
        # Beside the final place, since a rename does not cross file systems. A run exists once it
        # has its config.json, and appears with all of its files at once. The name is random: a
        # process of another container may have the same number, and be at work there, or be dead.
        # `rename` refuses a folder that is not empty: of two processes that make one run at a time,
        # one fails.
        building = path.with_name(f".{id}.{os.urandom(4).hex()}.tmp")
        files = configuration.files()
        if source is not None:
            files |= source.files()
        if plan is not None:
            files["plan.json"] = json_text(plan)
        # From the first moment, so that a run that is killed before its first step is listed as
        # created, and not as damaged.
        files["status.json"] = json_text(status_fields(Status()))
        try:
            building.mkdir(parents=True)
            write_together(building, files)
            os.rename(building, path)
            sync_directory(path.parent)
        except OSError as error:
            raise run_error("create", path, error) from error
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return cls(path)

    @staticmethod
    def locate(root: str | os.PathLike[str], name: str, id: str) -> pathlib.Path:
        """Return where a run's directory is, or would be.

        Args:
          root: Where runs are kept; for the URL of an object store, its working copy.
          name: The name of the experiment.
          id: The id of the run.

        Returns:
          The path, which need not exist.

        Raises:
          RunError: `name` or `id` cannot name a directory.
          BadInput: `root` is a URL, and not one of an object store.
        """
        # pathlib would take `gs://lab/runs` for a folder called `gs:`.
        if "://" in os.fspath(root):
            root = project.records_folder(root)
        for problem in (name_problem(name, "a run"), name_problem(id, "a run", "id")):
            if problem is not None:
                raise RunError(problem)
        return pathlib.Path(root) / name / id

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Return the run's directory at `path`.

        Args:
          path: The path.

        Returns:
          The directory.

        Raises:
          RunError: There is no such run.
        """
        directory = cls(path)
        if not directory.config_path.is_file():
            remedy = "`luthier runs` lists the runs"
            raise RunError(Problem(f"{directory.path} is not a run's directory", remedy=remedy))
        return directory

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.path.resolve().parent.name

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.resolve().name

    @property
    def config_path(self) -> pathlib.Path:
        """The recorded graph."""
        return self.path / "config.json"

    @property
    def metrics_path(self) -> pathlib.Path:
        """Every step, evaluation, sample and notice, a line each."""
        return self.path / "metrics.jsonl"

    @property
    def console_path(self) -> pathlib.Path:
        """What was shown on the console while it trained, over all of its starts."""
        return self.path / "console.log"

    @property
    def goodput_path(self) -> pathlib.Path:
        """The account of its time, a line for each stretch."""
        return self.path / goodput.FILE

    @property
    def status_path(self) -> pathlib.Path:
        """The status of the run."""
        return self.path / "status.json"

    @property
    def checkpoints_path(self) -> pathlib.Path | str:
        """The folder of the checkpoints, or its URL where an object store is the run's home."""
        url = project.bucket_url(self.path)
        return f"{url}/checkpoints" if url else self.path / "checkpoints"

    @property
    def address(self) -> str:
        """Where the run is kept: its path, or the URL where an object store is its home."""
        return project.address(self.path)

    @property
    def tokenizer_path(self) -> pathlib.Path:
        """The folder of the tokenizer that came with restored weights."""
        return self.path / "tokenizer"

    @property
    def restored_path(self) -> pathlib.Path:
        """The provenance of the initial parameters."""
        return self.path / "restored.txt"

    @property
    def lock_path(self) -> pathlib.Path:
        """The lock file, which names the process that writes here."""
        return self.path / "lock"

    def read_config(self) -> str:
        """Return the recorded graph as JSON text.

        Returns:
          JSON text, for `luthier.graph.from_json`.

        Raises:
          RunError: It cannot be read.
        """
        try:
            return self.config_path.read_text(encoding="utf-8")
        except OSError as error:
            raise run_error("read", self.config_path, error) from error
        except UnicodeDecodeError as error:
            raise RunError(Problem(f"{self.config_path} is damaged: {error}")) from None

    def read_history(self) -> dict[str, Any]:
        """Return where each value of the graph was set; empty where that was not recorded.

        Returns:
          A record, for `luthier.graph.restore_history`.
        """
        return read_json(self.path / "config.history.json", default={})

    def read_values(self) -> dict[str, Any]:
        """Return the graph's values as nested plain data; empty where they were not recorded.

        Returns:
          Nested dicts and lists.
        """
        return read_json(self.path / "config.values.json", default={})

    def read_source(self) -> dict[str, Any]:
        """Return the record of the source that ran last; empty if it was not recorded.

        Returns:
          Plain values by name.
        """
        return read_json(self.path / "source.json", default={})

    def read_plan(self) -> dict[str, Any] | None:
        """Return the plan, or None if it was not recorded.

        Returns:
          Plain values, or None.
        """
        return read_json(self.path / "plan.json")

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Record the plan: the predicted cost of the run.

        Args:
          plan: The plan, as plain values.
        """
        self.fence()
        write_json(self.path / "plan.json", plan)

    def write_restored(
        self, table: str, settings: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Record where each first parameter came from.

        Args:
          table: It in text.
          settings: The files of settings that belong to the weights, by name.
        """
        self.fence()
        if settings:
            write_json(self.path / "restored.json", settings)
        write_atomically(self.restored_path, redact(table))

    def read_restored(self) -> dict[str, Any]:
        """Return the files of settings that came with restored weights, by name.

        Returns:
          The content of each file.
        """
        return read_json(self.path / "restored.json", default={})

    def write_source(self, source: Source) -> None:
        """Record what source runs from now on.

        Args:
          source: The source.
        """
        self._replace(source.files())

    def write_code(self, packages: Sequence[str]) -> None:
        """Keep the user's code that runs from now on; the earlier list stays as `code.1.json`.

        Args:
          packages: Import names of the packages.
        """
        self._replace({source_lib.FILE: source_lib.keep_code(self.path, packages)})

    def write_configuration(self, configuration: Configuration) -> None:
        """Record the graph of a resumed run; the earlier one stays as `config.1.json`.

        Args:
          configuration: The graph as it is recorded.
        """
        self._replace(configuration.files())

    def _replace(self, files: Mapping[str, str]) -> None:
        """Write the files that changed, and keep what they were under the first free number."""
        self.fence()
        changed = {}
        for name, text in files.items():
            path = self.path / name
            try:
                before = path.read_text(encoding="utf-8") if path.exists() else None
            except OSError as error:
                raise run_error("read", path, error) from error
            # Files that did not change keep no copy: a run that is resumed a hundred times has one
            # config.
            if before != text:
                changed[name] = (before, text)
        # One number for all files of a change, so that `config.2.json` and `config.history.2.json`
        # belong together.
        number = 1
        while any((self.path / _numbered(name, number)).exists() for name in changed):
            number += 1
        for name, (before, text) in changed.items():
            if before is not None:
                write_atomically(self.path / _numbered(name, number), before)
            write_atomically(self.path / name, text)

    def read_status(self) -> Status:
        """Return the status of the run: `running` only if a process really holds its lock.

        Returns:
          The status.

        Raises:
          RunError: status.json is damaged.
        """
        status = read_status(self.status_path)
        # A process that is killed cannot write how it ended. That its lock is free says so for it.
        if status.status == events.RUNNING and self.writer() is None:
            # A native crash leaves stacks by faulthandler; an older file belongs to an earlier
            # process, hence the comparison of times.
            message, path = "the process ended without a message", crash.newest(self.path)
            relative = ""
            if (
                path is not None
                and crash.is_native(path)
                and path.stat().st_mtime > status.updated - 1
            ):
                message = f"the process ended: {crash.cause(path)}; stacks: {path}"
                relative = path.relative_to(self.path).as_posix()
            status = dataclasses.replace(
                status, status=events.INTERRUPTED, message=message, crash=relative
            )
        return status

    def write_status(self, status: Status) -> None:
        """Write the status of the run.

        Args:
          status: The status.

        Raises:
          LockLost: Another process writes the run now.
          RunError: The disk refuses.
        """
        self.fence()
        write_status(self.status_path, status, self.fence)

    def require_known_formats(self) -> None:
        """Refuse a run that a later luthier recorded in formats of its own, before any change.

        Raises:
          VersionError: A file that is appended to, or read back, is of a newer format.
          RunError: status.json is damaged.
        """
        read_status(self.status_path)
        for path in (self.metrics_path, self.goodput_path):
            require_known_format(path)

    @property
    def fence(self) -> Callable[[], None]:
        """Raises `LockLost` where this process locked the directory, and has lost the lock."""
        if (home := object_storage.held(self.path)) is not None:
            return home.check
        # Looked up anew each time: the lock is taken after this object was made, and a process that
        # only reads holds none.
        return fence(self.lock_path)

    def require_here(self) -> None:
        """Refuse a place whose run was moved elsewhere.

        Raises:
          RunError: It was, or the object store refuses that may have the run.
        """
        # A note without a config is of a run that was moved, wherever it is now. With a config it
        # is of a move that was interrupted: before the run was at the new place, or after.
        is_there = self.config_path.is_file()
        note = moves.note_of(self.path if is_there else self.address)
        if note is None or (is_there and not note.has_arrived):
            return
        place = moves.moved_to(self.path if is_there else self.address) or note.destination
        folder = place.rsplit("/", 2)[0]
        what = f"the run {self.name}/{self.id} was moved to {place}"
        remedy = f"set records.directory={folder}, or start a separate run with --new"
        raise RunError(Problem(what, remedy=remedy))

    def forget_move(self) -> None:
        """Forget a move that was interrupted before the run was at the new place.

        Called by the writer: the run changes here from now on.

        Raises:
          RunError: It is there, or the disk or the store refuses.
        """
        self.require_here()
        try:
            (self.path / moves.NOTE).unlink(missing_ok=True)
        except OSError as error:
            raise run_error("remove", self.path / moves.NOTE, error) from error

    def writer(self) -> Holder | None:
        """Return the live process that writes here, if any.

        Returns:
          The process, or None.
        """
        return object_storage.writer(self.path)

    def lock(self, is_new: bool = False) -> Lock | object_storage.HomeLock:
        """Become the one writer of this run; release it, or use it in a `with`.

        Args:
          is_new: Whether the directory was made just now.

        Returns:
          The lock, held.

        Raises:
          RunError: Another process is; the message names it. Or the object store refuses that is
            the run's home.
        """
        home = object_storage.home_of(self.path)
        if home is not None:
            return object_storage.HomeLock(self.path, home, is_new)
        return Lock(self.lock_path)

    def upload(self) -> None:
        """Bring what was recorded into the object store that is the run's home, if it has one.

        Raises:
          LockLost: Another process writes the run now.
          RunError: The store or the disk refuses. A store that is away is waited for.
        """
        if (home := object_storage.held(self.path)) is not None:
            patiently(home.push)

    def await_listing(self, is_complete: Callable[[], bool]) -> None:
        """Wait a while where the object store that is the run's home does not list everything yet.

        Args:
          is_complete: Returns whether it does, as far as the record knows.

        Raises:
          RunError: The store or the disk refuses.
        """
        home = object_storage.held(self.path)
        deadline = time.monotonic() + LISTING_SECONDS
        while home is not None and not is_complete() and time.monotonic() < deadline:
            time.sleep(1)
            home.list_again()

    def cut_back(self, step: int | None) -> CutBack:
        """Drop what was recorded after the restored `step` (None: nothing was restored).

        What is dropped stays in the trash, until a later step than it reached is saved.

        Args:
          step: The restored step; None where nothing was restored.

        Returns:
          What was dropped.

        Raises:
          RunError: The file cannot be read or written.
        """
        self.fence()
        # -1 drops the lines of step 0, too (a header, an evaluation of untrained parameters): where
        # nothing was restored the run begins again.
        last = -1 if step is None else step
        reason = f"training was resumed from step {step or 0}"
        # The order: a copy first, then the cut, then the copy into the trash. A kill in between
        # leaves the copy beside the file, and the next start cuts again.
        copy, reached = self._copy_of_metrics(last)
        MediaFiles(self.path).cut_back(last, reason)
        result = cut_back(self.metrics_path, last)
        if copy is not None:
            if result.dropped:
                move_to_trash(copy, f"{reason}: the record as it was, to step {reached}")
            else:
                copy.unlink()
        return result

    def _copy_of_metrics(self, last: int) -> tuple[pathlib.Path | None, int]:
        """Copy metrics.jsonl as it is, so that nothing of it can be lost; return its last step."""
        if not self.metrics_path.is_file():
            return None, 0
        final = read_last(self.metrics_path, events.Step)
        # The name carries the last step in it: `empty_trash` keeps it until a later one is saved.
        reached = max(last, 0) if final is None else final.step
        copy = self.path / f"metrics.{reached}.jsonl"
        try:
            shutil.copyfile(self.metrics_path, copy)
        except OSError as error:
            copy.unlink(missing_ok=True)
            raise run_error("copy", self.metrics_path, error) from error
        return copy, reached

    def empty_trash(self, saved_step: int) -> None:
        """Remove what restarts cut off before a step that is durably saved now.

        Args:
          saved_step: The step that is saved.
        """
        empty_before_step(self.path, saved_step)

    def recorded_save(self) -> int:
        """Return the step of the last save that is recorded; 0 where none is.

        Returns:
          Optimizer steps.
        """
        saved = read_last(self.metrics_path, events.Saved)
        # Both are asked: status.json is written by a thread and may lag behind, and lines may have
        # been cut off metrics.jsonl by a restart.
        return max(self.read_status().saved_step or 0, 0 if saved is None else saved.step)

    def recorded_step(self) -> int:
        """Return the last step that is recorded; 0 where none is.

        Returns:
          Optimizer steps.
        """
        last = read_last(self.metrics_path, events.Step)
        return 0 if last is None else last.step

    def forget_saves(self) -> None:
        """Record that nothing is saved any more: the run starts again from step 0."""
        self.write_status(dataclasses.replace(self.read_status(), saved_step=None))

    def size(self) -> int:
        """Return the bytes of all its files; what vanishes meanwhile is not counted.

        Returns:
          Bytes.
        """
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(OSError):
                    # `lstat`: what a link points at is not the run's. Training may delete a
                    # checkpoint meanwhile.
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total

    @property
    def started(self) -> bool:
        """Whether a process ever trained here."""
        return read_status(self.status_path).status != CREATED


def _numbered(name: str, number: int) -> str:
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}.{number}{dot}{suffix}"
