"""A study as text: its status, its trials, and a live table while it runs."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from luthier import project
from luthier.errors import RunError
from luthier.records import object_storage
from luthier.storage import Holder
from luthier.study.driver.journal import NAME as JOURNAL
from luthier.study.driver.journal import Contents, load_journal
from luthier.study.driver.mirror import read_facts
from luthier.study.driver.trial_table import ENDED, Ledger, Trial
from luthier.study.protocol import TRACEBACK, SliceInfo, read_text
from luthier.terminal import Printable, cell, sparkline

if TYPE_CHECKING:
    from luthier.study.study import Study

# The status of a study, read from its folder; nothing that it names is imported.


@dataclasses.dataclass(frozen=True)
class StudyStatus:
    """The status of a study.

    Args:
      name: Its name.
      metrics: The names of its objectives.
      directions: `lower` or `higher` for each of them.
      num_trials: Trials of its budget; None for no limit.
      ledger: Its trials.
      driver: The process that drives it now; None where there is none.
      problems: What is wrong with its journal, a line each; what is whole was read.
      num_rungs: Rungs of its scheduler, the full length included; None where it has none.
    """

    name: str
    metrics: Sequence[str]
    directions: Sequence[str]
    num_trials: int | None
    ledger: Ledger
    driver: Holder | None = None
    problems: Sequence[str] = ()
    num_rungs: int | None = None

    def state(self, trial: Trial) -> str:
        """Return the state of a trial as text, with the rung where it waits."""
        return f"paused {trial.rung}/{self.num_rungs}" if trial.state == "paused" else trial.state

    def words(self, trial: Trial) -> str:
        """Return the overrides of a trial as text."""
        if trial.setting == 0:
            return "(the baseline)"
        return " ".join(self.ledger.settings[trial.setting].words) or "(nothing)"

    def best(self) -> list[Trial]:
        """Return the best complete trial; with several objectives, those that none beats.

        Only trials count that violate no constraint of the study, and whose values are numbers: not
        one that diverged, or never reached the target of a `StepsTo`.
        """
        complete = [t for t in self.ledger.trials if t.state == "complete" and t.copy_of is None]
        judged = [trial for trial in complete if trial.values and trial.is_feasible]
        ranked = [t for t in judged if all(map(math.isfinite, t.values or ()))]
        # All objectives are turned into ones to be minimized.
        signs = [1.0 if direction == "lower" else -1.0 for direction in self.directions]
        keys = {
            t.number: tuple(s * v for s, v in zip(signs, t.values or (), strict=True))
            for t in ranked
        }
        if len(signs) == 1:
            return sorted(ranked, key=lambda t: (keys[t.number], t.number))[:1]
        front: list[Trial] = []
        # In lexicographic order a trial can only be beaten by one before it, so that comparing with
        # the front so far is enough.
        for trial in sorted(ranked, key=lambda t: (keys[t.number], t.number)):
            key = keys[trial.number]
            if not any(_beats(keys[other.number], key) for other in front):
                front.append(trial)
        return front

    def why_no_best(self) -> str:
        """Return why `best` has no trial."""
        complete = [trial for trial in self.ledger.trials if trial.state == "complete"]
        if not complete:
            return "no trial is complete"
        if not any(trial.is_feasible for trial in complete):
            return "no complete trial meets the constraints"
        for index, metric in enumerate(self.metrics):
            values = [t.values[index] for t in complete if t.values and t.is_feasible]
            if not any(map(math.isfinite, values)):
                target = _TO_TARGET.fullmatch(metric)
                end = f"reached {target[1]}" if target else f"has a finite {metric}"
                return f"no complete trial {end}"
        return "no complete trial has finite values of all objectives"


_TO_TARGET = re.compile(r"(?:steps|tokens|seconds)_to\((.*)\)")
"""The name of a `StepsTo` objective."""


def value_text(metric: str, value: float) -> str:
    """Return the value of an objective as text.

    Args:
      metric: The name of the objective.
      value: Its value; infinite for a `StepsTo` whose target was never reached.
    """
    if math.isinf(value) and _TO_TARGET.fullmatch(metric):
        return "not reached"
    return f"{value:.6g}"


def values_text(standing: StudyStatus, trial: Trial) -> str:
    """Return the values of a trial's objectives as text, with their names.

    Args:
      standing: The status of the study.
      trial: The trial; of one without values, the text is empty.
    """
    return ", ".join(
        f"{name} {value_text(name, value)}"
        for name, value in zip(standing.metrics, trial.values or (), strict=False)
    )


def _beats(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


def read_status(directory: pathlib.Path, contents: Contents | None = None) -> StudyStatus:
    """Read the status of the study in a folder.

    Args:
      directory: The study's folder.
      contents: What its journal holds; read from the folder where it is None.

    Raises:
      RunError: Its journal cannot be read.
      VersionError: It was written by a later luthier.
    """
    facts = read_facts(directory)
    ledger = Ledger()
    if contents is None:
        contents = load_journal(directory / JOURNAL)
    for line in contents.lines:
        ledger.follow(line)
    return StudyStatus(
        facts.get("name", directory.name),
        facts.get("metrics", ()),
        facts.get("directions", ()),
        facts.get("trials"),
        ledger,
        object_storage.writer(directory),
        contents.problems,
        facts.get("rungs"),
    )


# A study as lines of text.


def lines_of(standing: StudyStatus, most: int | None = 20) -> Iterator[str]:
    """Yield a study as lines of text: its status, its trials, the best of them.

    Args:
      standing: Its status.
      most: Most trials that are listed, the newest; None for all.
    """
    yield headline(standing)
    if standing.driver is not None:
        yield cell(f"driven by {standing.driver}")
    yield from map(cell, standing.ledger.notices)
    if standing.ledger.stopped:
        yield cell(f"stopped: {standing.ledger.stopped}")
    # The newest trials are what somebody who looks at a running study wants; the best are listed
    # below in any case.
    trials = standing.ledger.trials
    listed = trials if most is None else trials[-most:]
    if len(listed) < len(trials):
        yield f"the newest {len(listed)} of {len(trials)} trials (--all lists them all):"
    yield from _table(
        ["trial", "state", *standing.metrics, "overrides"],
        [
            [
                str(t.number),
                standing.state(t),
                *_values(standing, t),
                _overrides_and_reason(standing, t),
            ]
            for t in listed
        ],
    )
    yield from best_lines(standing)


def trial_lines(standing: StudyStatus, trial: Trial, directory: pathlib.Path) -> Iterator[str]:
    """Yield all that is known of one trial: outcome, overrides, times, and its traceback.

    Args:
      standing: The study.
      trial: The trial.
      directory: The study's folder.
    """
    folder = directory / "trials" / f"{trial.number:04d}"
    yield ended_line(standing, trial)
    if trial.device_seconds:
        yield f"device time: {trial.device_seconds:.3g} s"
    if trial.losses:
        times = "once" if trial.losses == 1 else f"{trial.losses} times"
        yield cell(f"its worker died {times} before; the last time: {trial.lost}")
    yield f"folder: {project.address(folder)}"
    if trial.state == "failed":
        try:
            text = read_text(folder, TRACEBACK)
        except RunError as error:  # cut off by a full disk, or the store is away
            text = f"{error}"
        yield from (text or "").splitlines()


def best_lines(standing: StudyStatus) -> Iterator[str]:
    """Yield the best trials, or why none of the complete ones is; nothing where none is complete.

    Args:
      standing: The status of the study.
    """
    best = standing.best()
    if not best and standing.ledger.count("complete"):
        yield cell(standing.why_no_best())
    if best:
        yield "best:" if len(best) == 1 else f"{len(best)} trials that no other beats:"
        for trial in best[:12]:
            yield cell(
                f"  trial {trial.number}: {values_text(standing, trial)}; {standing.words(trial)}"
            )


def headline(standing: StudyStatus) -> str:
    """Return the status of a study in one line.

    Args:
      standing: The status of the study.
    """
    ledger = standing.ledger
    ended = ledger.count(*ENDED)
    limit = "" if standing.num_trials is None else f" of {standing.num_trials}"
    parts = [f"{ended}{limit} trials ended"]
    for state in ("running", "waiting", "paused", "pruned", "infeasible", "failed"):
        if count := ledger.count(state):
            parts.append(f"{count} {state}")
    if copies := sum(trial.copy_of is not None for trial in ledger.trials):
        parts.append(f"{copies} {'copies' if copies > 1 else 'copy'} of earlier ones")
    if ledger.device_seconds:
        parts.append(f"{ledger.device_seconds / 3600:.3g} device hours")
    return cell(f"{standing.name}: {', '.join(parts)}")


def ended_line(standing: StudyStatus, trial: Trial) -> str:
    """Return one line about a trial that ended.

    Args:
      standing: The status of the study.
    """
    values = values_text(standing, trial)
    parts = [
        standing.state(trial),
        *([values] if values else []),
        *([trial.reason] if trial.reason else []),
    ]
    return cell(f"trial {trial.number}: {'; '.join(parts)}; {standing.words(trial)}")


def _values(standing: StudyStatus, trial: Trial) -> list[str]:
    if trial.values is None:
        return ["" for _ in standing.metrics]
    return [value_text(*pair) for pair in zip(standing.metrics, trial.values, strict=True)]


def _overrides_and_reason(standing: StudyStatus, trial: Trial) -> str:
    words = standing.words(trial)
    return f"{words}  ({trial.reason})" if trial.reason else words


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    # Texts come from user code and from logs: `cell` keeps control characters from reaching the
    # terminal.
    rows = [[cell(text) for text in row] for row in rows]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


# A study while it runs: a table that renews itself on a terminal, lines elsewhere.

_SECONDS = 0.5


class LiveView:
    """Shows a study on a terminal, or as a line for each trial that ended where there is none.

    Args:
      name: The study's name.
      metrics: The names of its objectives.
      directions: `lower` or `higher` for each of them.
      num_trials: Trials of its budget; None for no limit.
      stream: Where to; the standard output where it is None.
    """

    def __init__(
        self,
        name: str,
        metrics: Sequence[str],
        directions: Sequence[str],
        num_trials: int | None,
        stream: TextIO | None = None,
    ):
        self._facts = (name, tuple(metrics), tuple(directions), num_trials)
        self._stream = stream or sys.stdout
        self._is_terminal = self._stream.isatty()
        self._printed: set[int] = set()
        self._next = -1  # all trials before it are printed; -1 before the first look
        self._notices = 0
        self._live: Any = None
        self._last = self._started = 0.0
        self._ended_before = 0

    @classmethod
    def of(cls, study: Study) -> LiveView:
        """Return the view of a study.

        Args:
          study: The study, built.
        """
        names = [objective.name for objective in study.objectives]
        directions = [objective.direction for objective in study.objectives]
        return cls(study.name, names, directions, study.budget.num_trials)

    def __enter__(self) -> LiveView:
        if self._is_terminal:
            import rich.console
            import rich.live

            console = rich.console.Console(file=self._stream)
            self._live = rich.live.Live(console=console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, ledger: Ledger, slices: Sequence[SliceInfo]) -> None:
        """Show the current status.

        Args:
          ledger: Its trials.
          slices: Where they run.
        """
        standing = StudyStatus(*self._facts, ledger)
        if self._next < 0:
            self._started, self._next = time.monotonic(), 0
            self._printed = {trial.number for trial in ledger.trials if trial.state in ENDED}
            # Trials that an earlier driver ran are not printed again, and do not count in the rate
            # of `_time_left`.
            self._ended_before = len(self._printed)
        for notice in ledger.notices[self._notices :]:
            self._print(f"notice: {notice}")
        self._notices = len(ledger.notices)
        if not self._is_terminal:
            self._print_ended(standing)
            return
        everything = all(trial.state in ENDED for trial in ledger.trials)
        if everything or time.monotonic() - self._last >= _SECONDS:
            self._last = time.monotonic()
            self._live.update(Printable(self._table(standing, slices)), refresh=True)

    def _print(self, line: str) -> None:
        line = cell(line)
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self._stream, flush=True)

    def _print_ended(self, standing: StudyStatus) -> None:
        # Trials end out of order, and this is called after every round of the loop: only those from
        # the first that has not ended are looked at, and only their numbers are kept.
        while self._next in self._printed:
            self._printed.discard(self._next)
            self._next += 1
        for trial in standing.ledger.trials[self._next :]:
            if trial.state in ENDED and trial.number not in self._printed:
                self._printed.add(trial.number)
                print(ended_line(standing, trial), file=self._stream, flush=True)

    def _table(self, standing: StudyStatus, slices: Sequence[SliceInfo]) -> Any:
        import rich.table

        ledger = standing.ledger
        table = rich.table.Table(title=headline(standing), title_justify="left")
        for head in ("slice", "trial", "state", standing.metrics[0], "overrides"):
            table.add_column(head, overflow="fold")
        running = [trial for trial in ledger.trials if trial.state == "running"]
        for info in slices:
            # Several with lanes, none while the group is free or away.
            here = [trial for trial in running if trial.slice == info.index]
            if not here:
                table.add_row(info.name, "", "free", "", "")
            for trial in here:
                bars = sparkline(list((trial.series or {}).values()))
                words = standing.words(trial)
                table.add_row(info.name, str(trial.number), "running", bars, words)
        for trial in standing.best()[:3]:
            value = value_text(standing.metrics[0], (trial.values or (0.0,))[0])
            table.add_row("best", str(trial.number), trial.state, value, standing.words(trial))
        table.caption = self._time_left(standing)
        return table

    def _time_left(self, standing: StudyStatus) -> str:
        ended = standing.ledger.count(*ENDED)
        done = ended - self._ended_before
        if standing.num_trials is None or not done or ended >= standing.num_trials:
            return ""
        seconds = (time.monotonic() - self._started) / done * (standing.num_trials - ended)
        is_long = seconds > 90
        return f"about {seconds / 60:.0f} min left" if is_long else f"about {seconds:.0f} s left"
