"""A study as one HTML file: its learning curves, its trials, and which settings mattered."""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

from luthier import project
from luthier.errors import LuthierError, Problem, RunError
from luthier.storage import write_atomically
from luthier.study.driver.directory import STUDIES
from luthier.study.driver.journal import NAME as JOURNAL
from luthier.study.driver.journal import load_journal
from luthier.study.driver.mirror import read_facts, shown_value
from luthier.study.driver.sampling import as_direction
from luthier.study.driver.trial_table import Trial
from luthier.study.views.text import StudyStatus, headline, read_status, value_text
from luthier.study.views.timeline import Timeline, seconds_of, timeline_of
from luthier.view.page import document

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
    objective: int | None = None,
) -> tuple[dict[str, float], int]:
    """Return the importance of each dimension, and the number of settings that it is based on.

    Args:
      complete: The assignment of each complete setting, and its objectives' values.
      distributions: Of the dimensions, as Optuna writes them.
      directions: Of the objectives: `lower` or `higher`.
      objective: The number of the objective; None ranks several together by domination.

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
    if objective is not None:
        usable = [(assignment, [values[objective]]) for assignment, values in usable]
        directions = [directions[objective]]
    if len(directions) == 1:
        # PED-ANOVA compares the best tenth with all: where ties make them the same, as where no
        # setting changes the objective, there is no importance, and Optuna would warn.
        sign = 1 if directions[0] == "lower" else -1
        ranked = sorted(sign * values[0] for _, values in usable)
        if ranked[-1] == ranked[math.ceil(len(ranked) / 10) - 1]:
            return {}, len(usable)
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
    # Optuna's default evaluator since version 5 is PED-ANOVA. Without a `target` it ranks several
    # objectives together by domination. Warnings stay as they are: this runs in a thread of the
    # driver, and filters are those of the process.
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
    directory: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    live_seconds: float | None = None,
) -> pathlib.Path:
    """Write the report of a study; return where it is.

    Args:
      directory: The study's folder.
      path: Where to; `report.html` in the study's folder where it is None.
      live_seconds: Time until it is written again, after which the page reloads itself; None
        where nothing writes it again.

    Raises:
      RunError: The journal cannot be read, or the report cannot be written.
    """
    folder = pathlib.Path(directory)
    place = folder / NAME if path is None else pathlib.Path(path)
    way = pathlib.Path(os.path.relpath(folder, place.parent)).as_posix()
    way = "" if way == "." else f"{quote(way)}/"
    write_atomically(place, render(folder, way, live_seconds=live_seconds))
    return place


def render(directory: pathlib.Path, way: str = "", *, live_seconds: float | None = None) -> str:
    """Return the report of the study in a folder as the text of one HTML file.

    Args:
      directory: The study's folder.
      way: What leads from the report to that folder, at the start of an address.
      live_seconds: As for `write`.

    Raises:
      RunError: The journal cannot be read.
    """
    data = describe(directory, way)
    if live_seconds is not None:
        data["live"] = {"seconds": live_seconds, "written": time.time()}
    fallback = "This page needs JavaScript. The command `luthier sweep show` prints the same."
    return document(data["name"], data, _FILES, fallback)


def describe(directory: pathlib.Path, way: str = "") -> dict[str, Any]:
    """Return the contents of a study's report, as plain JSON.

    Args:
      directory: The study's folder.
      way: What leads from the report to that folder, at the start of an address.

    Raises:
      RunError: The journal cannot be read.
    """
    # Everything that the page shows, as data: the page is static, and its scripts draw from this.
    # It is read from the study's files only, so that a report can be made where the user's packages
    # are not installed.
    contents = load_journal(directory / JOURNAL)
    standing, timeline = read_status(directory, contents), timeline_of(contents.lines)
    best = [trial.number for trial in standing.best()]
    trials = standing.ledger.trials
    seconds = seconds_of(timeline)
    return {
        "version": 1,
        "live": None,
        "name": standing.name,
        "headline": headline(standing).removeprefix(f"{standing.name}: "),
        "notices": [*standing.problems, *standing.ledger.notices],
        "metrics": list(standing.metrics),
        "directions": list(standing.directions),
        "best": best,
        "why_no_best": "" if best else standing.why_no_best(),
        "device_seconds": standing.ledger.device_seconds,
        "seconds": timeline.seconds,
        "study": _reference(directory, standing.name),
        "trials": [
            {"link": _link(trial, way), **_trial(standing, trial, seconds)} for trial in trials
        ],
        "dimensions": _dimensions(directory, trials, timeline),
        "curves": _curves(standing, timeline, best),
        "importance": _importance(directory, standing, timeline),
        "slices": [{"index": i, "name": timeline.slices[i]} for i in sorted(timeline.slices)],
        "spans": [[s.trial, s.slice, s.start, s.end, s.outcome] for s in timeline.spans],
        "matrix": _matrix(standing, timeline, directory, _chosen(standing, best), way),
    }


LONG_BYTES = 2 * 2**20
"""The size of a journal, about that of a thousand trials, whose report takes long."""


class LiveReport:
    """Keeps the report of a study up to date while it is driven, as a context manager.

    A thread of the driver's process, because the report is made of the journal's file alone and
    another process would start for each study, however short. That of a long journal is written by
    a process for itself: it takes a hundred megabytes, and the interpreter's lock for seconds. It
    writes after `first_seconds`, and
    then at most every `seconds`, or more rarely where a report of many trials takes long: at most
    a twentieth of the time goes into it.

    Args:
      directory: The study's folder.
      seconds: Least time between two reports.
      first_seconds: When the first one is written.
    """

    def __init__(
        self, directory: pathlib.Path, seconds: float = 10.0, first_seconds: float = 3.0
    ) -> None:
        self._directory, self._seconds, self._first = directory, seconds, first_seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="luthier-report", daemon=True)
        self.problem = ""
        """Why no report could be written; empty where it could."""

    def __enter__(self) -> LiveReport:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Waits for a report that is being written: the last one follows, and must stay.
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        pause, size = self._first, -1
        while not self._is_over.wait(pause):
            try:
                now = os.stat(self._directory / JOURNAL).st_size
                if now == size:
                    continue
                seconds = self._write(now, max(self._seconds, pause))
                size, pause = now, max(self._seconds, 20 * seconds)
            except (OSError, LuthierError) as error:
                # A full disk, say. The study goes on, and its last report is written by the driver,
                # which raises what is still wrong then.
                self.problem = str(error)
                pause = max(self._seconds, pause)

    def _write(self, size: int, live_seconds: float) -> float:
        """Write the report of a journal of a size; return the seconds that it took."""
        if size < LONG_BYTES:
            start = time.thread_time()
            write(self._directory, live_seconds=live_seconds)
            return time.thread_time() - start
        start = time.monotonic()
        words = [str(self._directory), str(live_seconds)]
        command = [sys.executable, "-m", "luthier.study.views.report", *words]
        made = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if made.returncode:
            lines = made.stderr.splitlines() or [f"exit code {made.returncode}"]
            raise RunError(Problem(f"the report was not written: {lines[-1]}"))
        return time.monotonic() - start


def _trial(standing: StudyStatus, trial: Trial, seconds: dict[int, float]) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state,
        "values": None if trial.values is None else _shown_values(standing, trial.values),
        "reason": trial.reason,
        "words": standing.words(trial),
        "copy_of": trial.copy_of,
        "losses": trial.losses,
        "seconds": seconds.get(trial.number),
    }


def _shown_values(standing: StudyStatus, values: Sequence[float]) -> list[float | str]:
    """Return values for the page, which shows what is not a finite number as it is."""
    named = zip(standing.metrics, values, strict=False)
    return [value if math.isfinite(value) else value_text(name, value) for name, value in named]


def _link(trial: Trial, way: str) -> str:
    return f"{way}trials/{trial.number:04d}/"


def _reference(directory: pathlib.Path, name: str) -> str:
    """Return the study's reference for `luthier train`: its name, or its folder if elsewhere."""
    # A name is enough only where `luthier` looks for studies by itself, from the project's folder.
    is_in_store = bool(project.bucket_url(directory))
    is_here = directory.name == name and directory.parent.name == STUDIES and not is_in_store
    return "study:" + shlex.quote(name if is_here else project.address(directory))


MOST_CURVES = 300
"""Trials whose learning curve is drawn: of more, the best and others at even distances."""
MOST_POINTS = 200
"""Points of one learning curve: of more, some at even distances, and the last one."""


def _curves(standing: StudyStatus, timeline: Timeline, best: Sequence[int]) -> dict[str, Any]:
    """Return the evaluations of the first objective: of each trial its steps and values."""
    reports = {number: found for number, found in sorted(timeline.reports.items()) if found}
    chosen = set(reports)
    if len(reports) > MOST_CURVES:
        running = [t.number for t in standing.ledger.trials if t.state == "running"]
        first = [n for n in dict.fromkeys([*best, *running]) if n in reports][: MOST_CURVES // 2]
        others = [number for number in reports if number not in set(first)]
        room = MOST_CURVES - len(first)
        chosen = {*first, *(others[i * len(others) // room] for i in range(room))}
    rows = []
    for number in sorted(chosen):
        steps = sorted(reports[number])
        if len(steps) > MOST_POINTS:
            stride = math.ceil(len(steps) / (MOST_POINTS - 1))
            steps = [*steps[:-1:stride], steps[-1]]
        rows.append([number, steps, [_short(reports[number][step]) for step in steps]])
    rungs = [[rung, sorted(timeline.rungs[rung])] for rung in sorted(timeline.rungs)]
    return {"rows": rows, "reported": len(reports), "rungs": rungs}


def _short(value: float) -> float:
    """Return a number with the digits that a chart can show: of ten thousand trials it counts."""
    return float(f"{value:.7g}")


_ABSENT = object()  # not None, which may be an option


def _dimensions(
    directory: pathlib.Path, trials: Sequence[Trial], timeline: Timeline
) -> list[dict[str, Any]]:
    """Return the dimensions of the space with the choice of each trial, for axes and columns.

    Returns:
      For each its `name`, its `scale` (`linear`, `log` or `category`), the `labels` of a category
      in the order of its options, and `values` by trial: numbers, or indices of labels.
    """
    found = []
    assignments = [timeline.assignments.get(trial.setting, {}) for trial in trials]
    for name, shown in read_facts(directory).get("shown", {}).items():
        record = json.loads(shown["distribution"])
        # Of a conditional space, a trial has the dimensions of the options that it chose.
        values: list[Any] = [
            shown_value(shown, chosen[name]) if name in chosen else _ABSENT
            for chosen in assignments
        ]
        labels: list[str] = []
        if record["name"] == "CategoricalDistribution":
            choices = list(record["attributes"]["choices"])
            labels, scale = [str(choice) for choice in choices], "category"
            values = [None if value is _ABSENT else choices.index(value) for value in values]
        else:
            scale = "log" if record["attributes"].get("log") else "linear"
            values = [None if value is _ABSENT else _short(value) for value in values]
        found.append({"name": name, "scale": scale, "labels": labels, "values": values})
    return found


def _importance(
    directory: pathlib.Path, standing: StudyStatus, timeline: Timeline
) -> dict[str, Any]:
    """Return the importance of the dimensions: of several objectives of each, and of the front."""
    ledger = standing.ledger
    complete = []
    for setting in ledger.settings:
        outcome = ledger.outcome_of(setting)
        if outcome is not None and outcome[0] == "complete" and outcome[1]:
            complete.append((timeline.assignments.get(setting.number, {}), outcome[1]))
    known, several = _distributions(directory), len(standing.directions) > 1
    targets: list[tuple[str, int | None]] = [("Pareto front", None)] if several else []
    targets += [(name, i if several else None) for i, name in enumerate(standing.metrics)]
    count, found = 0, []
    for name, objective in targets:
        shares, count = importance(complete, known, standing.directions, objective)
        rows = [{"path": path, "share": share} for path, share in shares.items()]
        found.append({"name": name, "rows": rows})
    return {"of": found, "settings": count, "fewest": FEWEST}


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
            "values": [
                _shown_values(standing, t.values)[i] if t.values and i < len(t.values) else None
                for t in trials
            ],
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


if __name__ == "__main__":  # `LiveReport._write`
    try:
        write(sys.argv[1], live_seconds=float(sys.argv[2]))
    except LuthierError as error:
        sys.exit(str(error))
