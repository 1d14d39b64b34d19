"""The loop of a study: ask, edit the graph, admit, lease a slice, follow the reports, tell."""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from luthier.sweep import results
from luthier.sweep.driver import snapshot
from luthier.sweep.driver.admission import Admission, Admitted, kind_of
from luthier.sweep.driver.directory import StudyDirectory
from luthier.sweep.driver.journal import Journal
from luthier.sweep.driver.ledger import ENDED, Ledger, Trial
from luthier.sweep.driver.past import Asked
from luthier.sweep.driver.pruning import Pruning
from luthier.sweep.driver.suggestions import Suggester
from luthier.sweep.protocol import (
    Back,
    Ended,
    Engine,
    Event,
    Lost,
    Reported,
    SliceInfo,
    TrialWork,
    Work,
)
from luthier.sweep.space.space import told
from luthier.sweep.study import Packed, Study

WATCH_SECONDS = 10.0
_AHEAD = 4  # settings asked ahead for each slice, where the sampler does not look back


class View(Protocol):
    """Shows people how a study stands."""

    def update(self, ledger: Ledger, slices: Sequence[SliceInfo]) -> None:
        """Show how it stands now; called often."""


@dataclasses.dataclass
class _Slice:
    """A slice, and what runs on it.

    Args:
      info: Which one.
      running: The trials on it.
      packed: How the work on it runs, or the last work ran.
      is_away: Whether it has no worker as yet.
    """

    info: SliceInfo
    running: set[int] = dataclasses.field(default_factory=set)
    packed: Packed = Packed()
    is_away: bool = False


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a driver works with.

    Args:
      study: The study.
      directory: Its folder, locked.
      journal: Its journal.
      ledger: What the journal says.
      admission: Decides on trials.
      suggester: Suggests settings.
      pruning: Ends trials early; None ends none.
      view: Shows how it stands.
    """

    study: Study
    directory: StudyDirectory
    journal: Journal
    ledger: Ledger
    admission: Admission
    suggester: Suggester
    pruning: Pruning | None
    view: View


class _Trials:
    """The trials of a study: asks for them, admits them, ends them and tells what came of them.

    Args:
      parts: What it works with.
      engine: Runs the trials.
      waiting: Settings whose trials have not all ended, with their assignments.
      baseline: The baseline's assignment; None where the space does not hold it.
    """

    def __init__(
        self,
        parts: Parts,
        engine: Engine,
        waiting: Mapping[int, Asked],
        baseline: Mapping[str, Any] | None,
    ):
        self._parts, self._engine, self._baseline = parts, engine, baseline
        self._study, self._ledger = parts.study, parts.ledger
        self._waiting = dict(waiting)
        self._slices: list[_Slice] = []
        self._queue: collections.deque[Admitted] = collections.deque()
        self._copies: dict[int, list[int]] = {}
        self._is_exhausted = False
        self._started = self._watched = time.monotonic()
        self.stop_asked = False

    def _note(self, kind: str, **fields: Any) -> None:
        """Write a line of the journal, and follow it."""
        self._ledger.follow(self._parts.journal.add(kind, **fields))

    def _queue_again(self) -> None:
        """Go on where the journal ends: tell what was not told, queue what has not ended."""
        for left in [t for t in self._ledger.trials if t.state == "running"]:
            if not self._take_result(left):
                self._put_back(left, "the driver died")
        for number, asked in sorted(self._waiting.items()):
            self._tell(number, {})
            for repeat, trial in enumerate(self._ledger.settings[number].trials):
                state = self._ledger.trials[trial]
                if state.state in ENDED:
                    continue
                graph = self._parts.directory.read_trial(trial) if state.is_admitted else None
                if state.copy_of is not None:
                    self._copy(trial, state.copy_of)
                elif graph is not None:
                    self._queue_placed(self._parts.admission.place(trial, graph))
                else:
                    self._admit(trial, asked, repeat)
        self._waiting.clear()

    def _ask(self) -> bool:
        """Ask for one more setting; return whether there is one."""
        number, known = len(self._ledger.settings), len(self._ledger.trials)
        budget = self._study.budget
        if budget.trials is not None and known and known + self._study.seeds > budget.trials:
            return False
        if self._is_spent() or self._is_exhausted or self.is_late or self.stop_asked:
            return False
        if number == 0:
            asked: Asked | None = Asked(self._baseline or {})
        else:
            asked = self._parts.suggester.ask(number)
        if asked is None:
            self._is_exhausted = True
            return False
        if number == 0 and self._baseline is not None:
            self._parts.suggester.restore(0, asked)
        # The baseline is the base itself, whatever it would be in the space.
        assignment = asked.assignment if number else {}
        words = [told(o) for o in self._study.space.overrides(assignment)]
        self._note(
            "asked",
            setting=number,
            trials=list(range(known, known + self._study.seeds)),
            assignment=dict(asked.assignment),
            words=words,
            **({"notes": dict(asked.notes)} if asked.notes else {}),
        )
        for repeat, trial in enumerate(self._ledger.settings[number].trials):
            self._admit(trial, asked, repeat)
        return True

    def _admit(self, trial: int, asked: Asked, repeat: int) -> None:
        setting = self._ledger.settings[self._ledger.trials[trial].setting]
        assignment = asked.assignment if setting.number else {}
        admitted = self._parts.admission.admit(trial, assignment, repeat)
        if admitted.graph is not None:
            self._parts.directory.write_trial(trial, admitted.graph, setting.words)
        if admitted.copy_of is not None:
            self._note("admitted", trial=trial, copy_of=admitted.copy_of)
            self._copy(trial, admitted.copy_of)
            return
        if admitted.mark:
            self._note("admitted", trial=trial, mark=admitted.mark)
        self._queue_placed(admitted)

    def _queue_placed(self, admitted: Admitted) -> None:
        if admitted.reason:
            self._end(admitted.trial, "infeasible", admitted.reason)
        else:
            self._queue.append(admitted)

    def _copy(self, trial: int, first: int) -> None:
        self._copies.setdefault(first, []).append(trial)
        self._copy_if_ended(first)

    def _is_spent(self) -> bool:
        hours = self._study.budget.device_hours
        return hours is not None and self._ledger.device_seconds >= hours * 3600

    def _finish(self, event: Ended) -> None:
        """Take in that a trial ended, from its worker or from its `result.json`."""
        outcome, reason = event.outcome, event.reason
        found = [objective.value(event.result) for objective in self._study.objectives]
        values = [value for value in found if value is not None]
        if outcome == "complete" and len(values) < len(found):
            named = zip(self._study.objectives, found, strict=True)
            missing = [objective.name for objective, value in named if value is None]
            outcome, reason = "failed", f"its result does not tell {', '.join(missing)}"
        seconds = float(event.result.get("facts", {}).get("device_seconds") or 0.0)
        is_judged = len(values) == len(found) and outcome in ("complete", "pruned")
        self._end(event.trial, outcome, reason, values if is_judged else None, seconds)

    def _end(
        self,
        trial: int,
        outcome: str,
        reason: str,
        values: Sequence[float] | None = None,
        device_seconds: float = 0.0,
    ) -> None:
        """A trial is over: write it down, and tell the sampler where its setting is over too."""
        self._free(trial)
        state = self._ledger.trials[trial]
        series = state.series or {}
        self._note(
            "ended",
            trial=trial,
            outcome=outcome,
            reason=reason,
            values=None if values is None else list(values),
            device_seconds=device_seconds,
            **({"series": sorted(series.items())} if outcome == "pruned" else {}),
        )
        if self._parts.pruning is not None and state.copy_of is None:
            self._parts.pruning.end(trial, outcome, values[0] if values else None, series)
        self._tell(state.setting, series)
        self._copy_if_ended(trial)

    def _tell(self, number: int, series: Mapping[int, float]) -> None:
        setting = self._ledger.settings[number]
        came = self._ledger.outcome_of(setting)
        if came is None or setting.is_told:
            return
        self._note("told", setting=number)
        self._parts.suggester.tell(number, *came, series)

    def _copy_if_ended(self, first: int) -> None:
        """End the trials whose graph is that of a trial that ended, as that one did."""
        state = self._ledger.trials[first]
        if state.state not in ENDED:
            return
        for trial in self._copies.pop(first, ()):
            reason = f"the same as trial {first}"
            if state.reason:
                reason += f": {state.reason}"
            self._end(trial, state.state, reason, state.values)

    def _free(self, trial: int) -> None:
        for slice in self._slices:
            slice.running.discard(trial)

    @property
    def is_late(self) -> bool:
        """Whether `budget.wall_seconds` are over."""
        limit = self._study.budget.wall_seconds
        return limit is not None and time.monotonic() - self._started >= limit

    def _put_back(self, trial: Trial, reason: str) -> None:
        self._note("lost", trial=trial.number, reason=reason, counts=False)

    def _take_result(self, trial: Trial) -> bool:
        """End a trial by the result that its last worker wrote; return whether there is one."""
        ended = results.read_result(self._parts.directory.trial_path(trial.number))
        if ended is None or ended.fence != trial.fence:
            return False
        self._finish(ended)
        return True


class Driver(_Trials):
    """Drives a study to its end, or until it is told to stop.

    Args:
      parts: What it works with.
      engine: Runs the trials.
      waiting: Settings whose trials have not all ended, with their assignments.
      baseline: The baseline's assignment; None where the space does not hold it.
    """

    def run(self) -> bool:
        """Run the study; return whether it is over, and not only stopped."""
        infos = self._engine.open(str(self._parts.directory.path))
        is_over = False
        try:
            self._slices = [_Slice(info) for info in infos]
            self._note("opened", slices=[dataclasses.asdict(info) for info in infos])
            self._parts.admission.open(infos)
            self._show()
            self._queue_again()
            for event in self._engine.events(0.0):
                self._handle(event)  # some slices may be away as yet
            is_over = self._work()
        finally:
            self._engine.close()
            if (close := getattr(self._study.gate, "close", None)) is not None:
                close()
            self._release()
            self._note("closed", over=is_over)
            self._parts.journal.commit()
            self._show()
        return is_over

    def _work(self) -> bool:
        while not self.stop_asked:
            self._watch_source()
            if self.is_late:
                return False
            self._fill()
            self._parts.journal.commit()
            if not any(slice.running for slice in self._slices) and not self._waits():
                return not self.stop_asked and not self.is_late
            for event in self._engine.events(1.0):
                self._handle(event)
            self._end_slow_trials()
            self._show()
        return False

    def _waits(self) -> bool:
        """Return whether there are trials for slices that are away."""
        is_away = any(slice.is_away for slice in self._slices)
        return is_away and not self._is_spent() and (bool(self._queue) or self._ask())

    def _show(self) -> None:
        self._parts.view.update(self._ledger, [slice.info for slice in self._slices])

    def _fill(self) -> None:
        """Give every free slice, and every free lane, something to do."""
        for slice in self._slices:
            if slice.is_away:
                continue
            if not slice.running:
                self._start(slice)
            while slice.running and len(slice.running) < slice.packed.num_lanes:
                more = self._next(slice, slice.packed.key)
                if more is None:
                    break
                work = self._lease(slice, more)
                self._parts.journal.commit()
                self._engine.refill(slice.info.index, work)

    def _start(self, slice: _Slice) -> None:
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
        self._parts.journal.commit()
        self._engine.start(
            slice.info.index,
            Work(
                work,
                packed.hoist,
                packed.lanes,
                asks=self._parts.pruning is not None,
                spare_lanes=packed.num_lanes - len(work),
            ),
        )

    def _next(self, slice: _Slice, key: str | None) -> Admitted | None:
        """Take a trial from the queue that may run on a slice; ask for more where there is none.

        Args:
          slice: Where it will run.
          key: The program that it must share; None takes any, the one that ran there before first.
        """
        if self._is_spent():
            return None
        ahead = 1 if self._parts.suggester.looks_back else _AHEAD * len(self._slices)
        while len(self._queue) < ahead and self._ask():
            pass
        kind = kind_of(slice.info)
        while True:
            fitting = [a for a in self._queue if kind in a.packed]
            same = [a for a in fitting if a.packed[kind].key == (key or slice.packed.key)]
            if key is not None:
                fitting = same
            if fitting:
                taken = (same or fitting)[0]
                self._queue.remove(taken)
                return taken
            # What waits is for slices of another kind, or for another program.
            is_full = len(self._queue) >= ahead + len(self._slices)
            if key is not None or is_full or not self._ask():
                return None

    def _lease(self, slice: _Slice, admitted: Admitted) -> TrialWork:
        fence, trial = self._ledger.fence + 1, admitted.trial
        self._note("leased", trial=trial, slice=slice.info.index, fence=fence)
        slice.running.add(trial)
        return TrialWork(trial, fence, str(self._parts.directory.trial_path(trial)))

    def _handle(self, event: Event) -> None:
        if isinstance(event, Back):
            self._slices[event.slice].is_away = False
            return
        if isinstance(event, Lost):
            slice = self._slices[event.slice]
            slice.is_away = event.is_away
            for trial in sorted(slice.running):
                self._lose(trial, event)
            return
        trial_state = self._ledger.trials[event.trial]
        if trial_state.state != "running" or event.fence != trial_state.fence:
            return  # from a worker that was given up
        if isinstance(event, Reported):
            self._report(trial_state, event)
        else:
            self._finish(event)

    def _report(self, trial: Trial, event: Reported) -> None:
        objective = self._study.objectives[0]
        raw, pruning, go_on = event.metrics.get(objective.name), self._parts.pruning, True
        if raw is not None:
            self._note("reported", trial=trial.number, step=event.step, value=float(raw))
            value = reduced(objective, trial.series or {})
            if value is not None and pruning is not None:
                go_on = pruning.report(trial.number, event.step, value)
        if pruning is not None:
            self._engine.answer(event.slice, trial.number, event.fence, go_on)

    def _lose(self, trial: int, lost: Lost) -> None:
        """A worker died: take its result if it wrote one, else queue the trial again."""
        state = self._ledger.trials[trial]
        if self._take_result(state):
            return
        self._free(trial)
        if lost.counts and state.losses >= self._study.budget.retries:
            times = f"its worker died {state.losses + 1} times"
            self._end(trial, "failed", f"{times}; the last time: {lost.reason}")
            return
        self._note("lost", trial=trial, reason=lost.reason, counts=lost.counts)
        graph = self._parts.directory.read_trial(trial)
        placed = self._parts.admission.place(trial, graph)
        self._queue.appendleft(placed)

    def _end_slow_trials(self) -> None:
        limit = self._study.budget.trial_seconds
        for slice in self._slices if limit is not None else ():
            for trial in sorted(slice.running):
                state = self._ledger.trials[trial]
                if time.time() - state.started >= (limit or math.inf):
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
            slice.running.clear()

    def _watch_source(self) -> None:
        """Tell once about each package that was edited since the study began."""
        if time.monotonic() - self._watched < WATCH_SECONDS:
            return
        self._watched = time.monotonic()
        self.tell_edits()

    def tell_edits(self) -> None:
        """Note the packages that were edited since the study began, each once."""
        for name in snapshot.edited(self._parts.directory.path):
            notice = (
                f"the source of {name} was edited since the study began: "
                "its trials go on with the source that it began with"
            )
            if notice not in self._ledger.notices:
                self._note("noted", notice=notice)


def reduced(objective: Any, series: Mapping[int, float]) -> float | None:
    """Return the value of an objective after the reports so far."""
    return objective.at_report(
        [(step, {objective.name: value}) for step, value in sorted(series.items())]
    )
