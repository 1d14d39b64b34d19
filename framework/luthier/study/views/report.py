"""A study as one HTML file: its timeline, its trials, and which settings mattered."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from luthier.storage import write_atomically
from luthier.study.driver.directory import STUDIES
from luthier.study.driver.journal import NAME as JOURNAL
from luthier.study.driver.journal import read_journal
from luthier.study.driver.mirror import read_facts
from luthier.study.driver.sampling import as_direction
from luthier.study.driver.trial_table import Trial
from luthier.study.views.text import StudyStatus, headline, read_status
from luthier.view.page import document

# The timeline: which trial was on which slice and when, read from a study's journal.


@dataclasses.dataclass(slots=True)
class Span:
    """A trial on a slice.

    Args:
      trial: Its number.
      slice: The number of the slice.
      start: When it began, in seconds of driving.
      end: When it was over; for one that runs, when the journal ends.
      outcome: How it ended: an outcome of a trial, `lost` with its worker, or `running`.
    """

    trial: int
    slice: int
    start: float
    end: float
    outcome: str = "running"


@dataclasses.dataclass
class Timeline:
    """The events of a study by time, without the time in which no driver ran.

    Args:
      spans: Trials on slices, in the order in which they began.
      slices: The names of the slices, by their number.
      assignments: What the sampler chose, by the number of the setting.
      seconds: How long the study was driven.
    """

    spans: list[Span] = dataclasses.field(default_factory=list)
    slices: dict[int, str] = dataclasses.field(default_factory=dict)
    assignments: dict[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


def read_timeline(directory: pathlib.Path) -> Timeline:
    """Read the timeline of the study in a folder.

    Args:
      directory: The study's folder.

    Raises:
      RunError: Its journal is damaged.
    """
    return timeline_of(read_journal(directory / JOURNAL))


def timeline_of(lines: Iterable[Mapping[str, Any]]) -> Timeline:
    """Build a timeline from the lines of a journal.

    Args:
      lines: The lines.
    """
    found = Timeline()
    begun: dict[int, Span] = {}
    last = idle = noted = None
    is_driven = False
    for line in lines:
        kind, at = line["kind"], line["at"]
        if last is None or idle is None:
            last = idle = at
        # The clock of the timeline stops between two drivers: from the last line of the one to the
        # line `opened` of the next. That one notes before it opens what is edited and what runs
        # again, and one that is killed leaves no line `closed`: so a note counts only if the same
        # driver wrote a line after it, or if it is the end of the journal.
        if kind in ("noted", "retried"):
            is_driven = is_driven and kind == "noted"
            noted = at
            continue
        noted = None
        is_driven = kind == "opened" or (is_driven and kind != "closed")
        if kind == "opened":
            # May be negative where the clock was set back; `seconds` below never falls.
            idle += at - last
            found.slices |= {info["index"]: info["name"] for info in line["slices"]}
        last = max(last, at)  # clocks may be set back
        found.seconds = max(found.seconds, at - idle)
        if kind == "asked":
            found.assignments[line["setting"]] = line["assignment"]
        elif kind == "leased":
            span = Span(line["trial"], line["slice"], found.seconds, found.seconds)
            begun[line["trial"]] = span
            found.spans.append(span)
        elif kind in ("ended", "lost") and line["trial"] in begun:
            span = begun.pop(line["trial"])
            span.end, span.outcome = found.seconds, line.get("outcome", kind)
    if is_driven and noted is not None and idle is not None:
        found.seconds = max(found.seconds, noted - idle)
    for span in begun.values():
        span.end = found.seconds
    return found


# Hyperparameter importance, by Optuna's PED-ANOVA: it takes no forest, and well under a second.
#
# Source: Watanabe, Bansal, Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
# Arbitrary Subspaces", IJCAI 2023, arXiv:2304.10255.

# Ten, because PED-ANOVA compares the best tenth with all, and fewer have no whole setting in it.
FEWEST, MOST = 10, 500
"""The fewest settings for an estimate, and the most that are looked at."""


def importance(
    complete: Sequence[tuple[Mapping[str, Any], Sequence[float]]],
    distributions: Mapping[str, str],
    directions: Sequence[str],
) -> tuple[dict[str, float], int]:
    """Return the importance of each dimension, and the number of settings that it is based on.

    Args:
      complete: The assignment of each complete setting, and its objectives' values.
      distributions: Of the dimensions, as Optuna writes them.
      directions: Of the objectives: `lower` or `higher`.

    Returns:
      Shares by the name of the dimension, the largest first, which sum up to one; none where there
      are fewer than `FEWEST` settings. And the number of settings that were looked at: of more than
      `MOST`, that many at even distances.
    """
    import optuna
    from optuna.distributions import json_to_distribution

    # Settings without an infinite or missing value: PED-ANOVA ranks settings, and NaN has no rank.
    usable = [
        (assignment, values)
        for assignment, values in complete
        # The baseline has no assignment where the space does not hold it, and says nothing of a
        # dimension.
        if assignment and all(map(math.isfinite, values))
    ]
    if len(usable) < FEWEST:
        return {}, len(usable)
    if len(usable) > MOST:
        usable = [usable[i * len(usable) // MOST] for i in range(MOST)]
    known = {name: json_to_distribution(text) for name, text in distributions.items()}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=[as_direction(found) for found in directions])
    for assignment, values in usable:
        trial = optuna.trial.create_trial(
            params=dict(assignment),
            distributions={name: known[name] for name in assignment},
            values=list(values),
        )
        study.add_trial(trial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few trials, which the page shows
        # Optuna's default evaluator since version 5 is PED-ANOVA. Without a `target`, which would
        # name one objective, it ranks several together by domination.
        shares = optuna.importance.get_param_importances(study)
    return {name: float(share) for name, share in shares.items()}, len(usable)


# A study as one HTML file: its trials, their results, and the importance of settings.
#
# It is read from the study's folder; nothing that the study names is imported.

NAME = "report.html"
MOST_COLUMNS = 300
"""Trials in the matrix: of more, the best and the newest."""

_WORD = re.compile(
    r"((?:(?:any|class|tag|gin|config_dict):)?[A-Za-z_][\w./\[\]'\"]*?)\s*:?=(.*)", re.DOTALL
)
_FILES = ("matrix.css", "report.css", "matrix.js", "report_charts.js", "report.js")


def write(
    directory: str | os.PathLike[str], path: str | os.PathLike[str] | None = None
) -> pathlib.Path:
    """Write the report of a study; return where it is.

    Args:
      directory: The study's folder.
      path: Where to; `report.html` in the study's folder where it is None.

    Raises:
      RunError: The journal is damaged, or the report cannot be written.
    """
    folder = pathlib.Path(directory)
    place = folder / NAME if path is None else pathlib.Path(path)
    way = pathlib.Path(os.path.relpath(folder, place.parent)).as_posix()
    write_atomically(place, render(folder, "" if way == "." else f"{quote(way)}/"))
    return place


def render(directory: pathlib.Path, way: str = "") -> str:
    """Return the report of the study in a folder as the text of one HTML file.

    Args:
      directory: The study's folder.
      way: What leads from the report to that folder, at the start of an address.

    Raises:
      RunError: The journal is damaged.
    """
    data = describe(directory, way)
    fallback = "This page needs JavaScript. The command `luthier sweep show` prints the same."
    return document(data["name"], data, _FILES, fallback)


def describe(directory: pathlib.Path, way: str = "") -> dict[str, Any]:
    """Return the contents of a study's report, as plain JSON.

    Args:
      directory: The study's folder.
      way: What leads from the report to that folder, at the start of an address.

    Raises:
      RunError: The journal is damaged.
    """
    # Everything that the page shows, as data: the page is static, and its scripts draw from this.
    # It is read from the study's files only, so that a report can be made where the user's packages
    # are not installed.
    standing, timeline = read_status(directory), read_timeline(directory)
    best = [trial.number for trial in standing.best()]
    trials = standing.ledger.trials
    seconds = seconds_of(timeline)
    return {
        "version": 1,
        "name": standing.name,
        "headline": headline(standing).removeprefix(f"{standing.name}: "),
        "driver": "" if standing.driver is None else str(standing.driver),
        "notices": list(standing.ledger.notices),
        "metrics": list(standing.metrics),
        "directions": list(standing.directions),
        "best": best,
        "device_seconds": standing.ledger.device_seconds,
        "seconds": timeline.seconds,
        "study": _reference(directory, standing.name),
        "trials": [
            {"link": _link(trial, way), **_trial(standing, trial, seconds)} for trial in trials
        ],
        "importance": _importance(directory, standing, timeline),
        "slices": [{"index": i, "name": timeline.slices[i]} for i in sorted(timeline.slices)],
        "spans": [[s.trial, s.slice, s.start, s.end, s.outcome] for s in timeline.spans],
        "matrix": _matrix(standing, timeline, directory, _chosen(standing, best), way),
    }


def _trial(standing: StudyStatus, trial: Trial, seconds: dict[int, float]) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state,
        "values": None if trial.values is None else list(trial.values),
        "reason": trial.reason,
        "words": standing.words(trial),
        "copy_of": trial.copy_of,
        "losses": trial.losses,
        "seconds": seconds.get(trial.number),
    }


def _link(trial: Trial, way: str) -> str:
    return f"{way}trials/{trial.number:04d}/"


def seconds_of(timeline: Timeline) -> dict[int, float]:
    """Return how long each trial was on device groups, in seconds, by its number.

    Args:
      timeline: The timeline of the study.
    """
    found: dict[int, float] = {}
    for span in timeline.spans:
        found[span.trial] = found.get(span.trial, 0.0) + span.end - span.start
    return found


def _reference(directory: pathlib.Path, name: str) -> str:
    """Return the study's reference for `luthier train`: its name, or its folder if elsewhere."""
    # A name is enough only where `luthier` looks for studies by itself, from the project's folder.
    is_here = directory.name == name and directory.parent.name == STUDIES
    return "study:" + shlex.quote(name if is_here else str(directory))


def _importance(
    directory: pathlib.Path, standing: StudyStatus, timeline: Timeline
) -> dict[str, Any]:
    ledger = standing.ledger
    complete = []
    for setting in ledger.settings:
        outcome = ledger.outcome_of(setting)
        if outcome is not None and outcome[0] == "complete" and outcome[1]:
            complete.append((timeline.assignments.get(setting.number, {}), outcome[1]))
    shares, count = importance(complete, _distributions(directory), standing.directions)
    rows = [{"path": path, "share": share} for path, share in shares.items()]
    return {"rows": rows, "settings": count, "fewest": FEWEST}


def _distributions(directory: pathlib.Path) -> dict[str, str]:
    """Return the distribution of each dimension, as Optuna writes it."""
    found: dict[str, str] = read_facts(directory).get("distributions", {})
    return found


def _matrix(
    standing: StudyStatus,
    timeline: Timeline,
    directory: pathlib.Path,
    trials: Sequence[Trial],
    way: str,
) -> dict[str, Any]:
    """Return the settings that varied: a row for each path, a column for each trial."""
    texts_by_setting = {
        setting.number: override_texts(setting.words) for setting in standing.ledger.settings
    }
    paths = list(dict.fromkeys(path for found in texts_by_setting.values() for path in found))
    if 0 in texts_by_setting:
        # The baseline has no overrides of its own, and its column would be empty: its cells are
        # what its graph has at those paths, and its choices in the space where it is one of its
        # points.
        texts_by_setting[0] = {
            **_base_texts(directory, paths),
            **_base_choices(directory, timeline, texts_by_setting),
        }
    rows = []
    for path in paths:
        texts = [texts_by_setting[trial.setting].get(path, "") for trial in trials]
        rows.append({"path": path, "texts": texts, "values": [_number(text) for text in texts]})
    objectives = [
        {
            "name": name,
            "direction": direction,
            "values": [t.values[i] if t.values and i < len(t.values) else None for t in trials],
        }
        for i, (name, direction) in enumerate(
            zip(standing.metrics, standing.directions, strict=True)
        )
    ]
    columns = [{"title": str(t.number), "state": t.state, "link": _link(t, way)} for t in trials]
    title = f"Settings of {standing.name}"
    left_out = len(standing.ledger.trials) - len(trials)
    found = {"version": 1, "title": title, "columns": columns, "left_out": left_out}
    return {**found, "objectives": objectives, "rows": rows}


def _chosen(standing: StudyStatus, best: Sequence[int]) -> list[Trial]:
    """Return the trials that the matrix shows: all, or the best and the newest."""
    trials = standing.ledger.trials
    if len(trials) <= MOST_COLUMNS:
        return trials
    signs = [1.0 if direction == "lower" else -1.0 for direction in standing.directions]
    ranked = [
        (signs[0] * trial.values[0], trial)
        for trial in trials
        # NaN is neither better nor worse than another value, so that it would spoil the order.
        if trial.state == "complete" and trial.values and not math.isnan(trial.values[0])
    ]
    complete = [trial for _, trial in sorted(ranked, key=lambda pair: pair[0])]
    half = MOST_COLUMNS // 2
    # By the first objective; of several, the trials that no other beats come first.
    kept = [*best[:half], *(trial.number for trial in complete)]
    numbers = {0, *list(dict.fromkeys(kept))[: half - 1]}
    for trial in reversed(trials):
        if len(numbers) >= MOST_COLUMNS:
            break
        numbers.add(trial.number)
    return [trial for trial in trials if trial.number in numbers]


def override_texts(words: Sequence[str]) -> dict[str, str]:
    """Return the values that overrides set, by path; those without a path are under `fiddlers`.

    Args:
      words: Words of the override grammar.
    """
    found: dict[str, str] = {}
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            found["fiddlers"] = " ".join(filter(None, [found.get("fiddlers"), word]))
        else:
            found[match[1]] = match[2].strip()
    return found


def _base_choices(
    directory: pathlib.Path, timeline: Timeline, texts_by_setting: Mapping[int, Mapping[str, str]]
) -> dict[str, str]:
    """Return the baseline's choices, in the text that other settings have for the same choices."""
    stored = timeline.assignments.get(0, {})
    found = {
        path: repr(stored[path])
        for path, text in _distributions(directory).items()
        if path in stored and json.loads(text)["name"] == "FloatDistribution"
    }
    for number, words in texts_by_setting.items():
        chosen = timeline.assignments.get(number, {})
        found |= {p: w for p, w in words.items() if p in stored and chosen.get(p) == stored[p]}
    return found


def _base_texts(directory: pathlib.Path, paths: Sequence[str]) -> dict[str, str]:
    """Return the values of the experiment itself at paths, where they are plain."""
    try:
        record = json.loads((directory / "trials" / "0000" / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    found = {}
    for path in paths:
        # The path is followed through the record as plain data, without importing the classes that
        # it names. What is not found so stays an empty cell.
        at = record.get("graph")
        for part in re.findall(r"[^.\[\]]+", path):
            inside = at.get("arguments", at) if isinstance(at, dict) else at
            if isinstance(inside, dict):
                at = inside.get(part.strip("'\""))
            elif isinstance(inside, list) and part.isdecimal() and int(part) < len(inside):
                at = inside[int(part)]
            else:
                at = None
        if isinstance(at, bool | int | float | str):
            found[path] = repr(at)
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
