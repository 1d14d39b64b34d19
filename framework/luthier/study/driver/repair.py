"""Repairs the journal of a study where lines of it are damaged or missing.

What is whole is kept, in its order. What is lost is made again from the trials' folders:
`assignment.json` has what was asked, `config.json` the graph and so its fingerprint, `result.json`
the last lease, the reports and the end. What cannot be made again (the end of a trial that never
ran) is left out: the next driver finds that trial waiting, and comes to the same end.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from luthier import project
from luthier.errors import BadInput, Problem, RunError, VersionError
from luthier.faults import Fault
from luthier.records.redaction import redact
from luthier.storage import copy_to_trash, read_json, replacing, run_error
from luthier.storage.json_lines import FORMAT, seal
from luthier.study import protocol
from luthier.study import study as studies
from luthier.study.driver.admission import mark_of
from luthier.study.driver.directory import ASSIGNMENT_FORMAT, StudyDirectory, find_study
from luthier.study.driver.journal import encode_line, has_results, load_journal
from luthier.study.driver.trial_table import ENDED, Ledger, Trial
from luthier.study.objectives import judge, reported
from luthier.study.protocol import TrialEnded
from luthier.study.space_checks import Editing, locate


@dataclasses.dataclass(frozen=True)
class Repaired:
    """The outcome of repairing a journal.

    Args:
      directory: The study's folder.
      problems: What was wrong with it, a line each; empty where nothing was done.
      num_kept: Lines that were whole.
      num_made: Lines that were made again.
      num_left_out: Whole lines that do not fit the others.
      old: Where the damaged journal is now.
    """

    directory: pathlib.Path
    problems: list[str]
    num_kept: int = 0
    num_made: int = 0
    num_left_out: int = 0
    old: pathlib.Path | None = None


def repair_journal(name: str) -> Repaired:
    """Rebuild the journal of a study; a whole one is left as it is.

    Args:
      name: The study's folder, or its name.

    Raises:
      BadInput: There is no such study, a process drives it, or what a setting chose is nowhere.
      VersionError: A later luthier wrote in the study; nothing was changed.
    """
    directory = find_study(name)
    with directory.lock():
        contents = load_journal(directory.journal_path)
        problems = contents.problems
        if not contents.lines and has_results(directory.path):
            path = project.address(directory.journal_path)
            problems = [f"{path} is empty or missing, but trials have ended"]
        if not problems:
            return Repaired(directory.path, [])
        # The whole lines are replayed in order. Before each one, the lines without which it could
        # not have been written are put in: a lease or a report needs that its trial was admitted,
        # an end needs its lease and its reports, each of them that its trial was asked. What no
        # later line implies is added at the end (`finish`), as far as the trials' folders know of
        # it.
        repair = _Repair(directory, contents.whole)
        for line in contents.whole:
            repair.take(line)
        repair.finish()
        old = None
        if directory.journal_path.exists():
            # A copy and then an atomic replacement: a kill in between leaves the damaged journal in
            # place.
            old = copy_to_trash(directory.journal_path, f"repaired: {'; '.join(problems)}")
        try:
            with replacing(directory.journal_path) as file:
                for number, line in enumerate(repair.lines):
                    text = redact(encode_line(line)).encode()
                    file.write(seal(text, number, FORMAT if number == 0 else None))
        except OSError as error:
            raise run_error("write", directory.journal_path, error) from error
    kept = len(contents.whole) - repair.num_left_out
    num_made = len(repair.lines) - kept
    return Repaired(directory.path, problems, kept, num_made, repair.num_left_out, old)


class _Repair:
    """Replays the whole lines of a journal, and inserts what is missing between them."""

    def __init__(self, directory: StudyDirectory, whole: Sequence[Mapping[str, Any]]):
        self._directory = directory
        # How often each trial is tried again in lines that were not taken in yet.
        # A trial has one result.json, that of its last lease. So whether a result may stand for an
        # end depends on how often the trial is still to be retried in lines that follow.
        self._retries, self._reopenings = (
            collections.Counter(line["trial"] for line in whole if line["kind"] == kind)
            for kind in ("retried", "reopened")
        )
        self._ledger = Ledger()
        self._at = 0.0
        self._owed: int | None = None  # a setting whose line `told` comes next
        shelves, packages = directory.read_modules()
        self._study = studies.build(directory.read_study())
        self._editing = Editing(shelves, packages)
        self.lines: list[dict[str, Any]] = []
        self.num_left_out = 0

    def take(self, line: dict[str, Any]) -> None:
        """Replay a whole line, after making those that must precede it."""
        self._at = line["at"]
        # In the order in which a driver writes: the setting is asked, the trial is admitted,
        # leased, reported, ended. For each of them that this line implies and the journal lacks,
        # the line is made from the trial's folder first. What the line contradicts (an end of a
        # trial that has ended) is left out.
        kind, ledger = line["kind"], self._ledger
        if kind in ("asked", "told"):
            # A line `told` needs its own setting, too; a line `asked` only those before it.
            self._ask_up_to(line["setting"] + (kind == "told"))
        if "trial" in line:
            # Fields of trials are only numbers: the lost line `asked` of this one is somewhere
            # before.
            while line["trial"] >= len(ledger.trials):
                self._ask()
        if kind == "told":
            setting = ledger.settings[line["setting"]]
            # A setting is reported to the sampler only when all of its trials have ended: so they
            # had.
            for trial in setting.trials:
                self._end(trial)
                self._end_paused(trial)
            if setting.is_reported or ledger.outcome_of(setting) is None:
                self.num_left_out += 1
                return
        if kind == "retried":
            # Only a trial that ended is retried, so its end is what was lost. It also drops the
            # reports of that lease, which `retried` keeps. A trial that waits needs no end made up
            # for it: after `retried` it waits as before.
            if ledger.trials[line["trial"]].state == "running":
                self._end(line["trial"])
            # Counted down: the last lease of the trial, which `result.json` is of, comes only after
            # the last line `retried`.
            self._retries[line["trial"]] -= 1
        elif kind == "reopened":
            # Only a trial that had ended at its rung is reopened.
            self._end_paused(line["trial"])
            self._reopenings[line["trial"]] -= 1
        elif kind == "promoted":
            self._reopen(ledger.trials[line["trial"]])
        elif kind in ("leased", "ended"):
            self._try_again(line["trial"], line.get("fence"), line.get("outcome"))
        # Made again already, from a folder, because a later line stood before this one; or written
        # twice.
        is_repeated = (kind == "asked" and line["setting"] < len(ledger.settings)) or (
            kind == "ended" and ledger.trials[line["trial"]].state in ENDED
        )
        if is_repeated:
            self.num_left_out += 1
            return
        if kind in ("leased", "paused", "promoted"):
            self._reach(line)
        # Not for `ended`: a trial may end without being admitted (infeasible, or a copy).
        if kind in ("leased", "reported"):
            self._admit(line["trial"])
        # Not before `reported` or `lost`: folders know of the last lease only, and those lines may
        # belong to an earlier one. They can be followed without it.
        if kind == "ended":
            self._lease(line["trial"])
        if kind in ("ended", "reported"):
            ended = results_of(self._directory, line["trial"])
            self._report(line["trial"], ended, before=line.get("step"))
        self._add(line)
        if kind == "ended":
            self._owe_report(line["trial"])

    def finish(self) -> None:
        """Add what is missing at the end."""
        folders = [int(path.name) for path in self._directory.path.glob("trials/[0-9]*")]
        for trial in sorted(folders):
            known = len(self._ledger.trials)
            if trial >= known and _assignment(self._directory, trial) is None:
                continue  # it was made, and never asked: the next driver makes it again
            while trial >= len(self._ledger.trials):
                self._ask()
        # The remaining trials have no later line that would imply their end, only files.
        for state in list(self._ledger.trials):
            self._try_again(state.number)
            self._end(state.number)
            if self._ledger.is_over:  # with a line `closed` that was written after all ends
                self._end_paused(state.number)
        if self._owed is not None:
            self._made("told", setting=self._owed)

    def _add(self, line: dict[str, Any]) -> None:
        owed, self._owed = self._owed, None
        # A driver reports to the sampler right after the trial that ended a setting; that line is
        # put back just there, because its place decides what the sampler knew at the next
        # suggestion.
        if owed is not None and (line["kind"], line.get("setting")) != ("told", owed):
            self._made("told", setting=owed)
        self.lines.append(line)
        self._ledger.follow(line)

    def _made(self, kind: str, **fields: Any) -> None:
        # The time of the line before which it is put: the true one is lost, and times must not run
        # backwards in reports.
        self._add({"kind": kind, "at": self._at, "repaired": True, **fields})

    def _ask_up_to(self, setting: int) -> None:
        while len(self._ledger.settings) < setting:
            self._ask()

    def _ask(self) -> None:
        """Rebuild the line of the next setting, and those that follow from its trials' graphs."""
        number, first = len(self._ledger.settings), len(self._ledger.trials)
        trials = list(range(first, first + self._study.seeds))
        # Any trial of the setting will do: all of them have the same assignment, and differ in the
        # seed.
        assignment_file = next(
            filter(None, (_assignment(self._directory, t) for t in trials)), None
        )
        if assignment_file is None:
            assignment_file = self._located(trials, number)
        self._made(
            "asked",
            setting=number,
            trials=trials,
            assignment=assignment_file["assignment"],
            words=list(assignment_file["words"]),
            **({"notes": assignment_file["notes"]} if assignment_file.get("notes") else {}),
        )
        for trial in trials:
            self._admit(trial)

    def _located(self, trials: list[int], setting: int) -> Mapping[str, Any]:
        """Return a suggestion from a graph: folders of earlier versions do not hold it."""
        for trial in trials:
            try:
                graph = self._directory.read_trial(trial)
            except VersionError:
                raise
            except BadInput:
                continue
            if graph is None:
                continue
            assignment = locate(graph, self._study.space, self._editing)
            words = _read_assignment(self._directory, trial)
            # `locate` searches the space for choices that reproduce the graph; there may be none.
            if assignment is not None:
                return {"assignment": assignment, "words": words.get("words", ())}
        what = f"the choices of setting {setting} of {self._directory.path} are lost"
        remedy = f"restore {self._directory.trial_path(trials[0])} from a copy of the study"
        raise RunError(Problem(what, remedy=remedy))

    def _admit(self, trial: int) -> None:
        """Add that a trial was admitted, where it has a graph and that line is lost."""
        state = self._ledger.trials[trial]
        if state.is_admitted:
            return
        found = _assignment(self._directory, trial) or {}
        if found.get("copy_of") is not None:
            self._made("admitted", trial=trial, copy_of=found["copy_of"])
        elif results_of(self._directory, trial) is not None:
            self._made("admitted", trial=trial, mark=mark_of(self._directory.read_trial(trial)))

    def _end(self, trial: int) -> None:
        """Add how a trial ended, as its worker wrote it down, where that line is lost."""
        state = self._ledger.trials[trial]
        if state.state in ENDED:
            return
        # A copy has no result of its own: it ends as its first trial did.
        if state.copy_of is not None:
            first = self._ledger.trials[state.copy_of]
            if first.state in ENDED:
                reason = f"the same as trial {first.number}"
                reason += f": {first.reason}" if first.reason else ""
                how = (first.fault, first.violations)
                self._end_line(trial, first.state, reason, first.values, 0.0, *how)
            return
        if self._reopenings[trial] > 0:  # it had ended at its rung
            return self._end_paused(trial)
        if self._retries[trial] > 0:
            # Its result is that of a later lease now; only trials that failed are tried again.
            self._end_line(trial, "failed", "how it failed is lost", None, 0.0)
            return
        ended = results_of(self._directory, trial)
        # Of an earlier lease than the last one: that trial was put back, and runs again.
        # Fences order the leases of a trial, so a result shows which lease it ended.
        if ended is None or ended.fence < state.fence:
            return
        # That of a trial which was to pause: the next driver finds it at its rung.
        if self._is_of_pause(ended):
            return
        # The same lease, but a line says that it was lost or put back since: the driver did not
        # take this result, and the next one will run the trial again.
        if ended.fence == state.fence and state.state != "running":
            return
        self._admit(trial)
        if ended.fence > state.fence:
            self._made("leased", trial=trial, slice=ended.slice, fence=ended.fence)
        self._report(trial, ended)
        # Device time is not among the facts that a worker writes (`loop._finish` adds it): with the
        # objective `DeviceHours` the end is therefore made as one that lacks its objective.
        outcome, reason, values, fault, violations = self._study_values(ended)
        # The time of the lease was on the lost line alone; 0 errs on the side of more budget.
        seconds = float(ended.result.get("facts", {}).get("device_seconds") or 0.0)
        self._end_line(trial, outcome, reason, values, seconds, fault, violations)

    def _end_paused(self, trial: int) -> None:
        """Add that a trial stayed at its rung, as a driver ends it when nothing is left to run."""
        state, scheduler = self._ledger.trials[trial], self._study.scheduler
        if state.state == "paused" and scheduler is not None:
            reason = f"stayed at rung {state.rung} of {scheduler.num_rungs}"
            self._end_line(trial, "pruned", reason, [(state.rung_values or {})[state.rung]], 0.0)

    def _try_again(self, trial: int, fence: int | None = None, outcome: str | None = None) -> None:
        """Add the line `retried` of a trial that had ended, where later lines show that it was.

        Args:
          trial: The trial.
          fence: A later lease, whose line follows.
          outcome: How it ended, in a line that follows.
        """
        state = self._ledger.trials[trial]
        if state.state not in ENDED or self._retries[trial] > 0:
            return
        ended = None if state.copy_of is not None else results_of(self._directory, trial)
        # A lease of a trial that has ended can only follow a retry; so can another outcome of a
        # copy.
        is_later = fence is not None or (
            ended is not None and ended.fence > state.fence and not self._is_of_pause(ended)
        )
        if is_later and self._reopen(state):
            if fence is None:  # nor are the lines of its promotion and its lease there
                self._reach({"kind": "leased", "trial": trial})
                self._lease(trial)
        elif fence is not None or (
            state.copy_of is not None and outcome not in (None, state.state)
        ):
            self._made("retried", trial=trial)
        # The result of a trial that paused is no later end than that at its rung: only the line of
        # its lease is lost.
        elif is_later:
            self._made("retried", trial=trial)
            self._lease(trial)

    def _reopen(self, state: Trial) -> bool:
        """Add that a trial which had ended at its rung was reopened, before its promotion."""
        if self._study.scheduler is None or state.state != "pruned" or state.copy_of is not None:
            return False
        self._made("reopened", trial=state.number)
        return True

    def _is_of_pause(self, ended: TrialEnded) -> bool:
        """Return whether a result is of a trial that paused; with rungs nothing else is pruned."""
        return self._study.scheduler is not None and ended.outcome == "pruned"

    def _lease(self, trial: int) -> None:
        """Add the last lease of a trial that waits and ends next, where that line is lost."""
        state = self._ledger.trials[trial]
        if state.state != "waiting" or state.copy_of is not None or self._retries[trial] > 0:
            return
        ended = results_of(self._directory, trial)
        if ended is not None and ended.fence > state.fence:
            self._made("leased", trial=trial, slice=ended.slice, fence=ended.fence)

    def _reach(self, line: Mapping[str, Any]) -> None:
        """Add the lines about a rung without which a line could not follow."""
        state = self._ledger.trials[line["trial"]]
        if line["kind"] == "leased":
            # Only one that was promoted is leased after it had reached a rung.
            if state.is_to_pause:
                values = state.rung_values or {}
                at_rung = {"step": state.rung_step, "rung": state.rung}
                is_restarted = self._study.scheduler and self._study.scheduler.horizon == "rung"
                restarts = {"restarts": True} if is_restarted else {}
                at_rung |= {"value": values[state.rung], **restarts}
                self._made("promoted", trial=state.number, **at_rung)
        elif state.rung < line["rung"]:
            at_rung = {name: line[name] for name in ("step", "rung", "value")}
            self._made("reached", trial=state.number, **at_rung)

    def _study_values(
        self, ended: TrialEnded
    ) -> tuple[str, str, Sequence[float] | None, str, Sequence[float]]:
        # As `loop._finish` does it.
        study, folder = self._study, self._directory.trial_path(ended.trial)
        judged = judge(study.objectives, study.space.bounds, ended.result, folder)
        if ended.outcome == "complete" and judged.missing:
            missing = f"its result lacks {', '.join(judged.missing)}"
            return "failed", missing, None, Fault.CODE.value, ()
        fault = str(ended.result.get("fault", ""))
        if ended.outcome == "complete":
            return "complete", judged.violated, judged.values, fault, judged.violations
        values = judged.values if ended.outcome == "pruned" else None
        return ended.outcome, ended.reason, values, fault, ()

    def _end_line(
        self,
        trial: int,
        outcome: str,
        reason: str,
        values: Sequence[float] | None,
        seconds: float,
        fault: str = "",
        violations: Sequence[float] = (),
    ) -> None:
        # Written as a driver writes it (`loop._end`): the next driver reads both alike.
        series = sorted((self._ledger.trials[trial].series or {}).items())
        self._made(
            "ended",
            trial=trial,
            outcome=outcome,
            reason=reason,
            values=None if values is None else list(values),
            device_seconds=seconds,
            **({"fault": fault} if fault else {}),
            **({"violations": list(violations)} if violations else {}),
            **({"series": [list(pair) for pair in series]} if outcome == "pruned" else {}),
        )
        self._owe_report(trial)

    def _report(self, trial: int, ended: TrialEnded | None, before: int | None = None) -> None:
        """Add the reports of a trial that are lost, before a later one or its end."""
        if ended is None or (self._study.pruner or self._study.scheduler) is None:
            return  # nothing else goes by reports
        known = self._ledger.trials[trial].series or {}
        objective = self._study.objectives[0]
        for step, metrics in ended.result.get("series", ()):
            # Only those before the report that follows: later ones have lines of their own, or come
            # at the end.
            if before is not None and step >= before:
                return
            if step not in known and (value := reported(objective, metrics)) is not None:
                self._made("reported", trial=trial, step=step, value=value)

    def _owe_report(self, trial: int) -> None:
        """Have the line `told` follow next where the setting has ended, as a driver writes it."""
        setting = self._ledger.settings[self._ledger.trials[trial].setting]
        if not setting.is_reported and self._ledger.outcome_of(setting) is not None:
            self._owed = setting.number


def results_of(directory: StudyDirectory, trial: int) -> TrialEnded | None:
    """Return how a trial ended as its worker wrote it; None where that is missing or damaged.

    Raises:
      VersionError: A later luthier wrote it.
    """
    try:
        return protocol.read_result(directory.trial_path(trial))
    except protocol.UnreadableResult:
        return None


def _assignment(directory: StudyDirectory, trial: int) -> Mapping[str, Any] | None:
    """Return the suggestion that a trial's folder records; None where it records none."""
    found = _read_assignment(directory, trial)
    return found if "assignment" in found else None


def _read_assignment(directory: StudyDirectory, trial: int) -> dict[str, Any]:
    try:
        path = directory.trial_path(trial) / "assignment.json"
        found = read_json(path, default={}, newest=ASSIGNMENT_FORMAT)
    except RunError:
        return {}
    return found if isinstance(found, dict) else {}
