"""The trials of a study as a table, for other programs: pandas, CSV, JSON and Parquet."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier import project
from luthier.errors import BadInput, Problem, listed
from luthier.records.run import data_frame
from luthier.storage import json_text, replacing
from luthier.study.driver.directory import STUDIES, StudyDirectory, find_study
from luthier.study.driver.mirror import read_facts, shown_value
from luthier.study.views.text import StudyStatus, read_status
from luthier.study.views.timeline import read_timeline, seconds_of

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, repr=False)
class TrialTable(Sequence[Row]):
    """The trials of a study, a row for each.

    A row has `trial` and `state`, the value of each objective and of each dimension of the space by
    its name (None where there is none), `overrides`, `seconds` on device groups, `device_seconds`,
    `copy_of` (the trial whose result it took), `reason` and `directory`. Sizes and choices are
    values and labels, as in the config.

        table = luthier.study.load("lm_learning_rate")
        table.sorted("held_out/loss").rows[0]["optimizer.learning_rate.peak"]
        table.frame().plot.scatter("optimizer.learning_rate.peak", "held_out/loss")

    Args:
      name: The study's name.
      metrics: The names of its objectives.
      directions: `lower` or `higher`, the better values of each of them.
      best: Number of the best trial; with several objectives, of those that no other beats.
      rows: The rows, by the numbers of their trials.
    """

    name: str
    metrics: Sequence[str]
    directions: Sequence[str]
    best: Sequence[int]
    rows: Sequence[Row]

    def __repr__(self) -> str:
        return f"TrialTable({self.name}: {len(self.rows)} trials)"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.rows[0]) if self.rows else ()

    def sorted(self, column: str, descending: bool | None = None) -> TrialTable:
        """Return the table sorted by a column; rows without a value come last.

        Args:
          column: The name of a column.
          descending: Whether the largest value comes first; None for the best one, in the direction
            of an objective, and for the smallest one of other columns.

        Returns:
          A table of the same rows.

        Raises:
          BadInput: There is no such column.
        """
        self._require(column)
        if descending is None:
            directions = dict(zip(self.metrics, self.directions, strict=True))
            descending = directions.get(column) == "higher"

        def key(row: Row) -> tuple[bool, Any]:
            # Numbers before texts: the labels of one choice may be both.
            value = row[column]
            is_number = isinstance(value, int | float)
            return (not is_number, value if is_number else str(value))

        absent = [row for row in self.rows if _is_absent(row[column])]
        present = [row for row in self.rows if not _is_absent(row[column])]
        ordered = sorted(present, key=key, reverse=descending)
        return dataclasses.replace(self, rows=[*ordered, *absent])

    def where(self, **wanted: Any) -> TrialTable:
        """Return the rows with these values, as `table.where(state="complete")`.

        Args:
          **wanted: The value by the name of a column.

        Returns:
          A table of those rows.

        Raises:
          BadInput: There is no such column.
        """
        for column in wanted:
            self._require(column)
        kept = [r for r in self.rows if all(r[name] == value for name, value in wanted.items())]
        return dataclasses.replace(self, rows=kept)

    def frame(self) -> Any:
        """Return the table for pandas.

        Returns:
          A `pandas.DataFrame` with these rows and columns.

        Raises:
          BadInput: pandas is not installed.
        """
        return data_frame({name: [row[name] for row in self.rows] for name in self.columns})

    def csv(self) -> str:
        """Return the table as comma-separated values.

        Returns:
          A line of names, and a line for each row; None is empty.
        """
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def json(self) -> str:
        """Return the table as JSON.

        Returns:
          A list of objects; numbers that JSON does not have are texts.
        """
        return json_text([{name: _json(value) for name, value in r.items()} for r in self.rows])

    def write_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the table as a Parquet file.

        Args:
          path: The file.

        Raises:
          BadInput: pyarrow is not installed.
        """
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError as error:
            remedy = "pip install 'luthier[parquet]'"
            raise BadInput(Problem("writing Parquet needs pyarrow", remedy=remedy)) from error
        columns = {name: [row[name] for row in self.rows] for name in self.columns}
        # A column of Parquet has one type; labels of a choice may be numbers and texts.
        for name, values in columns.items():
            kinds = {type(value) for value in values if value is not None}
            if len(kinds) > 1 and not kinds <= {int, float}:
                columns[name] = [None if value is None else str(value) for value in values]
        with replacing(pathlib.Path(path)) as file:
            parquet.write_table(arrow.table(columns), file)

    def _require(self, column: str) -> None:
        if self.rows and column not in self.columns:
            what = f"there is no column {column!r}"
            raise BadInput(Problem(what, remedy=f"there are {listed(self.columns)}"))


def load(name: str, directory: str | os.PathLike[str] = STUDIES) -> TrialTable:
    """Return the trials of a study, also while it runs; nothing that it names is imported.

    Args:
      name: The study's name, its folder, or its URL in an object store.
      directory: Root directory of the studies, or its URL.

    Returns:
      A row for each trial, by number.

    Raises:
      UnknownReference: There is no such study; the problem holds the nearest names.
      RunError: Its journal is damaged.
    """
    found = find_study(name, directory)
    status = read_status(found.path)
    best = [trial.number for trial in status.best()]
    rows = list(_rows(found, status))
    return TrialTable(status.name, tuple(status.metrics), tuple(status.directions), best, rows)


def _rows(directory: StudyDirectory, status: StudyStatus) -> Iterator[Row]:
    # From the study's files only, as the report: the user's packages may be missing here.
    timeline, facts = read_timeline(directory.path), read_facts(directory.path)
    shown = facts.get("shown") or {name: {} for name in facts.get("distributions", ())}
    seconds = seconds_of(timeline)
    for trial in status.ledger.trials:
        assignment = timeline.assignments.get(trial.setting, {})
        values = trial.values or [None] * len(status.metrics)
        yield {
            "trial": trial.number,
            "state": trial.state,
            **dict(zip(status.metrics, values, strict=True)),
            # Of a conditional space, a trial has the dimensions of the options that it chose.
            **{
                name: shown_value(one, assignment[name]) if name in assignment else None
                for name, one in shown.items()
            },
            "overrides": status.words(trial),
            "seconds": seconds.get(trial.number),
            "device_seconds": trial.device_seconds,
            "copy_of": trial.copy_of,
            "reason": trial.reason,
            "directory": project.address(directory.trial_path(trial.number)),
        }


def _json(value: Any) -> Any:
    # Text and not the journal's {"float": "nan"}: who reads this does not know that format.
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _is_absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
