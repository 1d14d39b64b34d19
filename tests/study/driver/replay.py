"""Asking a sampler again: what it suggested follows from the journal of what it had been told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from luthier.study import Study
from luthier.study.driver import Ledger, StudyDirectory, Suggestion, make_suggester, read_journal


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A suggestion, made twice.

    Args:
      setting: The number of the setting.
      recorded: What the journal says.
      again: What the sampler suggests now.
    """

    setting: int
    recorded: Mapping[str, Any]
    again: Mapping[str, Any] | None


def replay(study: Study, directory: StudyDirectory) -> Iterator[Replayed]:
    """Yield every suggestion of a study beside what its sampler makes of the same past.

    Args:
      study: The study.
      directory: Its folder.
    """
    ledger, suggester = Ledger(), make_suggester(study)
    series: dict[int, Any] = {}
    asked: dict[int, Suggestion] = {}
    waiting: set[int] = set()
    for line in read_journal(directory.journal_path):
        ledger.follow(line)
        if line["kind"] == "asked":
            number, assignment = line["setting"], line["assignment"]
            if number:
                again = suggester.ask(number)
                yield Replayed(number, assignment, None if again is None else again.assignment)
            elif assignment:
                suggester.restore(0, Suggestion(assignment))
            if number or assignment:
                asked[number] = Suggestion(assignment, line.get("notes", {}))
            waiting.add(number)
        elif line["kind"] == "retried":
            number = ledger.trials[line["trial"]].setting
            if number in asked and number not in waiting:
                suggester.retry(number, asked[number])
                waiting.add(number)
        elif line["kind"] == "reopened":
            number = ledger.trials[line["trial"]].setting
            suggester.reopen(number)
            waiting.add(number)
        elif line["kind"] == "reached":
            trial = ledger.trials[line["trial"]]
            suggester.show_rungs(trial.setting, trial.rung_values)
        elif line["kind"] == "ended":
            trial = ledger.trials[line["trial"]]
            series[line["trial"]] = trial.rung_values or dict(line.get("series", ()))
        elif line["kind"] == "told":
            setting = ledger.settings[line["setting"]]
            came = ledger.outcome_of(setting)
            assert came is not None
            suggester.record(setting.number, *came, series.get(setting.trials[-1], {}))
            waiting.discard(setting.number)
