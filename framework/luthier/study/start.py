"""Starts or resumes a study: checks, lock, journal, and then the loop."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from luthier import environment, project
from luthier import graph as graphs
from luthier.errors import BadInput, LuthierError, Problem, RunError
from luthier.graph import Graph
from luthier.records import object_storage, trust
from luthier.records.redaction import write_json
from luthier.storage import holder, run_error
from luthier.study import protocol
from luthier.study import study as studies
from luthier.study.checks import check_study
from luthier.study.driver import directory as directories
from luthier.study.driver import mirror
from luthier.study.driver.admission import Admission
from luthier.study.driver.directory import StudyDirectory, find_study, without_secrets
from luthier.study.driver.journal import Journal, read_journal, require_whole
from luthier.study.driver.limits import Limits
from luthier.study.driver.loop import Driver, Parts, View, grid_notice
from luthier.study.driver.sampling import Pruning, Suggester, Suggestion, make_suggester
from luthier.study.driver.trial_table import Ledger
from luthier.study.objectives import reduced
from luthier.study.protocol import SliceInfo, TrialEngine
from luthier.study.rungs import Rungs
from luthier.study.space_checks import Editing, locate

_MIRROR_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one call that starts or resumes a study.

    Args:
      directory: The study's folder, or the working copy of its URL.
      is_over: Whether the study is complete; otherwise it can be resumed.
      ledger: The state of every trial.
      is_late: Whether `budget.wall_seconds` ended this call.
      notices: Lines with the places of the report and of the summary in W&B.
      is_preempted: Whether SIGTERM or SIGHUP ended this call.
      stopped: Why the study gave up; empty if it did not.
      stopped_by: `failures` (of trials or of the baseline) or `place` (its faults).
    """

    directory: pathlib.Path
    is_over: bool
    ledger: Ledger
    is_late: bool = False
    notices: Sequence[str] = ()
    is_preempted: bool = False
    stopped: str = ""
    stopped_by: Literal["", "failures", "place"] = ""

    @property
    def address(self) -> str:
        """Where the study is kept: its folder, or its URL."""
        return project.address(self.directory)

    @property
    def best(self) -> list[str] | None:
        """The overrides of the best complete trial; None where none is complete.

        With several objectives, those of the first trial that no other beats.
        """
        from luthier.study.views.text import read_status

        standing = read_status(self.directory)
        best = standing.best()
        return list(self.ledger.settings[best[0].setting].words) if best else None

    def __repr__(self) -> str:
        from luthier.study.views.text import headline, read_status, values_text

        try:
            standing = read_status(self.directory)
        except LuthierError:  # deleted or damaged since
            return f"<Outcome in {self.address}: {len(self.ledger.trials)} trials>"
        parts = [headline(standing)]
        # Of several objectives, as `best`: the first trial that no other beats.
        if best := standing.best():
            parts.append(f"best: trial {best[0].number}, {values_text(standing, best[0])}")
        return f"<Outcome {'; '.join(parts)}>"


class _Silent:
    def update(self, ledger: Ledger, slices: Sequence[SliceInfo]) -> None:
        """Show nothing."""


def run(
    graph: Graph,
    *,
    packages: Sequence[str] = (),
    shelves: Sequence[str] = (),
    view: View | None = None,
    engine: TrialEngine | None = None,
) -> Outcome:
    """Start a new study and drive it to its end.

    Args:
      graph: An `fdl.Config` of `Study`.
      packages: The user's modules that graphs and values may name.
      shelves: Modules whose fiddlers may be named without their module.
      view: Displays its status; None displays nothing.
      engine: What runs trials, where it is not the study's own.

    Returns:
      The state of the study.

    Raises:
      BadInput: It cannot run, or there is a study of that name; nothing was written.
    """
    trust.give(packages)
    # Checks come before anything is written: a study with a mistake leaves no folder behind.
    editing = Editing(tuple(shelves), tuple(packages))
    study = check_study(graph, editing)
    directory = StudyDirectory(project.records_folder(study.directory) / study.name)
    directory.fetch(is_writer=True)
    _set_aside(directory)
    if directory.exists:
        remedy = (
            f"resume it (--resume {directory.address}; resume=True in Python), "
            "or give this one another name (--name)"
        )
        raise BadInput(Problem(f"there is a study in {directory.address}", remedy=remedy))
    return _drive(_StudyRequest(graph, study, editing, directory, is_new=True), view, engine)


def _ledger_of(directory: StudyDirectory) -> Ledger:
    """Return the trial table of a study's journal."""
    ledger = Ledger()
    for line in read_journal(directory.journal_path):
        ledger.follow(line)
    return ledger


def _set_aside(directory: StudyDirectory) -> None:
    """Rename a study that failures stopped before any trial was complete: its name is free again.

    One that faults of the machine stopped keeps its trials and their checkpoints: it is resumed.
    """
    # Never a study that somebody drives: its folder is in use although no trial is complete yet.
    if not directory.exists or holder(directory.path / "lock") is not None:
        return
    if object_storage.home_of(directory.path) is not None:
        return  # objects cannot be renamed
    ledger = _ledger_of(directory)
    if ledger.stopped_by != "failures" or ledger.count("complete", "pruned"):
        return
    names = (directory.path.with_name(f"{directory.path.name}.{k}") for k in itertools.count(1))
    # Renamed and not deleted: its tracebacks are what the user wants to look at.
    target = next(path for path in names if not path.exists())
    try:
        directory.path.rename(target)
    except OSError as error:
        raise run_error("rename", directory.path, error) from error


def resume(
    name: str,
    graph: Graph = None,
    *,
    retry: str | None = None,
    packages: Sequence[str] = (),
    shelves: Sequence[str] = (),
    view: View | None = None,
    engine: TrialEngine | None = None,
) -> Outcome:
    """Resume a study; one that is over is left as it is.

    Args:
      name: The study's folder, its URL, or its name.
      graph: The study as it is described now; None for what was recorded. Only what does not make
        it another study may have changed: budget, engine, packing, gate, storage.
      retry: Run failed trials again, under their numbers: `failed` for all of them, or
        `failed:REGEX` for those whose reason matches. All trials from then on run the source as
        it is now.
      packages: The user's modules that graphs and values may name, beside those recorded.
      shelves: Modules whose fiddlers may be named without their module, beside those recorded.
      view: Displays its status; None displays nothing.
      engine: What runs trials, where it is not the study's own.

    Returns:
      The state of the study.

    Raises:
      BadInput: There is none, it cannot be resumed, another process drives it, `retry` matches no
        trial, or it was started elsewhere and is not trusted (`--trust`, LUTHIER_TRUST).
    """
    pattern = None if retry is None else _read_retry(retry)
    directory = find_study(name)
    # Before anything of the study is read: its engine and its fiddlers are code that the record
    # names.
    trust.require(directory.path, "resuming it starts its engine and its fiddlers")
    trust.give(packages)
    old_shelves, old_packages = directory.read_modules()
    editing = Editing(_union(old_shelves, shelves), _union(old_packages, packages))
    recorded = directory.read_study()
    if graph is not None:
        _refuse_changes(recorded, graph, directory.address)
    graph = recorded if graph is None else graph
    study = check_study(graph, editing)
    _refuse_used_up(recorded, study, _ledger_of(directory), directory.address)
    request = _StudyRequest(graph, study, editing, directory, is_new=False, retry=pattern)
    return _drive(request, view, engine)


def _read_retry(word: str) -> re.Pattern[str]:
    state, _, pattern = word.partition(":")
    remedy = "write failed, or failed:REGEX"
    if state != "failed":
        raise BadInput(
            Problem(f"{word!r} does not name trials to run again", "--retry", remedy=remedy)
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        what = f"{pattern!r} is not a regular expression: {error}"
        raise BadInput(Problem(what, "--retry", remedy=remedy)) from None


def _retry(request: _StudyRequest, journal: Journal) -> None:
    """Write lines that put failed trials, and copies of their results, back to waiting."""
    assert request.retry is not None
    ledger = _ledger_of(request.directory)
    wanted = {
        trial.number
        for trial in ledger.trials
        if trial.state == "failed" and request.retry.search(trial.reason)
    }
    # A trial that copied the result of a failed one has that failure as its own: both go back, and
    # so do all other copies of the same first trial.
    firsts = {ledger.trials[n].copy_of for n in wanted} - {None} | wanted
    again = [t.number for t in ledger.trials if t.number in firsts or t.copy_of in firsts]
    if not again:
        reasons = sorted({t.reason for t in ledger.trials if t.state == "failed"})
        remedy = f"there are {'; '.join(reasons[:3])}" if reasons else "no trial failed"
        what = f"no failed trial of {request.directory.address} matches {request.retry.pattern!r}"
        raise BadInput(Problem(what, "--retry", remedy=remedy))
    edited = directories.edited_packages(request.directory.path)
    # Failed trials are usually tried again because the code was mended, hence the new copy of the
    # source. Trials that are complete keep what they measured with the old one; the notice says
    # from where on.
    if edited:
        directories.copy_source(request.directory.path, request.editing.packages, anew=True)
        names = ", ".join(edited)
        notice = f"trials from {min(again)} on that run now run the edited source of {names}"
        journal.add("noted", notice=notice)
    for number in again:
        journal.add("retried", trial=number)
    journal.commit()


def _reopen(study: studies.Study, directory: StudyDirectory, journal: Journal) -> None:
    """Reopen trials that stayed at a rung, so that a resumed study may promote them.

    They ended because the budget of the study was used up, and not by a decision about them.
    """
    ledger = _ledger_of(directory)
    if study.scheduler is None or not ledger.is_over or _has_nothing_left(study, ledger):
        return
    trials = ledger.trials
    stayed = {t.number for t in trials if t.state == "pruned" and t.is_to_pause}
    # With those that copied the result of one.
    for trial in trials:
        if trial.number in stayed or (trial.state == "pruned" and trial.copy_of in stayed):
            journal.add("reopened", trial=trial.number)
    journal.commit()


def _nothing() -> None:
    """Upload nothing."""


def _union(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


# The study's own graph must be the same, or trials before and after would belong to different
# questions. `FREE` are the fields that only say how long and where trials run.
def _refuse_changes(recorded: Any, graph: Graph, address: str) -> None:
    """Raise where the config on resuming describes another study than the recorded one."""
    changes = [
        change
        for change in graphs.diff(recorded, graph)
        if change.is_effective and change.path.split(".")[0].split("[")[0] not in studies.FREE
    ]
    if changes:
        remedy = "resume without the change, or give the changed study another name (--name)"
        problems = [
            Problem(f"differs from the study in {address}: {change}", change.path, remedy=remedy)
            for change in changes
        ]
        raise BadInput(problems)


@dataclasses.dataclass(frozen=True)
class _StudyRequest:
    graph: Graph
    study: studies.Study
    editing: Editing
    directory: StudyDirectory
    is_new: bool
    retry: re.Pattern[str] | None = None


def _drive(request: _StudyRequest, view: View | None, engine: TrialEngine | None) -> Outcome:
    # Here, because it imports Optuna and the pages, which a refused start does without.
    from luthier.study.views.report import LiveReport
    from luthier.study.views.wandb_summary import reserve_summary

    study, directory = request.study, request.directory
    engine = engine or study.engine
    if engine is None:
        remedy = "set engine=luthier.study.Local()"
        raise BadInput(Problem("is not set, so nothing runs the trials", "engine", remedy=remedy))
    # Both may refuse, and come before the folder is made, so that nothing is left of such a start.
    recorded, storage = without_secrets(request.graph), mirror.storage_of(study)
    directory.create()
    with directory.lock() as lock:
        # Looked at once more within the lock: two starts may have passed the first look together.
        if request.is_new and directory.exists:
            raise BadInput(Problem(f"another process has just started {directory.address}"))
        # The order within the lock: what is there is checked, then the source is copied, then the
        # study is recorded. `exists` looks for study.json, so that a start that was killed before
        # that is no study.
        require_whole(directory.journal_path)
        _require_known_results(directory)
        directories.copy_source(directory.path, request.editing.packages)
        # A resumed study may differ from its record in the fields of `FREE`; the record follows.
        if request.is_new or not graphs.equal(directory.read_study(), recorded):
            editing = request.editing
            directory.write_study(recorded, editing.shelves, editing.packages)
        if request.is_new:
            # Recorded outside of the study's folder, which may be copied to another machine or come
            # from one.
            trust.record_place(directory.path)
        home = object_storage.held(directory.path)
        upload: Callable[[], None] = _nothing
        if home is not None:
            upload = functools.partial(home.push, directory.journal_path.name)
        journal = Journal(directory.journal_path, lock.check, upload)
        with contextlib.closing(journal):
            if request.retry is not None:
                _retry(request, journal)
            _reopen(study, directory, journal)
            # After `_retry` has written its lines, so that they are read back like any others.
            ledger, suggester, waiting, pruning, rungs = _read_back(study, directory)
            # Nothing is opened or started for a study that is over: workers take seconds to come
            # up.
            if request.retry is None and _has_nothing_left(study, ledger):
                if storage is not None and not (directory.path / storage).exists():
                    with _mirrored(study, storage, directory, ledger):
                        pass  # the copy was deleted, or is in a database that may lack something
                return Outcome(directory.path, True, ledger)
            summary_run = reserve_summary(directory.path, study.base)
            admission = Admission(study, request.editing, ledger.marks, summary_run)
            parts = Parts(
                study,
                directory,
                journal,
                ledger,
                admission,
                suggester,
                pruning,
                rungs,
                view or _Silent(),
            )
            baseline = locate(study.base, study.space, request.editing)
            driver = Driver(parts, engine, waiting, baseline)
            if journal.mended:
                journal.add("noted", notice=f"{journal.mended} torn bytes were cut off the journal")
            if home is not None:
                if home.notice:
                    journal.add("noted", notice=home.notice)
                home.start(lambda line: print(f"luthier: {line}", file=sys.stderr))
                # From here on another machine can resume the study.
                home.push()
            driver.note_edits()
            driver.note_cut_grid()
            mirrored = _mirrored(study, storage, directory, ledger)
            with _stopping(driver), mirrored, LiveReport(directory.path):
                is_over = driver.run()
            is_late = driver.is_late and not driver.stop_asked and not is_over
        notices = [*filter(None, [grid_notice(study)]), *_publish(directory, recorded)]
    return Outcome(
        directory.path,
        is_over,
        ledger,
        is_late,
        notices,
        is_preempted=driver.is_preempted and not is_over,
        stopped=driver.stopped,
        stopped_by=driver.stopped_by,
    )


def _require_known_results(directory: StudyDirectory) -> None:
    """Raise for results of a later luthier that would be read next, before anything is written."""
    ledger = _ledger_of(directory)
    for trial in ledger.trials:
        if trial.state == "running":
            with contextlib.suppress(RunError):  # a damaged one is of one trial, which runs again
                protocol.read_result(directory.trial_path(trial.number))


def _has_nothing_left(study: studies.Study, ledger: Ledger) -> bool:
    """Return whether a study was driven to its end, and its budget has not grown since."""
    budget = study.budget
    trials = budget.num_trials
    is_full = trials is None or len(ledger.trials) + study.seeds > trials
    is_spent = bool(Limits(study, ledger).reached())
    others = (budget.device_hours, budget.no_improvement, budget.target)
    # A study without a limit of trials that another limit ended is resumed when that has grown.
    if trials is None and any(limit is not None for limit in others):
        return ledger.is_over and is_spent
    return ledger.is_over and (is_full or is_spent)


def _refuse_used_up(recorded: Graph, study: studies.Study, ledger: Ledger, address: str) -> None:
    """Raise where a study cannot go on within the budget that it is resumed with."""
    budget, known = study.budget, len(ledger.trials)
    before = graphs.build(graphs.get(recorded, "budget"))
    trials = budget.num_trials
    if budget.trials != before.trials and trials is not None and trials < known:
        what = f"{trials} is less than the {known} trials that were tried"
        remedy = f"give more than {known}, or leave it out"
        raise BadInput(Problem(what, "budget.trials", remedy=remedy))
    limit, seconds = budget.wall_seconds, ledger.driven_seconds
    if limit is not None and seconds >= limit and not _has_nothing_left(study, ledger):
        remedy = f"give it more time: --budget wall_seconds={max(1, math.ceil(2 * seconds))}"
        what = f"{limit:g} is used up: {address} was driven for {seconds:.3g} s"
        raise BadInput(Problem(what, "budget.wall_seconds", remedy=remedy))


def _read_back(
    study: studies.Study, directory: StudyDirectory
) -> tuple[Ledger, Suggester, dict[int, Suggestion], Pruning | None, Rungs | None]:
    """Rebuild the trial table, sampler, unfinished settings, pruner and rungs from the journal."""
    ledger, suggester = Ledger(), make_suggester(study)
    pruning, rungs = make_pruning(study), None
    if study.scheduler is not None:
        rungs = Rungs(study.scheduler, study.objectives[0].direction)
    waiting: dict[int, Suggestion] = {}
    every: dict[int, Suggestion] = {}
    for line in read_journal(directory.journal_path):
        kind = line["kind"]
        # Before the line is followed, which forgets them.
        reports = ledger.reports_of(ledger.settings[line["setting"]]) if kind == "told" else {}
        ledger.follow(line)
        if rungs is not None:
            rungs.follow(line)
        if kind == "asked":
            suggestion = Suggestion(line["assignment"], line.get("notes", {}))
            waiting[line["setting"]] = every[line["setting"]] = suggestion
            # Setting 0 is the baseline. Where the space does not hold it, its assignment is empty
            # and the sampler never gets it (`Driver._ask`).
            if line["setting"] or suggestion.assignment:
                # Asked and reported in the order of the journal, which is the order in which the
                # sampler saw them.
                suggester.restore(line["setting"], suggestion)
        elif kind == "reached":
            trial = ledger.trials[line["trial"]]
            suggester.show_rungs(trial.setting, trial.rung_values or {})
        elif kind == "ended":
            _end_pruning(pruning, ledger, line, dict(line.get("series", ())))
        elif kind == "told":
            setting = ledger.settings[line["setting"]]
            outcome = ledger.outcome_of(setting)
            assert outcome is not None
            violations = ledger.violations_of(setting)
            suggester.record(setting.number, *outcome, reports, violations)
            del waiting[setting.number]
        elif kind == "reopened":
            number = ledger.trials[line["trial"]].setting
            waiting[number] = every[number]
            suggester.reopen(number)
        elif kind == "retried":
            number = ledger.trials[line["trial"]].setting
            # Several trials of one setting may be retried: the sampler gets it back once.
            if number not in waiting:
                waiting[number] = every[number]
                if number or every[number].assignment:
                    suggester.retry(number, every[number])
        elif kind == "reported" and pruning is not None:
            trial = ledger.trials[line["trial"]]
            value = reduced(study.objectives[0], trial.series or {})
            if value is not None:
                pruning.report(trial.number, line["step"], value)
    return ledger, suggester, waiting, pruning, rungs


def _end_pruning(pruning: Pruning | None, ledger: Ledger, line: Any, series: Any) -> None:
    trial = ledger.trials[line["trial"]]
    if pruning is not None and trial.copy_of is None:
        # A pruner needs exactly one objective (`checks`), so the first value is all there is.
        value = trial.values[0] if trial.values else None
        pruning.end(trial.number, line["outcome"], value, series)


def make_pruning(study: studies.Study) -> Pruning | None:
    """Build the pruner of a study; None where it has none."""
    if study.pruner is None:
        return None
    pruner = graphs.build(study.pruner)
    return Pruning(pruner, study.objectives[0].direction, study.name)


@contextlib.contextmanager
def _mirrored(
    study: studies.Study, storage: str | None, directory: StudyDirectory, ledger: Ledger
) -> Iterator[None]:
    """Keep Optuna's copy up to date in a process of its own; wait for its last look at the end."""
    # The mirror, and views, read these facts instead of building the study, which may import the
    # user's packages.
    write_json(directory.path / mirror.FACTS, mirror.study_facts(study))
    if storage is None:
        yield
        return
    process = mirror.begin(directory.path, storage)
    try:
        yield
    finally:
        try:
            # Closes the pipe, which the mirror takes for the end, and waits for its last look.
            process.communicate(timeout=_MIRROR_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        if process.returncode:
            log = directory.path / "optuna.log"
            ledger.notices.append(f"Optuna's copy could not be written: see {log}")


def _publish(directory: StudyDirectory, graph: Graph) -> list[str]:
    """Write the report and the study's summary in W&B; return lines that name them."""
    from luthier.study.views import report
    from luthier.study.views import wandb_summary as views
    from luthier.study.views.text import read_status

    # The report is made while the process imports wandb: both take about a second.
    with views.summary_process(directory.path, graph) as write_summary:
        path = report.write(directory.path)
        lines = [f"report: {project.address(path)}"]
        if write_summary is None:
            return lines
        try:
            mirrored = write_summary(read_status(directory.path), {"report": str(path)})
        except LuthierError as error:
            again = f"luthier sweep show {directory.address} --sync wandb"
            return [*lines, f"{error}; again by `{again}`"]
        upload = mirrored.url or f"offline; to upload it: wandb sync {mirrored.path}"
        lines.append(f"W&B: the study's summary is {upload}")
        return lines


@contextlib.contextmanager
def _stopping(driver: Driver) -> Iterator[None]:
    """Let the first interrupt stop the driver in order, and the second one at once."""
    key = environment.InterruptKey()

    def stop(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            # After SIGHUP the terminal is gone, and printing to it would raise.
            environment.forget_terminal()
        if number != signal.SIGINT:
            # A repeated SIGTERM changes nothing: running trials are being saved already. Only
            # Ctrl-C, pressed again, ends at once.
            driver.is_preempted = True
        elif not key.is_pressed():
            return
        elif driver.stop_asked:
            raise KeyboardInterrupt
        driver.stop_asked = True

    # Handlers can only be set in the main thread; a study that is driven from another one, as in a
    # test, keeps those of its program.
    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_IGN and number == signal.SIGHUP:
                continue  # `nohup` has it so
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
