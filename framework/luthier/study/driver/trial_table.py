"""The trial table: the state of every trial and setting, folded from the journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

State = Literal["waiting", "running", "paused", "complete", "pruned", "infeasible", "failed"]
ENDED = ("complete", "pruned", "infeasible", "failed")


@dataclasses.dataclass(slots=True)
class Trial:
    """One trial.

    Args:
      number: Its number; it keeps it however often it is restarted.
      setting: The number of its setting; several trials of one setting differ in the seed.
      state: Its state.
      values: Its objectives' values, where it has them.
      reason: Why it is not complete, or whose result it has.
      is_admitted: Whether its graph was made, and may run.
      copy_of: The trial whose graph is the same; None where it has its own.
      fence: The last lease.
      slice: Where it runs, or ran last.
      losses: How often its worker died.
      lost: Why its worker died the last time, and where the stacks of it are.
      started: When its last lease began, in seconds since 1970.
      series: Reports so far: the metric of the first objective by step, as it came and not reduced
        to the objective's value; only until it ends.
      fault: The kind of fault of a trial that failed, as `luthier.faults.Fault` calls it.
      device_seconds: Devices times seconds that it had them, over all of its leases.
      rung: The highest rung that it has reached; 0 where it has reached none.
      promoted: The highest rung from which it was promoted.
      rung_values: The objective's value by rung, at the rungs that it has reached.
      rung_step: Optimizer steps at which it reached its highest rung.
      violations: Amounts by which it violates the study's constraints (`Constraint.violation`).
    """

    number: int
    setting: int
    state: State = "waiting"
    values: tuple[float, ...] | None = None
    reason: str = ""
    is_admitted: bool = False
    copy_of: int | None = None
    fence: int = 0
    slice: int = -1
    losses: int = 0
    lost: str = ""
    started: float = 0.0
    series: dict[int, float] | None = None
    fault: str = ""
    device_seconds: float = 0.0
    rung: int = 0
    promoted: int = 0
    rung_values: dict[int, float] | None = None
    rung_step: int = 0
    violations: tuple[float, ...] = ()

    @property
    def is_to_pause(self) -> bool:
        """Whether it has reached a rung from which it was not promoted."""
        return self.rung > self.promoted

    @property
    def is_feasible(self) -> bool:
        """Whether it violates no constraint of the study."""
        return all(amount <= 0 for amount in self.violations)


@dataclasses.dataclass(slots=True)
class ParameterSet:
    """One suggestion of the sampler.

    Args:
      number: Its number; 0 is the baseline.
      trials: Its trials.
      words: Its overrides.
      is_reported: Whether its outcome was reported to the sampler.
    """

    number: int
    trials: tuple[int, ...]
    words: tuple[str, ...] = ()
    is_reported: bool = False


class Ledger:
    """All trials of a study, kept in step with its journal.

    A trial that ended takes some hundred bytes here; all else about it is in its directory.
    """

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.settings: list[ParameterSet] = []
        self.marks: dict[str, int] = {}  # fingerprint -> the first trial that has it
        self.fence = 0
        self.device_seconds = 0.0
        self.notices: list[str] = []
        self.is_over = False
        self.stopped = ""  # why the last driver gave up; empty where it did not
        self.stopped_by = ""  # `failures` of trials, or faults of the `place`
        self.num_devices: dict[int, int] = {}  # of each slice, when the study was opened last
        self.last_at = 0.0  # the time of the last line, in seconds since 1970
        self.reported: list[int] = []  # settings in the order in which the sampler learned of them
        self.driven_seconds = 0.0  # of all drivers, each from its first line to its last
        self._driven_until: float | None = None  # the time of the driver's last line so far
        # Of pruned trials whose setting is not reported yet, by trial.
        self._reports: dict[int, dict[int, float]] = {}

    def follow(self, line: Mapping[str, Any]) -> None:
        """Apply one line of the journal.

        Args:
          line: What was read, or is written.
        """
        kind = line["kind"]
        # Fences must grow over all drivers of the study, hence the maximum over the whole journal.
        self.fence = max(self.fence, line.get("fence", 0))
        self.last_at = max(self.last_at, line.get("at", 0.0))
        self._count_driven(kind, line.get("at", 0.0))
        if kind == "asked":
            # Numbers of trials and settings are their places in these lists: lines `asked` come in
            # order, which `journal._Consistency` checks.
            trials = tuple(line["trials"])
            number = line["setting"]
            self.settings.append(ParameterSet(number, trials, tuple(line["words"])))
            self.trials += [Trial(trial, number) for trial in trials]
        elif kind == "told":
            setting = self.settings[line["setting"]]
            setting.is_reported = True
            self.reported.append(setting.number)
            for trial in setting.trials:
                self._reports.pop(trial, None)
        elif kind == "opened":
            # A driver that is killed leaves no line `closed`: from its line `opened` on, the study
            # counts as not over.
            self.is_over, self.stopped, self.stopped_by = False, "", ""
            self.num_devices = {s["index"]: s["num_devices"] for s in line.get("slices", ())}
        elif kind == "closed":
            self.is_over, self.stopped = line["over"], line.get("stopped", "")
            # Older lines do not say by what.
            self.stopped_by = line.get("stopped_by", "failures" if self.stopped else "")
        elif kind == "noted":
            self.notices.append(line["notice"])
        # Lines of unknown kinds are passed over: an older luthier can show a study of a newer one.
        elif "trial" in line:
            self._follow_trial(self.trials[line["trial"]], line)

    def _count_driven(self, kind: str, at: float) -> None:
        """Add the time since the driver's line before; a driver that was killed has no `closed`."""
        # Lines of these kinds are also written before `opened`, long after the last driver.
        if kind in ("noted", "retried", "reopened"):
            return
        if kind != "opened" and self._driven_until is not None:
            self.driven_seconds += max(0.0, at - self._driven_until)
        self._driven_until = None if kind == "closed" else at

    def _follow_trial(self, trial: Trial, line: Mapping[str, Any]) -> None:
        kind = line["kind"]
        if kind == "admitted":
            trial.is_admitted, trial.copy_of = True, line.get("copy_of")
            if "mark" in line:
                # The first trial of a fingerprint keeps it.
                self.marks.setdefault(line["mark"], trial.number)
        elif kind == "leased":
            trial.state, trial.slice = "running", line["slice"]
            trial.fence, trial.started = line["fence"], line["at"]
        elif kind == "reported":
            trial.series = {**(trial.series or {}), line["step"]: line["value"]}
        elif kind == "reached":
            trial.rung, trial.rung_step = line["rung"], line["step"]
            trial.rung_values = {**(trial.rung_values or {}), trial.rung: line["value"]}
        elif kind == "paused":
            trial.state = "paused"
            self._spend(trial, line)
        elif kind == "promoted":
            trial.promoted = line["rung"]
            if line.get("restarts"):
                trial.series = None  # of its run to the rung; the next one starts at step 0
            # One that was promoted when it reached the rung keeps its place, and runs.
            if trial.state == "paused":
                trial.state = "waiting"
        elif kind == "lost":
            # The reports stay: the trial resumes from its checkpoint, after them.
            trial.state = "waiting"
            # Losses that count are deaths that the trial may have caused; a preempted machine is
            # none.
            if line["counts"]:
                trial.losses, trial.lost = trial.losses + 1, line.get("reason", "")
            self._spend(trial, line)
        elif kind == "ended":
            trial.state, trial.reason = line["outcome"], line["reason"]
            trial.values = None if line["values"] is None else tuple(line["values"])
            trial.fault = line.get("fault", "")
            trial.violations = tuple(line.get("violations", ()))
            self._spend(trial, line)
            # Reports matter only while a trial runs; ten thousand trials with a hundred reports
            # each would fill the driver's memory.
            trial.series = None
            if trial.state == "pruned":
                # By rung where there are rungs: trials of different lengths, or batch sizes, are
                # compared there and not at the same step.
                self._reports[trial.number] = trial.rung_values or dict(line.get("series", ()))
        # As if it had only been admitted: its graph, the trial whose result it copies, and the
        # device time that it had stay. The sampler keeps the failure that was reported
        # (`Suggester.retry`).
        elif kind == "retried":
            trial.state, trial.reason, trial.fault = "waiting", "", ""
            trial.values, trial.violations, trial.losses, trial.lost = None, (), 0, ""
            trial.rung, trial.promoted, trial.rung_values, trial.rung_step = 0, 0, None, 0
            self.settings[trial.setting].is_reported = False
        # The study was over, and has a larger budget now: a trial that stayed at its rung may be
        # promoted again. A copy waits for the end of the trial whose result it has.
        elif kind == "reopened":
            trial.state = "paused" if trial.copy_of is None else "waiting"
            trial.reason, trial.values = "", None
            self.settings[trial.setting].is_reported = False

    def _spend(self, trial: Trial, line: Mapping[str, Any]) -> None:
        seconds = line.get("device_seconds", 0.0)
        trial.device_seconds += seconds
        self.device_seconds += seconds

    def count(self, *states: str) -> int:
        """Return how many trials are in one of these states."""
        return sum(trial.state in states for trial in self.trials)

    def outcome_of(self, setting: ParameterSet) -> tuple[State, tuple[float, ...] | None] | None:
        """Return the outcome of a setting; None while one of its trials has not ended.

        It is complete where one of its trials is, and its values are their means; else it is what
        the first trial that ran came to.
        """
        trials = [self.trials[number] for number in setting.trials]
        if any(trial.state not in ENDED for trial in trials):
            return None
        values = [trial.values for trial in trials if trial.state == "complete" and trial.values]
        if values:
            return "complete", tuple(_mean(column) for column in zip(*values, strict=True))
        # A setting of which one seed was pruned counts as pruned although another failed: pruned is
        # a result, and samplers ignore failures.
        for state in ("pruned", "failed", "infeasible"):
            for trial in trials:
                if trial.state == state:
                    return trial.state, trial.values
        return "failed", None

    def violations_of(self, setting: ParameterSet) -> tuple[float, ...]:
        """Return the amounts by which a setting violates the constraints: means over its seeds.

        Args:
          setting: One that is complete; others have none.
        """
        trials = [self.trials[number] for number in setting.trials]
        found = [t.violations for t in trials if t.state == "complete" and t.violations]
        return tuple(_mean(column) for column in zip(*found, strict=True))

    def reports_of(self, setting: ParameterSet) -> Mapping[int, float]:
        """Return the reports that a sampler gets with a setting, before the line that it has them.

        Returns:
          Value by step; empty where the setting did not come to be pruned.
        """
        # Of several seeds those of the first pruned one, whose values `outcome_of` returns. By
        # number, and not by who ended last: a resumed driver must report what this one did.
        for number in setting.trials:
            if self.trials[number].state == "pruned":
                return self._reports.get(number, {})
        return {}


def _mean(values: Sequence[float]) -> float:
    return values[0] if len(values) == 1 else sum(values) / len(values)
