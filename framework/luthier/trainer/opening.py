"""Opens the directory of a run: a new one, or that of the run that is to be continued."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from luthier import graph as graphs
from luthier import project
from luthier.checkpoint import Store
from luthier.errors import CheckpointError, LuthierError, Problem, RecordError, RunError
from luthier.graph import Graph
from luthier.parallel import distributed
from luthier.planner import Plan, predict
from luthier.records import (
    Configuration,
    Lock,
    RunDirectory,
    Source,
    find,
    list_runs,
    object_storage,
    read_source,
)
from luthier.records.trust import record_place
from luthier.storage import moves, require_format, run_error, write_atomically
from luthier.trainer.loop import POSITION_FORMAT
from luthier.trainer.results import FINISHED
from luthier.trainer.resume import check_code, check_continuation, compare, settle_defaults

ID_LENGTH = 8
NUM_SIBLINGS = 20
OPERATIVE_GIN = "operative_config.gin"
"""The file of a run with its graph as gin, written where it was asked for."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The user's wishes about where a run is recorded.

    Args:
      run: The run to continue, by directory, id or name; None goes by the graph.
      new: Whether to start a run of its own although the graph has one already.
      extend: Whether the user agreed to schedules that another number of steps reshapes.
      packages: The user's modules that a recorded graph may name.
      directory: Where the run is recorded, whatever `records.directory` says; made if need be.
      gin: The graph as a gin file, which is kept with the run; empty for none.
      from_scratch: Whether a run whose checkpoints are gone starts again from step 0.
      accept_changes: Whether a run may be resumed with other code or data than it was saved with.
      requested_at: Time of the request, by `time.perf_counter`: its time counts from there.
    """

    run: str | None = None
    new: bool = False
    extend: bool = False
    packages: Sequence[str] = ()
    directory: Path | None = None
    gin: str = ""
    from_scratch: bool = False
    accept_changes: bool = False
    requested_at: float = dataclasses.field(default_factory=time.perf_counter, compare=False)


def _nothing() -> None:
    """Record nothing."""


@dataclasses.dataclass(frozen=True)
class Opened:
    """A run's directory, locked by this process, or by the primary one of several.

    Args:
      directory: Where the run is recorded.
      is_new: Whether it was made by this call.
      is_over: Whether the run finished before, and this graph asks for no more.
      notices: Notices for the user.
      record: Takes the graph, plan and source of this start into the record of an earlier one. To
        be called once nothing can refuse the start any more: one that is refused changes nothing.
    """

    directory: RunDirectory
    is_new: bool
    is_over: bool = False
    notices: Sequence[str] = ()
    record: Callable[[], None] = _nothing


@contextlib.contextmanager
def open_run(
    graph: Graph, plan: Plan, request: Request, before_new: Callable[[], Any] = lambda: None
) -> Iterator[Opened]:
    """Find or make the directory of a run, and hold its lock within the `with` block.

    A graph names its run by its fingerprint, so that the same command continues the same run.
    Of several processes the primary finds or makes it, and holds the lock; all must see its disk.

    Args:
      graph: The graph that will be executed.
      plan: Its plan.
      request: Where the user wants it to go.
      before_new: Called before a new directory is made; what it raises leaves nothing behind.

    Yields:
      The open directory, whether the run is new or resumed, and lines for the user.

    Raises:
      RunError: Another process writes there, the run cannot be continued with this graph, or the
        directory cannot be written.
    """
    # A list, because only the primary opens the run, and `distributed.decided` passes JSON values
    # to the others: what cannot travel stays behind in this process.
    record: list[Callable[[], None]] = [_nothing]  # of the process that opens it

    with contextlib.ExitStack() as held:

        def open_here() -> tuple[str, bool, bool, list[str]]:
            opened = held.enter_context(_open(graph, plan, request, before_new))
            # The lock is held by the stack of this process until the `with` block of the caller
            # ends.
            record[:] = [opened.record]
            if request.gin:
                write_atomically(opened.directory.path / OPERATIVE_GIN, request.gin)
            return opened.directory.address, opened.is_new, opened.is_over, list(opened.notices)

        address, is_new, is_over, notices = distributed.decided(open_here)
        # By its URL, where it has one: the other machines have working copies of their own, for
        # what they write when they crash.
        directory = RunDirectory(project.records_folder(address))
        if object_storage.home_of(directory.path) is not None:
            directory.path.mkdir(parents=True, exist_ok=True)
        yield Opened(directory, is_new, is_over, notices, record[0])


def reserve(
    graph: Graph, root: str | os.PathLike[str], name: str, request: Request
) -> RunDirectory:
    """Return the directory of the run that a graph names, creating it if necessary.

    Args:
      graph: The graph that will be executed, elsewhere or later.
      root: The folder of runs.
      name: The experiment's name.
      request: Where the user wants it to go.

    Raises:
      RunError: There is no such run, or the directory cannot be written.
    """
    # A queued job has a directory before it runs, so that its logs and its failure to start have a
    # place; `_open` recognizes it by the missing plan.
    folder = project.records_folder(root)
    existing = _existing(folder, name, graph, request)
    if existing is not None:
        return existing
    directory = RunDirectory.create(
        folder,
        name,
        _new_id(folder, name, graph),
        configuration=configuration(graph),
        source=read_source(request.packages),
    )
    record_place(directory.path)
    if object_storage.home_of(directory.path) is not None:
        with directory.lock(is_new=True):  # the job that is queued finds it in the bucket
            pass
    return directory


def check_place(graph: Graph, plan: Plan, request: Request) -> str:
    """Reject an experiment that could not be recorded or resumed, without writing anything.

    Args:
      graph: The graph that would be executed.
      plan: Its plan.
      request: Where the user wants it to go.

    Returns:
      A line about the run that training would start or resume.

    Raises:
      UnknownReference: There is no run that `request.run` names.
      RunError: The experiment's name cannot name a directory, nothing can be written there, another
        process writes there, or the run cannot be resumed with this graph.
      RecordError: The graph holds a secret.
    """
    experiment = plan.program.experiment
    root, name = project.records_folder(experiment.records.directory), experiment.name
    path = RunDirectory.locate(root, name, run_id(graph))
    configuration(graph).files()
    if (home := object_storage.home_of(path)) is not None:
        object_storage.refresh(path, home)
    if request.run is None and not request.new:
        RunDirectory(path).require_here()
    # Whether it could be written is asked of the nearest folder that exists; nothing is made.
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    refusal = 0 if os.access(there, os.W_OK | os.X_OK) else errno.EACCES
    refusal = refusal if there.is_dir() else errno.ENOTDIR
    if refusal:
        raise run_error("create", path, OSError(refusal, os.strerror(refusal)))
    # As `_existing` and `_open` decide it; but copies in an object store are not brought back.
    existing: RunDirectory | None = RunDirectory(path)
    if request.run is not None:
        existing = find(root, request.run)
    elif request.new or not (path / "config.json").is_file():
        existing = None
    if existing is not None and experiment.checkpoints is None and _unsaved(existing, request):
        existing = None
    if existing is None:
        return f"would start a new run in {root / name}"
    if (writer := existing.writer()) is not None:
        remedy = "wait for it, or start a separate run with --new"
        raise RunError(Problem(f"{existing.path} is being written by {writer}", remedy=remedy))
    run = f"{existing.name}/{existing.id}"
    if existing.read_plan() is None:
        return f"would start the run {run}"
    is_over, _ = _check(existing, graph, plan, request, [])
    if is_over:
        return f"run {run} is finished: nothing would be trained"
    return f"would resume the run {run} from step {existing.read_status().saved_step or 0}"


@contextlib.contextmanager
def _open(
    graph: Graph, plan: Plan, request: Request, before_new: Callable[[], Any]
) -> Iterator[Opened]:
    root = project.records_folder(plan.program.experiment.records.directory)
    name = plan.program.experiment.name
    existing, unsaved = _existing(root, name, graph, request), []
    keeps_none = plan.program.experiment.checkpoints is None
    # A run without checkpoints has nothing to be continued from. Its record is evidence, so the
    # same command makes a new run beside it instead of starting over in it. Not so a trial of a
    # study, which has one place (`request.directory`).
    if existing is not None and keeps_none and request.directory is None:
        unsaved = _unsaved(existing, request)
        existing = None if unsaved else existing
    if existing is None:
        before_new()
        if request.directory is None:
            id = _new_id(root, name, graph)
            notices = unsaved or _siblings(root, name, graph, request.packages)
        else:
            # `create` puts root, name and id together again. No notice about a run to extend by
            # `--run`: nobody starts a trial by hand.
            place = request.directory.absolute()
            root, name, id, notices = place.parents[1], place.parent.name, place.name, []
        directory = RunDirectory.create(
            root,
            name,
            id,
            configuration=configuration(graph),
            source=_source(request),
            plan=_recorded(plan),
        )
        if request.directory is None:  # the trials of a study have their study's copy, and place
            record_place(directory.path)
            directory.write_code(request.packages)
        with directory.lock(is_new=True) as lock:
            yield Opened(directory, is_new=True, notices=[*notices, *_taken_over(lock)])
        return
    # The lock before anything is compared: another process may be about to change the record.
    with existing.lock() as lock:
        existing.forget_move()
        notices = _taken_over(lock)
        if existing.read_plan() is None:  # it was reserved, and never begun
            before_new()
            existing.write_configuration(configuration(graph))
            existing.write_plan(_recorded(plan))
            # Not the source of the reservation: a job may have waited for days.
            existing.write_source(_source(request))
            if request.directory is None:  # trials have their study's copy
                existing.write_code(request.packages)
            yield Opened(existing, is_new=True, notices=notices)
            return
        is_over, record = _check(existing, graph, plan, request, notices)
        yield Opened(existing, is_new=False, is_over=is_over, notices=notices, record=record)


def _source(request: Request) -> Source:
    """Return the source that runs in this process."""
    if request.directory is None:
        return read_source(request.packages)
    return _source_of_trials(tuple(request.packages))


# A worker trains hundreds of trials with the modules that it imported once, from the copy that its
# study keeps. Two calls of git and the hashes of all files would cost each of them a tenth of a
# second.
_source_of_trials = functools.cache(read_source)


def _unsaved(directory: RunDirectory, request: Request) -> list[str]:
    """Return why a run cannot be continued since it saved nothing; empty where it can.

    Its record stays as it is: what was asked for becomes a run of its own.

    Raises:
      RunError: This very run was asked for by `request.run`.
    """
    status = directory.read_status()
    is_over = status.status == FINISHED and not request.extend
    if not directory.started or is_over or directory.writer() is not None:
        return []
    with Store(directory.checkpoints_path) as store:
        if store.steps():
            return []
    run = f"{directory.name}/{directory.id}"
    what = f"{run} keeps no checkpoints (checkpoints=None): it cannot be continued"
    if request.run is not None:
        raise RunError(Problem(what, "checkpoints", remedy="start a separate run with --new"))
    return [f"{what}; this is a separate run"]


def configuration(graph: Graph) -> Configuration:
    """Return a graph in the forms in which it is recorded.

    Args:
      graph: A validated graph.

    Returns:
      Its record, its history, its text, and its values with defaults.

    Example:
      >>> import luthier
      >>> from luthier import trainer
      >>> trainer.configuration(luthier.experiment("quickstart")).values["name"]
      'quickstart'
    """
    return Configuration(
        graph=graphs.to_json(graph),
        history=graphs.history_record(graph),
        text=graphs.render(graph, defaults=True),
        values=graphs.to_dict(graph),
    )


def run_id(graph: Graph) -> str:
    """Return the id of the run that a graph names, the same wherever its runs are recorded.

    Args:
      graph: A validated graph.

    Returns:
      The first digits of its program fingerprint.

    Example:
      >>> import luthier
      >>> from luthier import trainer
      >>> config = luthier.experiment("quickstart")
      >>> renamed = luthier.experiment("quickstart", ["name=other"])
      >>> trainer.run_id(config) == trainer.run_id(renamed)
      True
    """
    # The program fingerprint leaves out the name, records, checkpoints and divergence: turning on
    # W&B, or saving more often, continues the same run instead of starting another.
    return graphs.fingerprint(graph, kind="program")[:ID_LENGTH]


def _existing(root: Path, name: str, graph: Graph, request: Request) -> RunDirectory | None:
    if request.directory is not None:
        # A copy in an object store counts as the run: on a new machine the same command resumes it.
        _bring_here(request.directory)
        is_there = (request.directory / "config.json").is_file()
        return RunDirectory(request.directory) if is_there else None
    if request.run is not None:
        return find(root, request.run)
    if request.new:
        return None
    # The same command finds the same run, because its id is the fingerprint of the graph.
    path = RunDirectory.locate(root, name, run_id(graph))
    _bring_here(path)
    return RunDirectory(path) if (path / "config.json").is_file() else None


def _bring_here(path: Path) -> None:
    """Bring the records of a run from its object store, or from its copy in one, if it has any."""
    home = object_storage.home_of(path)
    if home is None:
        # First: a mirror may still have what was moved elsewhere.
        RunDirectory(path).require_here()
        object_storage.bring_back(path)
    else:
        object_storage.refresh(path, home, is_writer=True)
        RunDirectory(path).require_here()


def _is_taken(path: Path) -> bool:
    home = object_storage.home_of(path)
    if home is None:
        return path.exists()
    return object_storage.refresh(path, home) or moves.note_of(home.url) is not None


def _new_id(root: Path, name: str, graph: Graph) -> str:
    id = run_id(graph)
    # `--new`, and a run that saved nothing, take the same id with a number behind it, so that
    # `runs` shows which of them belong together.
    number, path = 1, RunDirectory.locate(root, name, id)
    while _is_taken(path):
        number += 1
        path = RunDirectory.locate(root, name, f"{id}-{number}")
    return path.name


def _check(
    directory: RunDirectory, graph: Graph, plan: Plan, request: Request, notices: list[str]
) -> tuple[bool, Callable[[], None]]:
    """Return whether the run is over, and what records this start.

    Complain, or add to `notices`, where the graphs differ.
    """
    # All refusals come before `record`: a start that is refused leaves the run byte by byte as it
    # was.
    # What a later luthier wrote is refused first: it may mean something that the checks below would
    # misread.
    directory.require_known_formats()
    _require_known_position(directory)
    recorded = _loaded(directory, request.packages)
    # Before the comparison, which would show changed defaults as changes of the user.
    defaults = settle_defaults(directory, recorded)
    comparison = compare(recorded, graph)
    arrays = (directory.read_plan() or {}).get("arrays", {})
    try:
        notices += check_continuation(
            comparison,
            arrays,
            plan.program.placements,
            run=f"{directory.name}/{directory.id}",
            extend=request.extend,
            named=request.run is not None,
        )
    except RunError as error:
        raise RunError([*error.problems, *map(Problem, defaults)]) from error
    notices += defaults
    status = directory.read_status()
    _check_epochs(directory, recorded, plan)
    longer = status.step < plan.program.experiment.training.steps
    # A finished run is reopened only for more steps, and only by consent: its schedules have
    # reached their end.
    is_over = status.status == FINISHED and not (longer and request.extend)
    # It takes no step, so that its code is not compared, and nothing is recorded.
    if is_over:
        return True, _nothing
    if plan.program.experiment.checkpoints is None:
        _refuse_to_forget(directory)
    source = _source(request)
    saved = _saved_step(directory)
    notices += check_code(directory, graph, source, request.packages, saved, request.accept_changes)

    def record() -> None:
        # The former files stay beside the new ones, with a number: a record says what ran when.
        if not graphs.equal(recorded, graph):
            directory.write_configuration(configuration(graph))
        directory.write_plan(_recorded(plan))
        directory.write_source(source)
        if request.directory is None:  # trials have their study's copy
            directory.write_code(request.packages)

    return False, record


def _check_epochs(directory: RunDirectory, recorded: Graph, plan: Plan) -> None:
    """Refuse epochs that have become another number of steps, because the data has changed."""
    steps = graphs.evaluate(graphs.get(recorded, "training.steps"))
    now, had = plan.program.experiment.training.steps, directory.read_status().total_steps
    if not graphs.is_deferred(steps) or had is None or had == now:
        return
    what = f"{graphs.expression(steps)} was {had:,} steps when the run began, and is {now:,} now"
    remedy = "restore the data that it began with, or start a separate run with --new"
    raise RunError(Problem(what, "training.steps", remedy=remedy))


def _require_known_position(directory: RunDirectory) -> None:
    """Refuse a newest checkpoint of a later luthier before anything of the run is written."""
    with Store(directory.checkpoints_path) as store:
        step = store.latest()
        # A damaged one is reported where it is restored, which falls back to one before it.
        with contextlib.suppress(CheckpointError):
            position = {} if step is None else store.read_extra(step).get("position")
            require_format("the position in a checkpoint", position, POSITION_FORMAT)


def _saved_step(directory: RunDirectory) -> int:
    """Return the step of the newest save of a run; 0 where none is."""
    # A save is recorded once the next one begins, or at the end: of a run that was killed or that
    # failed, the newest may be in the folder only. The record counts as well, because a checkpoint
    # that cannot be found has been saved all the same.
    with Store(directory.checkpoints_path) as store:
        return max(directory.recorded_save(), store.latest() or 0)


def _refuse_to_forget(directory: RunDirectory) -> None:
    """Refuse to restart a run at step 0 that has checkpoints to resume from."""
    with Store(directory.checkpoints_path) as store:
        step = store.latest()
    if step is not None:
        run = f"{directory.name}/{directory.id}"
        what = f"{run} is saved at step {step}; without checkpoints it would start again at step 0"
        remedy = "leave out checkpoints=None, or start a separate run with --new"
        raise RunError(Problem(what, "checkpoints", remedy=remedy))


def _recorded(plan: Plan) -> dict[str, Any]:
    """Return a plan as its run records it, with what it predicts."""
    return {**plan.to_dict(), "predicted": predict(plan).to_dict()}


def _loaded(directory: RunDirectory, packages: Sequence[str]) -> Graph:
    try:
        return graphs.from_json(directory.read_config(), packages=packages)
    except RecordError as error:
        what = f"{directory.path} cannot be continued: its config.json cannot be loaded"
        remedy = "restore that file, or start a separate run with --new"
        raise RunError([Problem(what, remedy=remedy), *error.problems]) from error


def _taken_over(lock: Lock | object_storage.HomeLock) -> list[str]:
    return [lock.notice] if lock.notice else []


def _siblings(root: Path, name: str, graph: Graph, packages: Sequence[str]) -> list[str]:
    """Return a notice about the run that differs from `graph` in its number of steps only."""
    steps = graphs.evaluate(graphs.get(graph, "training.steps"))
    if not isinstance(steps, int):
        return []  # in epochs: how many steps that were in the other run depends on its data
    # All runs of the bucket would be downloaded for it.
    if object_storage.home_of(root) is not None:
        return []
    # Another number of steps is another graph, and so another id: users who wanted to extend a run
    # would start a new one without noticing.
    runs = [s for s in list_runs(root) if s.name == name and s.record.saved_step]
    for summary in reversed(runs[-NUM_SIBLINGS:]):
        try:
            other = graphs.from_json(summary.directory.read_config(), packages=packages)
            had = graphs.evaluate(graphs.get(other, "training.steps"))
            same = graphs.apply(other, [f"training.steps={json.dumps(steps)}"])
        except LuthierError:
            continue
        if isinstance(had, int) and had != steps and run_id(same) == run_id(graph):
            id = summary.directory.id
            return [
                f"run {id} differs in training.steps only ({had} there, {steps} here); "
                f"to extend it, add: --run {id} --extend"
            ]
    return []
