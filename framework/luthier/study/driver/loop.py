"""The loop of a study: ask the sampler, validate trials, lease device groups, record results.

The way of a trial, with where each step happens:

1. `_Trials._ask` gets a suggestion from the sampler (`Suggester.ask`, in `sampling`) and writes the
   line `asked`: a parameter set with one trial for each seed.
2. `_Trials._admit` has `Admission.admit` make the trial's graph and validate it: constraints,
   duplicates, then the feasibility check (`gate`) and `packing` for each kind of device group. The
   trial's folder and the line `admitted` are written; the trial joins the queue, or ends here.
3. `Driver._fill` takes it from the queue (`_next`) for a free device group, leases the group to it
   (`_lease`, the line `leased`) and hands it to the engine (`TrialEngine.start` or `refill`).
4. `Driver._handle` receives the events of the engine. An evaluation goes to `_report`, which writes
   `reported` and asks the pruner (`Pruning.report`) or the rungs (`_judge_at_rung`, which writes
   `reached`, and `promoted` where the trial continues); the answer goes back to the worker by
   `TrialEngine.answer`. **This is where a trial is pruned or paused**: the worker then ends it as
   `pruned`, or saves it and sends `Paused` (the line `paused`). A free place takes a paused trial
   that is to be promoted before any other (`_take_promoted`).
5. The end goes to `_finish`, which reduces the result to the objectives' values, and to `_end`,
   which writes the line `ended`. When all trials of a parameter set have ended,
   `_report_to_sampler` writes the line `told` and calls `Suggester.record`. Back to 1.

A worker that dies (`_lose`) or a machine that fails (`_take_fault`) puts its trials back into the
queue. `_work` is the loop itself; `_queue_again` is where a resumed study starts.

One thread, one journal. Every decision is a line of the journal, and the trial table (`Ledger`) is
folded from the same lines that are written: what a resumed driver reads back is by construction
what this one knew. The rule for the order is: a line is on the disk (`commit`) before anybody
outside of this process can see what follows from it. So work is sent to an engine only after its
leases are committed, or a driver that is killed in between would lease the same trial again under
the same fence. The next driver of a study in an object store may have another disk: what workers
act on is uploaded before it is sent (`publish`).

Results arrive twice: as a message, and as `result.json`, which the worker writes first. The file is
what counts where a worker or the driver dies between the two (`_take_result`). The fence of the
lease ties a result to a lease: what a worker that was given up still sends or writes is dropped.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from luthier import project
from luthier.errors import RecordError
from luthier.faults import Fault
from luthier.graph import Graph
from luthier.storage.bucket import patiently
from luthier.study import protocol
from luthier.study.driver import directory as directories
from luthier.study.driver.admission import Admission, ValidatedTrial, kind_of
from luthier.study.driver.directory import StudyDirectory
from luthier.study.driver.journal import Journal
from luthier.study.driver.limits import Limits
from luthier.study.driver.sampling import Pruning, Suggester, Suggestion, grid_resolution
from luthier.study.driver.trial_table import ENDED, Ledger, Trial
from luthier.study.objectives import judge, reduced, reported
from luthier.study.packing import Packed
from luthier.study.protocol import (
    Back,
    Event,
    Faulted,
    Lost,
    Paused,
    Reported,
    SliceInfo,
    TrialEnded,
    TrialEngine,
    TrialTrained,
    TrialWork,
    Verdict,
    Work,
)
from luthier.study.rungs import Rungs, reached_rung
from luthier.study.space import num_points, override_text
from luthier.study.study import Study

WATCH_SECONDS = 10.0
# Samplers that look back are asked one setting at a time: a setting that waits in the queue would
# miss the results that come in meanwhile, and which ones it misses would depend on how fast trials
# are.
_AHEAD = 4  # settings asked ahead for each slice, where the sampler does not look back
# Two in a row on one slice, because the first may be a trial that broke the device for a moment;
# three for one trial, because a trial that brings down every machine is likely to be the cause.
MAX_FAULTS = 2  # of the machine, in a row, before a slice is excluded
MAX_TRIAL_FAULTS = 3  # of the machine, that one trial meets before it is held back
# A lane takes trials of its own program only; paused trials of other programs are skipped.
MAX_LOOKED_AT = 64  # paused trials for each free place
REST_SECONDS = 2.0  # of a slice after a fault of its machine: a lost mount may come back

KILLED = "killed"
"""The fault of a trial that failed because its worker died again and again while it ran."""

_COUNTED = (Fault.CODE.value, Fault.DATA.value, Fault.VERSION.value, KILLED)
"""Faults that `budget.failures` counts: a trial that diverged or took too long is a result."""


class View(Protocol):
    """A display of a study's status."""

    def update(self, ledger: Ledger, slices: Sequence[SliceInfo]) -> None:
        """Show the status now; called after every round of the loop."""


@dataclasses.dataclass
class _Slice:
    """A device group, and the trials on it.

    Args:
      info: Which one.
      running: The trials on it, with those that have trained and whose files are being written.
      packed: How the work on it runs, or the last work ran.
      is_away: Whether it has no worker yet.
      excluded: Why it accepts no more trials; empty where it does.
      is_gone: Whether that is because no worker was to come any more.
      num_faults: Faults of its machine in a row.
      fault_fence: The newest lease of the study when the last of them was counted: the lanes of
        one program meet a fault together, which is one fault.
      rests_until: When it may take the next trial, by the monotonic clock.
      leased: When each trial on it was leased, by the monotonic clock.
    """

    info: SliceInfo
    running: set[int] = dataclasses.field(default_factory=set)
    packed: Packed = Packed()
    is_away: bool = False
    excluded: str = ""
    is_gone: bool = False
    num_faults: int = 0
    fault_fence: int = 0
    rests_until: float = 0.0
    leased: dict[int, float] = dataclasses.field(default_factory=dict)
    _shares: dict[int, float] = dataclasses.field(default_factory=dict)  # of trials in training
    _trained: dict[int, float] = dataclasses.field(default_factory=dict)
    _shared_at: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether it may take a trial now."""
        return not (self.is_away or self.excluded) and time.monotonic() >= self.rests_until

    @property
    def in_training(self) -> set[int]:
        """The trials that have a place on it."""
        return self.running - self._trained.keys()

    @property
    def is_closing(self) -> bool:
        """Whether a trial has trained on it that has not ended yet."""
        return bool(self._trained)

    def lease(self, trial: int) -> None:
        """Put a trial on it."""
        self._share()
        self.running.add(trial)
        self.leased[trial] = time.monotonic()
        self._shares[trial] = 0.0

    def free(self, trial: int) -> float:
        """Take a trial off it; return devices times seconds that the trial had.

        The time of the slice is shared evenly by the trials on it at each moment, so that all
        trials together get what the slice was leased, whatever its worker did in it.
        """
        if trial not in self.running:
            return 0.0
        self.leave(trial)
        self.running.discard(trial)
        del self.leased[trial]
        return self._trained.pop(trial)

    def leave(self, trial: int) -> None:
        """Give the place of a trial to the next one; the trial has not ended yet."""
        self._share()
        if trial in self._shares:
            self._trained[trial] = self._shares.pop(trial)

    def spent_by(self, trial: int) -> float:
        """Return devices times seconds that a trial on it has had so far."""
        self._share()
        return self._shares[trial]

    def spent(self) -> float:
        """Return devices times seconds that the trials on it have had so far."""
        self._share()
        return sum(self._shares.values()) + sum(self._trained.values())

    # Integrates device time between two changes of the set of trials. Each interval is divided by
    # the number of trials that were there in it, so a trial that shares its group with seven others
    # pays an eighth, and the sum over trials is what the group was leased for.
    def _share(self) -> None:
        # The monotonic clock: neither a clock that is set nor a suspended machine counts.
        now = time.monotonic()
        seconds = (now - self._shared_at) * self.info.num_devices
        for trial in self._shares:
            self._shares[trial] += seconds / len(self._shares)
        self._shared_at = now


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a driver.

    Args:
      study: The study.
      directory: Its folder, locked.
      journal: Its journal.
      ledger: The trial table of the journal.
      admission: Decides on trials.
      suggester: Suggests settings.
      pruning: Ends trials early; None ends none.
      rungs: The rungs of the study's scheduler; None where it has none.
      view: Displays its status.
    """

    study: Study
    directory: StudyDirectory
    journal: Journal
    ledger: Ledger
    admission: Admission
    suggester: Suggester
    pruning: Pruning | None
    rungs: Rungs | None
    view: View


class _Trials:
    """The trials of a study: requests, validates and ends them, and reports them to the sampler.

    Args:
      parts: What it works with.
      engine: Runs the trials.
      waiting: Settings whose trials have not all ended, with their assignments.
      baseline: The baseline's assignment; None where the space does not hold it.
    """

    def __init__(
        self,
        parts: Parts,
        engine: TrialEngine,
        waiting: Mapping[int, Suggestion],
        baseline: Mapping[str, Any] | None,
    ):
        self._parts, self._engine, self._baseline = parts, engine, baseline
        self._study, self._ledger = parts.study, parts.ledger
        self._waiting = dict(waiting)
        self._slices: list[_Slice] = []
        self._queue: collections.deque[ValidatedTrial] = collections.deque()
        self._copies: dict[int, list[int]] = {}
        self._is_exhausted = False
        self._is_for_another = False  # whether a group left a new trial to one that waits for it
        self._failed: list[int] = []  # trials that failed one after another
        self._faults: collections.Counter[int] = collections.Counter()  # of the machine, by trial
        self._held: dict[int, str] = {}  # trials that met too many of them, with the last one
        self._lost_on: dict[int, int] = {}  # trial -> the slice where it was lost last
        # How paused trials run: a plan of each would be made again for every look at them.
        self._placed: dict[int, Mapping[Any, Packed]] = {}
        self._verdicts: list[tuple[int, int, int, Verdict]] = []  # answers that are to be sent
        self._left = self._time_left_behind()
        self._limits = Limits(parts.study, parts.ledger)
        self._last: int | None = None  # the trial that the rest of the device time is for
        self._driven_before = parts.ledger.driven_seconds
        self.stopped = ""
        self.stopped_by: Literal["", "failures", "place"] = ""
        self._started = self._watched = time.monotonic()
        self.stop_asked = False
        self.is_preempted = False

    def _time_left_behind(self) -> dict[int, float]:
        """Return the device time of trials that ran when the last driver died.

        Its own clock died with it: the times of its journal's lines are all that is known.
        """
        ledger = self._ledger
        running = [trial for trial in ledger.trials if trial.state == "running"]
        lanes = collections.Counter(trial.slice for trial in running)
        return {
            trial.number: max(0.0, ledger.last_at - trial.started)
            * ledger.num_devices.get(trial.slice, 1)
            / lanes[trial.slice]
            for trial in running
        }

    def _note(self, kind: str, **fields: Any) -> None:
        """Write a line of the journal, and follow it."""
        line = self._parts.journal.add(kind, **fields)
        self._ledger.follow(line)
        if self._parts.rungs is not None:
            self._parts.rungs.follow(line)

    def _queue_again(self) -> None:
        """Resume where the journal ends: report results that were not reported, queue the rest."""
        # First the trials that ran when the last driver died: their workers died with it, perhaps
        # after the result was written. Then settings in the order of their numbers, as an
        # uninterrupted driver would have admitted them: duplicates are decided by which trial came
        # first.
        for left in [t for t in self._ledger.trials if t.state == "running"]:
            if not self._take_result(left):
                self._put_back(left, "the driver died")
        for number, suggestion in sorted(self._waiting.items()):
            self._report_to_sampler(number)
            for repeat, trial in enumerate(self._ledger.settings[number].trials):
                state = self._ledger.trials[trial]
                if state.state in (*ENDED, "paused"):
                    continue
                graph = self._parts.directory.read_trial(trial) if state.is_admitted else None
                if state.copy_of is not None:
                    self._copy(trial, state.copy_of)
                elif graph is not None:
                    # A promoted trial was about to be leased before all others.
                    self._queue_placed(self._place(state, graph), is_first=state.promoted > 0)
                else:
                    self._admit(trial, suggestion, repeat)
        self._waiting.clear()

    def _may_ask(self) -> bool:
        """Return whether the limits of the study leave room for one more setting."""
        known, trials = len(self._ledger.trials), self._study.budget.num_trials
        # A whole setting or none of it: a setting is judged by the mean over all of its seeds. The
        # first one is asked even where its seeds exceed the budget, or nothing would ever run;
        # `grid_notice` counts it as well.
        if trials is not None and known and known + self._study.seeds > trials:
            return False
        if self._is_spent() or self._is_exhausted or self.is_late:
            return False
        return not (self.stop_asked or self.stopped)

    def _ask(self) -> bool:
        """Ask the sampler for one more setting; return whether there is one."""
        number, known = len(self._ledger.settings), len(self._ledger.trials)
        if not self._may_ask():
            return False
        if number == 0:
            # Setting 0 is the experiment as it is, and no suggestion. Where the space holds it, the
            # sampler learns of it as if it had suggested it.
            suggestion: Suggestion | None = Suggestion(self._baseline or {})
        else:
            suggestion = self._parts.suggester.ask(number)
        if suggestion is None:
            # Once the sampler has no more, it is not asked again: a grid would be asked in every
            # round.
            self._is_exhausted = True
            return False
        # `restore`, not `ask`: the sampler did not choose it, but a model-based one should learn
        # from its result like from any other.
        if number == 0 and self._baseline is not None:
            self._parts.suggester.restore(0, suggestion)
        # The baseline is the base itself, whatever it would be in the space.
        assignment = suggestion.assignment if number else {}
        words = [override_text(o) for o in self._study.space.overrides(assignment)]
        self._note(
            "asked",
            setting=number,
            trials=list(range(known, known + self._study.seeds)),
            # The baseline's too: a resumed driver gives it back to the sampler by this line.
            assignment=dict(suggestion.assignment),
            words=words,
            **({"notes": dict(suggestion.notes)} if suggestion.notes else {}),
        )
        for repeat, trial in enumerate(self._ledger.settings[number].trials):
            self._admit(trial, suggestion, repeat)
        return True

    def _admit(self, trial: int, suggestion: Suggestion, repeat: int) -> None:
        setting = self._ledger.settings[self._ledger.trials[trial].setting]
        # As in `_ask`: the baseline is the base itself.
        assignment = suggestion.assignment if setting.number else {}
        try:
            # The trial's folder is written before its line `admitted`: with the line there is
            # always a graph. A kill in between leaves a folder without a line, and the same folder
            # is written again.
            located = suggestion.assignment
            admitted = self._parts.admission.admit(trial, assignment, repeat, located)
            if admitted.graph is not None:
                # All that its lines of the journal are made again from, where they are lost.
                self._parts.directory.write_trial(
                    trial,
                    admitted.graph,
                    setting.words,
                    assignment=dict(suggestion.assignment),
                    notes=dict(suggestion.notes),
                    copy_of=admitted.copy_of,
                )
        except RecordError as error:  # its graph holds what no record can
            admitted = ValidatedTrial(trial, None, f"cannot be recorded: {error.problems[0]}")
        if admitted.copy_of is not None:
            self._note("admitted", trial=trial, copy_of=admitted.copy_of)
            self._copy(trial, admitted.copy_of)
            return
        # There is no mark where a trial is invalid, breaks a constraint or cannot be recorded: it
        # ends at once, without a line `admitted`.
        if admitted.mark:
            self._note("admitted", trial=trial, mark=admitted.mark)
            if self._restarts and not admitted.reason:
                admitted = self._place(self._ledger.trials[trial], admitted.graph)
        self._queue_placed(admitted)

    @property
    def _restarts(self) -> bool:
        """Whether trials are trained from their first step to each rung (`horizon="rung"`)."""
        rungs = self._parts.rungs
        return rungs is not None and rungs.scheduler.horizon == "rung"

    def _place(self, trial: Trial, graph: Graph) -> ValidatedTrial:
        """Validate the next run of a trial that was admitted before; write the graph of a rung."""
        rung = trial.rung + 1
        if self._restarts and (short := self._parts.admission.at_rung(graph, rung)) is not None:
            # The same folder and graph whenever this is asked: a resumed driver finds the run.
            self._parts.directory.write_rung(trial.number, rung, short)
            graph = short
        return self._parts.admission.place(trial.number, graph)

    def _folder(self, trial: Trial) -> pathlib.Path:
        """Return the folder of the run that a trial was, or will be, leased for."""
        return self._parts.directory.work_path(trial.number, trial.rung + 1)

    def _queue_placed(self, admitted: ValidatedTrial, is_first: bool = False) -> None:
        if admitted.reason:
            self._end(admitted.trial, "infeasible", admitted.reason)
        elif is_first:
            self._queue.appendleft(admitted)
        else:
            self._queue.append(admitted)

    def _copy(self, trial: int, first: int) -> None:
        self._copies.setdefault(first, []).append(trial)
        self._copy_if_ended(first)

    def _is_spent(self) -> bool:
        """Return whether no trial may start any more, but the one that is finished last."""
        spent = sum(slice.spent() for slice in self._slices)
        return bool(self._limits.reached(spent)) or self._last_trial() is not None

    def _last_trial(self) -> int | None:
        """Return the trial that the rest of the device time is reserved for; None for no such."""
        if self._parts.rungs is None:
            return None
        spent = sum(slice.spent() for slice in self._slices)
        found = self._limits.reserves(self._parts.rungs, spent)
        # The same one until it has ended, although another may turn out to be better meanwhile:
        # there is time for one.
        if found is None or self._last is None or self._ledger.trials[self._last].state in ENDED:
            self._last = found
        return self._last

    def _finish(self, event: TrialEnded) -> None:
        """Process the end of a trial, from its worker's message or from its `result.json`."""
        outcome, reason = event.outcome, event.reason
        fault = str(event.result.get("fault", ""))
        facts = dict(event.result.get("facts", {}))
        # A result with a device time of its own was not run here: a plan knows what a run takes.
        seconds = self._free(event.trial)
        # Put into the facts before the objectives are evaluated: `DeviceHours` reads it from there.
        facts["device_seconds"] = seconds = float(facts.get("device_seconds") or seconds)
        result = {**event.result, "facts": facts}
        state = self._ledger.trials[event.trial]
        folder = self._folder(state)
        judged = judge(self._study.objectives, self._study.space.bounds, result, folder)
        # A misspelt objective shows at the first trial, as a failure, instead of a study that
        # optimizes nothing.
        if outcome == "complete" and judged.missing:
            outcome, reason = "failed", f"its result lacks {', '.join(judged.missing)}"
            fault = Fault.CODE.value
        elif outcome == "complete" and folder != self._parts.directory.trial_path(event.trial):
            assert judged.values is not None
            return self._reach(state, int(event.result["steps"]), judged.values[0], seconds)
        elif outcome == "complete":
            reason = judged.violated
        # A pruned trial keeps the values that it reached, for tables and reports. A failed one has
        # none, even where an early evaluation produced some.
        values = judged.values if outcome in ("complete", "pruned") else None
        violations = judged.violations if outcome == "complete" else ()
        self._end(event.trial, outcome, reason, values, seconds, fault, violations)

    def _reach(self, trial: Trial, step: int, value: float, device_seconds: float) -> None:
        """Record the end of a trial's run to a rung, where it waits for its promotion."""
        at_rung = {"trial": trial.number, "step": step, "rung": trial.rung + 1, "value": value}
        graph = self._parts.directory.read_trial(trial.number)
        done = self._parts.admission.done_at_rung(graph, trial.rung + 1)
        spent = round(trial.device_seconds + device_seconds, 6)
        self._note("reached", **at_rung, fraction=done, spent=spent)
        self._parts.suggester.show_rungs(trial.setting, trial.rung_values or {})
        # Also one that is promoted next: its run has ended, and the next one needs a lease.
        self._note("paused", **at_rung, device_seconds=round(device_seconds, 6))

    def _end(
        self,
        trial: int,
        outcome: str,
        reason: str,
        values: Sequence[float] | None = None,
        device_seconds: float | None = None,
        fault: str = "",
        violations: Sequence[float] = (),
    ) -> None:
        """Record the end of a trial; report its setting to the sampler if that has ended."""
        # Given by `_finish`, which has taken the trial off its slice; all other ends take it off
        # here.
        if device_seconds is None:
            device_seconds = self._free(trial)
        state = self._ledger.trials[trial]
        # Taken before the line is noted, by which the trial table drops the reports.
        series = state.series or {}
        self._note(
            "ended",
            trial=trial,
            outcome=outcome,
            reason=reason,
            values=None if values is None else list(values),
            device_seconds=round(device_seconds, 6),
            **({"fault": fault} if fault else {}),
            **({"violations": list(violations)} if violations else {}),
            # With the line: a sampler takes the intermediate values of pruned trials, and a resumed
            # driver must report the same ones.
            **({"series": sorted(series.items())} if outcome == "pruned" else {}),
        )
        # A copy never ran: the pruner has seen no report of it.
        if self._parts.pruning is not None and state.copy_of is None:
            self._parts.pruning.end(trial, outcome, values[0] if values else None, series)
        # Next after the line `ended`, where `repair` puts a lost line `told`. Copies come last, for
        # they end by this very method, and read how this trial ended.
        self._report_to_sampler(state.setting)
        self._count_failure(state)
        self._copy_if_ended(trial)

    def _count_failure(self, trial: Trial) -> None:
        """Stop the study where trials fail one after another, or where the baseline cannot run."""
        # A copy of a failed trial is no new evidence that the code is broken.
        if trial.copy_of is not None:
            return
        has_failed = trial.state == "failed" and trial.fault in _COUNTED
        if has_failed:
            self._failed.append(trial.number)
        # An infeasible trial neither counts nor resets: it says nothing about the code.
        elif trial.state in ("complete", "pruned"):
            # "In a row" is by the order of ends, not of numbers: with several device groups, trials
            # end out of order.
            self._failed.clear()
        # `_failed` is not read back from the journal: each driver counts a row of its own, so that
        # a resumed study does not stop at its first failure.
        limit = self._study.budget.failures
        if limit is None:
            return
        # The baseline is judged by its whole setting: with several seeds, one that diverges does
        # not stop the study.
        outcome = self._ledger.outcome_of(self._ledger.settings[trial.setting])
        is_bad = outcome is not None and outcome[0] in ("failed", "infeasible")
        # By the trial that ended last, whose reason is shown: one that diverged, or took too long,
        # is a result (`_COUNTED`), and does not stop the study.
        if trial.setting == 0 and is_bad and (has_failed or trial.state == "infeasible"):
            what = "failed" if has_failed else "is infeasible"
            self._stop("failures", f"the baseline {what}: {trial.reason}")
        elif has_failed and len(self._failed) >= limit:
            last = ", ".join(map(str, self._failed[-limit:]))
            what = f"{limit} trials in a row failed ({last}; budget.failures={limit})"
            self._stop("failures", f"{what}; the last one: {trial.reason}")

    def _stop(self, by: Literal["failures", "place"], why: str) -> None:
        if not self.stopped:
            self.stopped, self.stopped_by = why, by

    def _report_to_sampler(self, number: int) -> None:
        setting = self._ledger.settings[number]
        outcome = self._ledger.outcome_of(setting)
        if outcome is None or setting.is_reported:
            return
        reports = self._ledger.reports_of(setting)
        violations = self._ledger.violations_of(setting)
        # Written down although it follows from the ends of trials: when a result was reported,
        # relative to when it was asked, decides what it suggests, and a resumed driver replays
        # exactly this order.
        self._note("told", setting=number)
        self._parts.suggester.record(number, *outcome, reports, violations)

    def _copy_if_ended(self, first: int) -> None:
        """End the trials whose graph is that of a trial that ended, as that one did."""
        state = self._ledger.trials[first]
        if state.state not in ENDED:
            return
        for trial in self._copies.pop(first, ()):
            reason = f"the same as trial {first}"
            if state.reason:
                reason += f": {state.reason}"
            how = (state.fault, state.violations)
            self._end(trial, state.state, reason, state.values, None, *how)

    def _free(self, trial: int) -> float:
        """Take a trial off its slice; return devices times seconds that it had."""
        seconds = sum(slice.free(trial) for slice in self._slices)
        return seconds + self._left.pop(trial, 0.0)

    @property
    def is_late(self) -> bool:
        """Whether `budget.wall_seconds` are over, those of earlier drivers included."""
        limit = self._study.budget.wall_seconds
        seconds = self._driven_before + time.monotonic() - self._started
        return limit is not None and seconds >= limit

    def _put_back(self, trial: Trial, reason: str) -> None:
        if trial.is_to_pause:
            # It was asked to pause, and what is lost is at most that its last steps are saved.
            return self._pause(trial)
        seconds = round(self._free(trial.number), 6)
        self._note("lost", trial=trial.number, reason=reason, counts=False, device_seconds=seconds)

    def _pause(self, trial: Trial) -> None:
        """Note that a trial waits at the rung that it has reached; its place is free."""
        seconds = round(self._free(trial.number), 6)
        self._note("paused", **_at_rung(trial), device_seconds=seconds)

    def _take_result(self, trial: Trial) -> bool:
        """End a trial by the result that its last worker wrote; return whether there is one."""
        try:
            ended = patiently(lambda: protocol.read_result(self._folder(trial)))
        except protocol.UnreadableResult as error:  # of one trial, which runs again
            self._note("noted", notice=f"trial {trial.number} runs again: {error}")
            return False
        # A result with another fence is of an earlier lease, whose trial was put back since.
        if ended is None or ended.fence != trial.fence:
            return False
        # That of a trial which pauses, and ends so only where it is never promoted.
        if self._parts.rungs is not None and ended.outcome == "pruned":
            return False
        self._finish(ended)
        return True


class Driver(_Trials):
    """Drives a study to its end, or until it is asked to stop.

    Args:
      parts: What it works with.
      engine: Runs the trials.
      waiting: Settings whose trials have not all ended, with their assignments.
      baseline: The baseline's assignment; None where the space does not hold it.
    """

    def run(self) -> bool:
        """Run the study; return whether it is over, and not only stopped."""
        # Outside of the `try`: an engine that cannot open closes by itself the workers that it had
        # started (`Local.open`), and there is no line `opened` to be closed.
        gate = self._study.gate
        # A gate of the user need not have `begin` or `close`: they are no part of its protocol.
        if (begin := getattr(gate, "begin", None)) is not None:
            begin()
        try:
            infos = self._engine.open(str(self._parts.directory.path))
        except BaseException:
            _close(gate)
            raise
        # Stays False if anything below raises: the study can then be resumed.
        is_over = False
        try:
            self._slices = [_Slice(info) for info in infos]
            self._note("opened", slices=[dataclasses.asdict(info) for info in infos])
            self._parts.admission.open(infos)
            self._show()
            self._queue_again()
            for event in self._engine.events(0.0):
                self._handle(event)  # some slices may be away yet
            is_over = self._work()
            if is_over:
                self._note_limits()
        finally:
            # Closing waits until running trials are saved; only then is it known which of them have
            # results (`_release`), and the last line of the journal can say how the study stands.
            self._engine.close()
            _close(gate)
            self._release()
            stopped = {"stopped": self.stopped, "stopped_by": self.stopped_by}
            self._note("closed", over=is_over, **(stopped if self.stopped and not is_over else {}))
            self._parts.journal.commit()
            self._show()
        return is_over

    def _note_limits(self) -> None:
        """Note the limit that has ended the study, and that no trial is complete, each once."""
        rungs = self._parts.rungs
        notices = [self._limits.reached(), self._limits.none_complete(rungs) if rungs else ""]
        for notice in notices:
            if notice not in ("", *self._ledger.notices):
                self._note("noted", notice=notice)

    def _work(self) -> bool:
        while not self.stop_asked and not self.stopped:
            # The order within a round: fill all slices, commit, and only then wait. A round without
            # anything that runs or may come is the end.
            self._watch_source()
            if self.is_late:
                return False
            # Noted before groups are filled: one whose rest ends a moment later was passed over in
            # this round, and only the next round shows whether it takes a trial.
            may_come = any(not slice.excluded and not slice.is_free for slice in self._slices)
            self._fill()
            self._parts.journal.commit()
            if not any(slice.running for slice in self._slices) and not (
                may_come and self._is_wanted()
            ):
                self._stop_where_held()
                if self.stop_asked or self.is_late or self.stopped:
                    return False
                self._end_paused()
                return True
            # Only now, when no group waits for it: to validate a trial takes longer than all else
            # of a round. One in a round, so that events do not wait for several.
            may_ask_more = self._ask_ahead()
            # A second at most, even where no event comes: limits of time, rests of groups and a
            # request to stop are looked at once in a round.
            for event in self._engine.events(0.0 if may_ask_more else 1.0):
                self._handle(event)
            self._send_verdicts()
            self._end_slow_trials()
            self._show()
        # The limit of failures was reached by the very last trials: the study is over all the same,
        # and resuming it would find nothing to run.
        if self.stopped_by == "failures" and not self.stop_asked and self._is_done():
            self.stopped = self.stopped_by = ""  # there is nothing left to stop
            return True
        return False

    def _is_done(self) -> bool:
        """Return whether every trial that there can be has ended."""
        # "Done" is stronger than "nothing is queued": a sampler that looks back may still be asked
        # for more.
        trials, known = self._study.budget.num_trials, len(self._ledger.trials)
        is_full = trials is not None and known + self._study.seeds > trials
        return (is_full or self._is_exhausted) and self._ledger.count(*ENDED) == known

    def _is_wanted(self) -> bool:
        """Return whether there is a trial for a group that is away, or rests after a fault."""
        # Asking here may put a trial into the queue although no group is free: the study must not
        # end while one that is away could still take it.
        if any(True for _ in self._promotable()):
            return True
        last = self._last_trial()
        if self._is_spent():
            return any(waiting.trial == last for waiting in self._queue)
        return bool(self._queue) or self._ask()

    def _promotable(self) -> Iterator[int]:
        """Yield the paused trials that are to be promoted."""
        if (last := self._last_trial()) is not None:
            if self._ledger.trials[last].state == "paused":
                yield last
        elif self._parts.rungs is not None and not self._is_spent():
            yield from self._parts.rungs.promotable(may_ask=self._may_ask())

    def _end_paused(self) -> None:
        """End the trials that wait at a rung, when nothing is left to promote."""
        if self._parts.rungs is None:
            return
        num_rungs = self._parts.rungs.scheduler.num_rungs
        for trial in self._ledger.trials:
            if trial.state == "paused":
                reason = f"stayed at rung {trial.rung} of {num_rungs}"
                self._complete_result(trial, reason)
                self._end(trial.number, "pruned", reason, [_at_rung(trial)["value"]])

    def _complete_result(self, trial: Trial, reason: str) -> None:
        """Write the result of a paused trial whose worker was killed before it could."""
        directory, series = self._parts.directory, trial.series or {}
        folder = directory.trial_path(trial.number)
        with contextlib.suppress(protocol.UnreadableResult):  # a damaged one is replaced
            found = protocol.read_result(directory.work_path(trial.number, trial.rung))
            if found is not None and found.fence == trial.fence:
                if self._restarts:  # of its run to the rung, which has ended
                    found = dataclasses.replace(found, outcome="pruned", reason=reason)
                    protocol.write_result(folder, found)
                return
        # As far as the journal knows: the metric of the objective at each evaluation.
        name = self._study.objectives[0].name
        result = {
            "metrics": {name: series[max(series)]} if series else {},
            "series": [[step, {name: value}] for step, value in sorted(series.items())],
            "steps": max(series, default=0),
            "facts": {"device_seconds": trial.device_seconds},
        }
        ended = TrialEnded(trial.slice, trial.number, trial.fence, "pruned", reason, result)
        protocol.write_result(folder, ended)

    def _stop_where_held(self) -> None:
        """Stop a study whose last trials only met faults of the machine."""
        if self._held and not self._is_spent():
            trial, reason = next(iter(self._held.items()))
            self._stop(
                "place", f"trial {trial} met {MAX_TRIAL_FAULTS} faults of the machine: {reason}"
            )
        elif self._queue and not self._is_spent() and not self.is_late:
            trial = self._queue[0].trial
            reason = next((s.excluded for s in self._slices if s.excluded), "")
            self._stop("place", f"no device group is left for trial {trial}: {reason}")

    def _show(self) -> None:
        self._parts.view.update(self._ledger, [slice.info for slice in self._slices])

    def _fill(self) -> None:
        """Give every free device group, and every free lane, a trial."""
        while True:
            self._is_for_another = False
            for slice in self._slices:
                if slice.is_free:
                    self._fill_group(slice)
            if not self._is_for_another:
                return

    def _fill_group(self, slice: _Slice) -> None:
        if not slice.in_training:
            self._start(slice)
        while slice.in_training and len(slice.in_training) < slice.packed.num_lanes:
            more = self._next(slice, slice.packed.key)
            if more is None:
                break
            work = self._lease(slice, more)
            self._parts.journal.publish()
            # Committed before it is sent, as every lease is.
            self._engine.refill(slice.info.index, work)

    def _start(self, slice: _Slice) -> None:
        # A slice that is free takes the trial at the head of the queue, preferably one of the
        # program that ran there last, which its worker has compiled. Lanes that stay empty go
        # to the worker as spare: they are filled while the others run (`_fill`).
        first = self._next(slice, None)
        if first is None:
            return
        slice.packed = packed = first.packed[kind_of(slice.info)]
        work = [self._lease(slice, first)]
        while len(work) < packed.num_lanes:
            more = self._next(slice, packed.key)
            if more is None:
                break
            work.append(self._lease(slice, more))
        self._parts.journal.publish()
        self._engine.start(
            slice.info.index,
            Work(
                work,
                packed.hoist,
                packed.lanes,
                asks=self._asks,
                spare_lanes=packed.num_lanes - len(work),
                num_expected=max(len(work), self._num_left() // len(self._slices)),
            ),
        )

    @property
    def _asks(self) -> bool:
        """Whether trials wait for an answer after each evaluation."""
        has_rungs = self._parts.rungs is not None and not self._restarts
        return self._parts.pruning is not None or has_rungs

    def _num_left(self) -> int:
        """Return how many trials have not ended, with those that `budget.trials` lets come."""
        known, trials = len(self._ledger.trials), self._study.budget.num_trials
        return max(known, trials or 0) - self._ledger.count(*ENDED)

    def _next(self, slice: _Slice, key: str | None) -> ValidatedTrial | None:
        """Take a trial that may run on a slice from the queue; ask the sampler for more if needed.

        Args:
          slice: Where it will run.
          key: The program that it must share; None takes any, the one that ran there before first.
        """
        if (promoted := self._take_promoted(slice, key)) is not None:
            return promoted
        if self._is_spent():
            return None
        kind = kind_of(slice.info)
        while True:
            fitting = [a for a in self._queue if kind in a.packed and not self._shuns(a, slice)]
            same = [a for a in fitting if a.packed[kind].key == (key or slice.packed.key)]
            if key is not None:
                fitting = same
            if fitting:
                # The first of those that fit the fewest kinds of group: a large group would else
                # be busy with what a small one can run, while trials wait that only it can.
                taken = min(same or fitting, key=lambda one: len(one.packed))
                # Out of the queue and leased in the same round, without a commit in between: a
                # crash here leaves the trial waiting in the journal.
                self._queue.remove(taken)
                return taken
            # Waiting trials are for slices of another kind, or for another program.
            # Bounded, because trials that fit no slice that is free now would otherwise pile up
            # without end. For a lane (`key`) nothing beyond `_ahead` is asked: a new setting may
            # have another program, and the lane can be filled later.
            most = self._ahead if key is not None else self._ahead + len(self._slices)
            known = len(self._queue)
            if known >= most or self._is_result_due() or not self._ask():
                return None
            # Another group that has nothing to do takes it first: to validate a trial takes
            # seconds, and this group may need several until one fits it.
            newest = self._queue[-1].packed if len(self._queue) > known else {}
            if kind not in newest and self._is_awaited(newest):
                self._is_for_another = True
                return None

    def _is_awaited(self, packed: Mapping[Any, Packed]) -> bool:
        """Return whether a group that is free, and has no trial, takes a trial packed so."""
        return any(
            slice.is_free and not slice.in_training and kind_of(slice.info) in packed
            for slice in self._slices
        )

    def _is_result_due(self) -> bool:
        """Return whether the next setting depends on a trial that has trained and not ended."""
        # A place is free before the result of its last trial is in the journal. A sampler that
        # looks back, and rungs that rank whole runs, are asked once it is.
        waits = self._parts.suggester.looks_back or self._restarts
        return waits and any(slice.is_closing for slice in self._slices)

    def _take_promoted(self, slice: _Slice, key: str | None) -> ValidatedTrial | None:
        """Take a trial that was promoted, or promote the first that may run on a slice.

        One that does not fit stays paused for another slice, or another program's lanes.

        Returns:
          The trial; None where the study has no rungs, or no such trial.
        """
        if self._parts.rungs is None:
            return None
        # First those that were lost on their way: they had been leased before any of the others.
        is_spent, last = self._is_spent(), self._last_trial()
        for left in self._queue:
            if self._ledger.trials[left.trial].fence == 0 or self._shuns(left, slice):
                continue
            if is_spent and left.trial != last:
                continue
            packed = left.packed.get(kind_of(slice.info))
            if packed is not None and key in (None, packed.key):
                self._queue.remove(left)
                return left
        for trial in itertools.islice(self._promotable(), MAX_LOOKED_AT):
            if trial not in self._placed:
                graph = self._parts.directory.read_trial(trial)
                self._placed[trial] = self._place(self._ledger.trials[trial], graph).packed
            packed = self._placed[trial].get(kind_of(slice.info))
            if packed is None or key not in (None, packed.key):
                continue
            restarts = {"restarts": True} if self._restarts else {}
            self._note("promoted", **_at_rung(self._ledger.trials[trial]), **restarts)
            return ValidatedTrial(trial, None, packed=self._placed.pop(trial))
        return None

    @property
    def _ahead(self) -> int:
        """The number of trials that wait, validated, for a group that becomes free."""
        # Without looking back, the order of suggestions does not depend on results, so a longer
        # queue lets `_next` pick trials that share a program.
        return 1 if self._parts.suggester.looks_back else _AHEAD * len(self._slices)

    def _ask_ahead(self) -> bool:
        """Ask for one more setting while trials run; return whether there was one."""
        # A sampler that looks back is asked only when a group is free (see `_AHEAD`).
        if self._parts.suggester.looks_back or len(self._queue) >= self._ahead:
            return False
        return not self._is_spent() and self._ask()

    def _shuns(self, admitted: ValidatedTrial, slice: _Slice) -> bool:
        """Return whether a trial was lost on this slice, and another one can take it."""
        return self._lost_on.get(admitted.trial) == slice.info.index and any(
            other is not slice
            and not (other.excluded or other.is_away)
            and kind_of(other.info) in admitted.packed
            for other in self._slices
        )

    def _lease(self, slice: _Slice, admitted: ValidatedTrial) -> TrialWork:
        # The fence grows over all leases of the study, also over drivers (`Ledger.follow`), so two
        # leases never share one, and a late message can be matched to its lease.
        fence, trial = self._ledger.fence + 1, admitted.trial
        self._note("leased", trial=trial, slice=slice.info.index, fence=fence)
        slice.lease(trial)
        folder = self._folder(self._ledger.trials[trial])
        is_to_rung = folder != self._parts.directory.trial_path(trial)
        return TrialWork(trial, fence, project.address(folder), is_to_rung)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Back):
            slice = self._slices[event.slice]
            slice.is_away = False
            if slice.is_gone:  # a worker came after all: somebody started its job again
                slice.excluded, slice.is_gone = "", False
                self._note("noted", notice=f"device group {slice.info.name} accepts trials again")
            return
        if isinstance(event, Lost):
            slice = self._slices[event.slice]
            slice.is_away = event.is_away
            for trial in sorted(slice.running):
                self._lose(trial, event)
            # Trials are put back before the group is excluded: `_exclude` may stop the study, and
            # they must be waiting in the journal by then.
            if event.is_gone:
                # Not where it was excluded for faults of its machine: a worker that comes later
                # (`Back`) must not lift that.
                slice.is_gone = slice.is_gone or not slice.excluded
                self._exclude(slice, event.reason)
            return
        trial_state = self._ledger.trials[event.trial]
        if trial_state.state != "running" or event.fence != trial_state.fence:
            return  # from a worker that was given up
        if isinstance(event, Reported):
            self._report(trial_state, event)
        elif isinstance(event, TrialTrained):
            self._slices[event.slice].leave(event.trial)
        elif isinstance(event, Faulted):
            self._take_fault(trial_state, event)
        elif isinstance(event, Paused):
            self._slices[event.slice].num_faults = 0
            self._put_back(trial_state, "its worker paused it")
        else:
            # Any result shows that the machine works: only faults with nothing in between count as
            # a row.
            self._slices[event.slice].num_faults = 0
            self._finish(event)

    def _take_fault(self, trial: Trial, event: Faulted) -> None:
        """A fault of the machine: queue the trial again, and exclude a slice that has had two."""
        slice, number = self._slices[event.slice], trial.number
        self._put_back(trial, event.reason)
        # Another group should take the trial next, where there is one (`_shuns`): the fault may be
        # of this machine only.
        self._lost_on[number] = event.slice
        self._faults[number] += 1
        if self._faults[number] >= MAX_TRIAL_FAULTS:
            self._held[number] = event.reason
        elif trial.state == "waiting":
            self._queue_left(number)
        # Lanes of one program, and trials that waited in the same worker, meet the same fault: only
        # a lease that is newer than the last counted fault counts as another one in a row.
        if event.fence <= slice.fault_fence:
            return
        slice.fault_fence = self._ledger.fence
        slice.num_faults += 1
        slice.rests_until = time.monotonic() + REST_SECONDS
        if slice.num_faults >= MAX_FAULTS:
            self._exclude(slice, event.reason)

    def _exclude(self, slice: _Slice, reason: str) -> None:
        if not slice.excluded:
            slice.excluded = reason
            what = f"device group {slice.info.name} accepts no more trials"
            self._note("noted", notice=f"{what}: {reason}")
        if all(other.excluded for other in self._slices):
            self._stop("place", f"no device group is left: {reason}")

    def _queue_left(self, trial: int) -> None:
        """Put a trial that ran before in front of the queue."""
        graph = self._parts.directory.read_trial(trial)
        # Placed again, because the group that it ran on may be excluded by now, and a resumed study
        # may have other groups.
        placed = self._place(self._ledger.trials[trial], graph)
        if placed.reason:
            self._end(trial, "infeasible", placed.reason)
        else:
            # In front: it has checkpoints and the others do not, and its setting holds back a
            # sampler that waits for results.
            self._queue.appendleft(placed)

    def _report(self, trial: Trial, event: Reported) -> None:
        objective = self._study.objectives[0]
        raw, pruning = reported(objective, event.metrics), self._parts.pruning
        verdict: Verdict = "continue"
        if raw is not None:
            self._note("reported", trial=trial.number, step=event.step, value=raw)
            # Trials are compared by the value that the objective would have if they ended now (best
            # so far, or mean of the last ones), and not by the raw metric.
            value = reduced(objective, trial.series or {})
            if value is not None and pruning is not None:
                is_good = pruning.report(trial.number, event.step, value)
                verdict = "continue" if is_good else "prune"
            if value is not None and self._parts.rungs is not None and not self._restarts:
                verdict = self._judge_at_rung(trial, event, value, self._parts.rungs)
        if self._asks:
            # Answered in any case where somebody judges, also without the metric: the worker blocks
            # until it has an answer (`TrialWatcher.evaluated`).
            self._verdicts.append((event.slice, trial.number, event.fence, verdict))

    def _judge_at_rung(self, trial: Trial, event: Reported, value: float, rungs: Rungs) -> Verdict:
        rung = reached_rung(rungs.scheduler, event.step, event.fraction)
        # A trial that was promoted may resume from before its rung, and reports it once more.
        if rung <= trial.rung:
            return "continue"
        spent = trial.device_seconds + self._slices[event.slice].spent_by(trial.number)
        measured = {"fraction": round(event.fraction, 6), "spent": round(spent, 6)}
        at_rung = {"trial": trial.number, "step": event.step, "rung": rung, "value": value}
        self._note("reached", **at_rung, **measured)
        self._parts.suggester.show_rungs(trial.setting, trial.rung_values or {})
        if (last := self._last_trial()) is not None:
            continues = trial.number == last
        else:
            is_left = not self._limits.is_used_up(sum(slice.spent() for slice in self._slices))
            continues = is_left and rungs.promotes_at_once(trial.number, rung)
        if not continues:
            return "pause"
        self._note("promoted", **_at_rung(trial))
        return "continue"

    def _send_verdicts(self) -> None:
        # Committed before they are sent: a trial saves after its answer, and one that resumes from
        # that step does not report it again. What it had reached must be in the journal by then.
        if self._verdicts:
            self._parts.journal.publish()
        for verdict in self._verdicts:
            self._engine.answer(*verdict)
        self._verdicts.clear()

    def _lose(self, trial: int, lost: Lost) -> None:
        """A worker died: take its result if it wrote one, else queue the trial again."""
        state = self._ledger.trials[trial]
        # The result first: a worker that was killed after it wrote the file has lost nothing. Nor
        # has a trial that was to pause.
        if self._take_result(state):
            return
        if state.is_to_pause:
            return self._pause(state)
        if lost.counts and state.losses >= self._study.budget.retries:
            reason = f"its worker died {state.losses + 1} times; the last time: {lost.reason}"
            self._end(trial, "failed", reason, fault=KILLED)
            return
        seconds = round(self._free(trial), 6)
        self._note(
            "lost", trial=trial, reason=lost.reason, counts=lost.counts, device_seconds=seconds
        )
        self._lost_on[trial] = lost.slice
        self._queue_left(trial)

    def _end_slow_trials(self) -> None:
        limit = self._study.budget.trial_seconds
        # By the monotonic clock since the lease, so that time in the queue, and before a restart,
        # does not count.
        for slice in self._slices if limit is not None else ():
            for trial in sorted(slice.in_training):
                state = self._ledger.trials[trial]
                if time.monotonic() - slice.leased[trial] >= (limit or math.inf):
                    # The trial ends here and now in the journal; what its worker still sends has a
                    # fence of a trial that is not running and is dropped by `_handle`.
                    self._engine.stop(slice.info.index, trial, state.fence)
                    reason = f"took longer than {limit:g} seconds (budget.trial_seconds)"
                    self._end(trial, "failed", reason)

    def _release(self) -> None:
        """After the engine is closed: take the results that are there, put all else back."""
        for slice in self._slices:
            for trial in sorted(slice.running):
                state = self._ledger.trials[trial]
                if not self._take_result(state):
                    self._put_back(state, "the study was stopped")

    def _watch_source(self) -> None:
        """Note each package that was edited since the study began, every `WATCH_SECONDS`."""
        if time.monotonic() - self._watched < WATCH_SECONDS:
            return
        self._watched = time.monotonic()
        self.note_edits()

    def note_edits(self) -> None:
        """Note the packages that were edited since the study began, each once."""
        for name in directories.edited_packages(self._parts.directory.path):
            notice = (
                f"the source of {name} was edited since the study began: "
                "its trials keep running the source that it began with"
            )
            if notice not in self._ledger.notices:
                self._note("noted", notice=notice)

    def note_cut_grid(self) -> None:
        """Note that the budget cuts the grid off, once."""
        if (notice := grid_notice(self._study)) and notice not in self._ledger.notices:
            self._note("noted", notice=notice)


def _close(gate: Any) -> None:
    if (close := getattr(gate, "close", None)) is not None:
        close()


def _at_rung(trial: Trial) -> dict[str, Any]:
    """Return the fields of a line about a trial at its highest rung."""
    values = trial.rung_values or {}
    at_rung = {"step": trial.rung_step, "rung": trial.rung, "value": values[trial.rung]}
    return {"trial": trial.number, **at_rung}


def grid_notice(study: Study) -> str:
    """Return that the budget cuts a study's grid off; nothing where it does not."""
    trials, resolution = study.budget.num_trials, grid_resolution(study.sampler)
    if trials is None or resolution is None:
        return ""
    settings = 1 + num_points(study.space, resolution)  # the baseline is one more
    left = settings - max(1, trials // study.seeds)
    if left <= 0:
        return ""
    needed = f"the grid needs {settings * study.seeds} trials with the baseline"
    return f"{needed}, and budget.trials={trials} leaves {left} of its settings out"
