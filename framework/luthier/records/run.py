"""A recorded run as its readers see it: what it was, how far it came, and its curves."""

from __future__ import annotations

import array
import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from luthier.errors import BadInput, LuthierError, Problem, RunError, listed
from luthier.records.directory import RunDirectory
from luthier.records.events import Evaluation, Step
from luthier.records.metrics_file import read_events, read_last
from luthier.records.status import Status

if TYPE_CHECKING:
    import numpy as np

STEPS = ""
"""The name of the table of training steps; those of evaluations have the names of their sets."""

# Origins of overrides in a recorded history: `argument 2: seed=3`, `trial 7: seed=3`, and
# `FILE:LINE: seed=3`. Those of a fiddler end with the line inside it that set the value.
_OVERRIDE = re.compile(r"(?:[\w-]+ \d+|[^:]+:\d+): (?P<override>.+)")
_LINE_IN_FIDDLER = re.compile(r", [^,]+:\d+$")


def data_frame(columns: Mapping[str, Any]) -> Any:
    """Return a `pandas.DataFrame`.

    Args:
      columns: Its columns by name, all of one length.

    Raises:
      BadInput: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        remedy = "pip install pandas; without it, the columns are sequences by name"
        raise BadInput(Problem("pandas is not installed", remedy=remedy)) from error
    return pandas.DataFrame(columns)


class Columns(Mapping[str, "np.ndarray"]):
    """Metrics of a run as columns: a NumPy array for each name, all of one length.

    `step` is int64, `time` (seconds since 1970) and all others are float64; a value that was not
    recorded at a step is NaN.

        columns = luthier.runs()[-1].metrics()
        columns["loss"].min()

    Args:
      columns: The arrays by name.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise KeyError(f"{name!r}; there are {', '.join(self._columns)}")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Columns({len(self['step'])} rows of {', '.join(self)})"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with these columns.

        Returns:
          A `pandas.DataFrame`, with a row for each step.

        Raises:
          BadInput: pandas is not installed.
        """
        return data_frame(self._columns)


class UnknownMetric(RunError):
    """A run has not recorded a metric."""


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """A recorded run. Its curves are read when they are asked for.

    Args:
      directory: The run.
      record: Its status as it was recorded; step and metrics are those of the last recorded step.
      problem: The reason why the rest is unknown, or empty.
    """

    directory: RunDirectory
    record: Status
    problem: str = ""

    def __repr__(self) -> str:
        total = f"/{self.record.total_steps}" if self.record.total_steps else ""
        return f"Run({self.name}/{self.id}, {self.status}, step {self.step}{total})"

    @property
    def id(self) -> str:
        """The run's id."""
        return self.directory.id

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.directory.name

    @property
    def status(self) -> str:
        """`created`, `running`, `finished`, `interrupted`, `preempted`, `diverged`, `failed`."""
        return self.record.status

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.record.step

    @property
    def evaluations(self) -> dict[str, dict[str, float]]:
        """The last metrics of every evaluation set: `run.evaluations["held_out"]["loss"]`."""
        # A number that JSON does not have is a text there: "NaN".
        return {
            name: {metric: float(value) for metric, value in values.items()}
            for name, values in self.record.evaluations.items()
        }

    @property
    def overrides(self) -> list[str]:
        """The overrides that made its config, in order, as they were written.

        One that changed nothing is missing, and so are all of a run without a history.
        """
        found: dict[str, int] = {}
        try:
            sets = self.directory.read_history()["sets"].values()
            for entry in (entry for entries in sets for entry in entries):
                origin = _OVERRIDE.fullmatch(entry["origin"])
                if origin is not None:
                    text = origin["override"]
                    if text.startswith("fiddler:"):
                        text = _LINE_IN_FIDDLER.sub("", text)
                    found[text] = min(entry["order"], found.get(text, entry["order"]))
        except (LuthierError, KeyError, TypeError, AttributeError):
            return []
        return sorted(found, key=lambda text: found[text])

    def value(self, metric: str) -> float | None:
        """Return the last value of a metric; None where there is none.

        Args:
          metric: `loss` for one of the training steps, `held_out/loss` for one of an evaluation.

        Returns:
          A number, or None.
        """
        if metric in self.record.metrics:
            return float(self.record.metrics[metric])
        evaluation, _, name = metric.rpartition("/")
        return self.evaluations.get(evaluation, {}).get(name)

    def metrics(
        self, evaluation: str | None = None, report: Callable[[str], None] | None = None
    ) -> Columns:
        """Return what was recorded at every step, or at every evaluation of a set.

        A run that is being written can be read, and what is damaged is left out.

        Args:
          evaluation: The name of an evaluation set; None for the training steps.
          report: Is given one line about damaged lines; None warns (`DamagedRecord`).

        Returns:
          Columns by metric, each with its steps.

        Raises:
          RunError: There is no such set, or the record cannot be read.
        """
        name = evaluation or STEPS
        tables = self._tables(report, name)
        if name in tables:
            return tables[name].columns()
        if evaluation is None:
            return _Table().columns()
        known = [each for each in self._tables(report) if each != STEPS]
        what = f"{self.name}/{self.id} has no evaluation {evaluation!r}"
        raise RunError(_unknown(what, evaluation, known))

    def curve(
        self, metric: str, report: Callable[[str], None] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps (int64) and the values (float64) of one metric; NaN is left out.

        Args:
          metric: `loss` for one of the training steps, `held_out/loss` for one of an evaluation.
          report: As for `metrics`.

        Returns:
          Two arrays [n].

        Raises:
          UnknownMetric: There is no such metric.
          RunError: The record cannot be read.
        """
        known = {
            f"{name}/{column}" if name != STEPS else column: (table, column)
            for name, table in self._tables(report).items()
            for column in table.values
        }
        if metric not in known:
            what = f"{self.name}/{self.id} has no metric {metric!r}"
            raise UnknownMetric(_unknown(what, metric, list(known)))
        table, column = known[metric]
        columns = table.columns()
        there = columns[column] == columns[column]  # NaN is not equal to itself
        return columns["step"][there], columns[column][there]

    def _tables(
        self, report: Callable[[str], None] | None, only: str | None = None
    ) -> dict[str, _Table]:
        """Return the table of the training steps, and that of each evaluation set, by name."""
        tables: dict[str, _Table] = {}
        for at, step, event in read_events(self.directory.metrics_path, report):
            if not isinstance(event, Step | Evaluation):
                continue
            name = event.name if isinstance(event, Evaluation) else STEPS
            if only is None or name == only:
                tables.setdefault(name, _Table()).add(step, at, event.values)
        return tables


class _Table:
    """Rows, kept by column: a run of a million steps would not fit as a dict for each of them."""

    def __init__(self) -> None:
        self._steps, self._times = array.array("q"), array.array("d")
        self.values: dict[str, array.array[float]] = {}

    def add(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Append a row."""
        num_before = len(self._steps)
        self._steps.append(step)
        self._times.append(at)
        for name, value in values.items():
            if name not in self.values:
                self.values[name] = array.array("d", [math.nan]) * num_before
            self.values[name].append(value)
        for column in self.values.values():
            if len(column) == num_before:
                column.append(math.nan)

    def columns(self) -> Columns:
        """Return the columns."""
        import numpy as np  # not at the top: importing this package must be cheap

        steps, times = np.array(self._steps, np.int64), np.array(self._times, np.float64)
        values = {name: np.array(column, np.float64) for name, column in self.values.items()}
        return Columns({"step": steps, "time": times, **values})


def _unknown(what: str, name: str, known: Sequence[str]) -> Problem:
    near = difflib.get_close_matches(name, known)
    # A list of all would hide the nearest in a line that nobody reads.
    return Problem(
        what, nearest=near, remedy="" if near else f"it has {listed(known) or 'none yet'}"
    )


def summarize(directory: RunDirectory) -> Run:
    """Return the run in `directory`; damage is a part of it, and not raised.

    Args:
      directory: The directory of a run.

    Returns:
      Its status and last metrics; `unknown` with the reason where files are damaged.
    """
    try:
        status = directory.read_status()
        last = read_last(directory.metrics_path, Step)
    except LuthierError as error:
        return Run(directory, Status(status="unknown"), str(error))
    # status.json is written by a thread every ten seconds and lags behind the last line of
    # metrics.jsonl; right after a kill that line alone is up to date.
    if last is not None and isinstance(last.event, Step):
        status = dataclasses.replace(
            status,
            step=max(status.step, last.step),
            metrics=last.event.values,
            updated=max(status.updated, last.time),
        )
    return Run(directory, status)
