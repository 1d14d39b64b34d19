"""Beginning a study, or going on with one: checks, lock, journal, and then the loop."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from luthier import graph as graphs
from luthier.errors import BadInput, LuthierError, Problem
from luthier.records.files import write_json
from luthier.records.lock import Lock
from luthier.sweep import study as studies
from luthier.sweep.checks import check_study
from luthier.sweep.driver import mirror, snapshot
from luthier.sweep.driver.admission import Admission
from luthier.sweep.driver.directory import StudyDirectory, find_study, without_secrets
from luthier.sweep.driver.journal import Journal, read_journal
from luthier.sweep.driver.ledger import Ledger
from luthier.sweep.driver.loop import Driver, Parts, View, reduced
from luthier.sweep.driver.past import Asked
from luthier.sweep.driver.pruning import Pruning
from luthier.sweep.driver.suggestions import Suggester, make_suggester
from luthier.sweep.protocol import Engine, SliceInfo
from luthier.sweep.space.editing import Editing, locate

_MIRROR_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a call came to.

    Args:
      directory: The study's folder.
      is_over: Whether nothing is left to do; else it can be resumed.
      ledger: Where every trial stands.
      is_late: Whether `budget.wall_seconds` ended this call.
      notices: Where its report and its summary in W&B are.
    """

    directory: pathlib.Path
    is_over: bool
    ledger: Ledger
    is_late: bool = False
    notices: Sequence[str] = ()


class _Silent:
    def update(self, ledger: Ledger, slices: Sequence[SliceInfo]) -> None:
        """Show nothing."""


def run(
    graph: Any,
    *,
    packages: Sequence[str] = (),
    shelves: Sequence[str] = (),
    view: View | None = None,
    engine: Engine | None = None,
) -> Outcome:
    """Run a study from its first trial.

    Args:
      graph: An `fdl.Config` of `Study`.
      packages: The user's modules that graphs and values may name.
      shelves: Modules whose fiddlers may be named without their module.
      view: Shows how it stands; None shows nothing.
      engine: What runs trials, where it is not the study's own.

    Returns:
      Where the study stands.

    Raises:
      BadInput: It cannot run, or there is a study of that name; nothing was written.
    """
    editing = Editing(tuple(shelves), tuple(packages))
    study = check_study(graph, editing)
    directory = StudyDirectory(pathlib.Path(study.directory, study.name))
    if directory.exists:
        remedy = f"go on with it: --resume {directory.path}; or give this one another name=..."
        raise BadInput(Problem(f"there is a study in {directory.path}", remedy=remedy))
    return _drive(_Given(graph, study, editing, directory, is_new=True), view, engine)


def resume(
    name: str,
    graph: Any = None,
    *,
    packages: Sequence[str] = (),
    shelves: Sequence[str] = (),
    view: View | None = None,
    engine: Engine | None = None,
) -> Outcome:
    """Go on with a study; one that is over is left as it is.

    Args:
      name: The study's folder, or its name.
      graph: The study as it is described now; None for what was recorded. Only what does not make
        it another study may have changed: budget, engine, packing, gate, storage.
      packages: The user's modules that graphs and values may name, beside those recorded.
      shelves: Modules whose fiddlers may be named without their module, beside those recorded.
      view: Shows how it stands; None shows nothing.
      engine: What runs trials, where it is not the study's own.

    Returns:
      Where the study stands.

    Raises:
      BadInput: There is none, it cannot go on, or another process drives it.
    """
    directory = find_study(name)
    old_shelves, old_packages = directory.read_modules()
    editing = Editing(_union(old_shelves, shelves), _union(old_packages, packages))
    recorded = directory.read_study()
    if graph is not None:
        _refuse_changes(recorded, graph, directory.path)
    graph = recorded if graph is None else graph
    study = check_study(graph, editing)
    return _drive(_Given(graph, study, editing, directory, is_new=False), view, engine)


def _union(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _refuse_changes(recorded: Any, graph: Any, path: pathlib.Path) -> None:
    """Raise where a study was changed into another one."""
    changes = [
        change
        for change in graphs.diff(recorded, graph)
        if change.is_effective and change.path.split(".")[0].split("[")[0] not in studies.FREE
    ]
    if changes:
        remedy = "resume without the change, or give the changed study another name=..."
        problems = [
            Problem(f"is not what {path} was begun with: {change}", change.path, remedy=remedy)
            for change in changes
        ]
        raise BadInput(problems)


@dataclasses.dataclass(frozen=True)
class _Given:
    graph: Any
    study: studies.Study
    editing: Editing
    directory: StudyDirectory
    is_new: bool


def _drive(given: _Given, view: View | None, engine: Engine | None) -> Outcome:
    study, directory = given.study, given.directory
    engine = engine or study.engine
    if engine is None:
        remedy = "set engine=luthier.sweep.Local()"
        raise BadInput(Problem("is not set, so nothing runs the trials", "engine", remedy=remedy))
    recorded, storage = without_secrets(given.graph), mirror.storage_of(study)
    directory.create()
    with Lock(directory.path / "lock", patience_seconds=2.0):
        if given.is_new and directory.exists:
            raise BadInput(Problem(f"another process has just begun {directory.path}"))
        snapshot.take(directory.path, given.editing.packages)
        if given.is_new or not graphs.equal(directory.read_study(), recorded):
            editing = given.editing
            directory.write_study(recorded, editing.shelves, editing.packages)
        journal = Journal(directory.journal_path)
        with contextlib.closing(journal):
            ledger, suggester, waiting, pruning = _read_back(study, directory)
            if _has_nothing_left(study, ledger):
                return Outcome(directory.path, True, ledger)
            admission = Admission(study, given.editing, ledger.marks)
            parts = Parts(
                study, directory, journal, ledger, admission, suggester, pruning, view or _Silent()
            )
            baseline = locate(study.base, study.space, given.editing)
            driver = Driver(parts, engine, waiting, baseline)
            if journal.mended:
                journal.add("noted", notice=f"{journal.mended} torn bytes were cut off the journal")
            driver.tell_edits()
            with _stopping(driver), _mirrored(study, storage, directory, ledger):
                is_over = driver.run()
            is_late = driver.is_late and not driver.stop_asked and not is_over
        notices = _publish(directory, recorded)
    return Outcome(directory.path, is_over, ledger, is_late, notices)


def _has_nothing_left(study: studies.Study, ledger: Ledger) -> bool:
    """Return whether a study was driven to its end, and its budget has not grown since."""
    trials, hours = study.budget.trials, study.budget.device_hours
    is_full = trials is None or len(ledger.trials) + study.seeds > trials
    is_spent = hours is not None and ledger.device_seconds >= hours * 3600
    if trials is None and hours is not None:
        return ledger.is_over and is_spent
    return ledger.is_over and (is_full or is_spent)


def _read_back(
    study: studies.Study, directory: StudyDirectory
) -> tuple[Ledger, Suggester, dict[int, Asked], Pruning | None]:
    """Return where trials stand, what the sampler knows, and what is not over."""
    ledger, suggester = Ledger(), make_suggester(study)
    pruning = make_pruning(study)
    waiting: dict[int, Asked] = {}
    series: dict[int, Any] = {}
    for line in read_journal(directory.journal_path):
        ledger.follow(line)
        kind = line["kind"]
        if kind == "asked":
            asked = Asked(line["assignment"], line.get("notes", {}))
            waiting[line["setting"]] = asked
            if line["setting"] or asked.assignment:
                suggester.restore(line["setting"], asked)
        elif kind == "ended":
            series[line["trial"]] = dict(line.get("series", ()))
            _end_pruning(pruning, ledger, line, series[line["trial"]])
        elif kind == "told":
            setting = ledger.settings[line["setting"]]
            came = ledger.outcome_of(setting)
            assert came is not None
            told = [series.pop(trial, {}) for trial in setting.trials]
            suggester.tell(setting.number, *came, told[-1])
            del waiting[setting.number]
        elif kind == "reported" and pruning is not None:
            trial = ledger.trials[line["trial"]]
            value = reduced(study.objectives[0], trial.series or {})
            if value is not None:
                pruning.report(trial.number, line["step"], value)
    return ledger, suggester, waiting, pruning


def _end_pruning(pruning: Pruning | None, ledger: Ledger, line: Any, series: Any) -> None:
    trial = ledger.trials[line["trial"]]
    if pruning is not None and trial.copy_of is None:
        value = trial.values[0] if trial.values else None
        pruning.end(trial.number, line["outcome"], value, series)


def make_pruning(study: studies.Study) -> Pruning | None:
    """Return what ends trials of a study early; None where nothing does."""
    if study.pruner is None:
        return None
    pruner = graphs.build(study.pruner)
    return Pruning(pruner, study.objectives[0].direction, study.name)


@contextlib.contextmanager
def _mirrored(
    study: studies.Study, storage: str | None, directory: StudyDirectory, ledger: Ledger
) -> Iterator[None]:
    """Keep Optuna's copy up to date in a process of its own; wait for its last look at the end."""
    write_json(directory.path / mirror.FACTS, mirror.describe(study))
    if storage is None:
        yield
        return
    process = mirror.begin(directory.path, storage)
    try:
        yield
    finally:
        try:
            process.communicate(timeout=_MIRROR_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        if process.returncode:
            log = directory.path / "optuna.log"
            ledger.notices.append(f"Optuna's copy could not be written: {log} says why")


def _publish(directory: StudyDirectory, graph: Any) -> list[str]:
    """Write the report, and the W&B run that sums the study up; say where they are."""
    from luthier.sweep.views import mirror as views
    from luthier.sweep.views import report
    from luthier.sweep.views.standing import read_standing

    path = report.write(directory.path)
    told = [f"report: {path}"]
    pages = {"report": str(path)}
    try:
        mirrored = views.mirror_study(directory.path, graph, read_standing(directory.path), pages)
    except LuthierError as error:
        return [*told, f"{error}; again by `luthier sweep show {directory.path} --sync wandb`"]
    if mirrored is not None:
        upload = mirrored.url or f"offline; to upload it: wandb sync {mirrored.path}"
        told.append(f"W&B: the study's summary is {upload}")
    return told


@contextlib.contextmanager
def _stopping(driver: Driver) -> Iterator[None]:
    """Let the first interrupt stop the driver in order, and the second one at once."""

    def stop(number: int, frame: Any) -> None:
        if driver.stop_asked:
            raise KeyboardInterrupt
        driver.stop_asked = True

    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
