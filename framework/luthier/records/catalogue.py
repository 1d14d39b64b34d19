"""Lists the runs under a root, and finds a run by a reference."""

from __future__ import annotations

import dataclasses
import difflib
import os
import pathlib
from collections.abc import Iterator

from luthier.errors import LuthierError, Problem, RunError, UnknownReference
from luthier.records.directory import RunDirectory
from luthier.records.events import Step
from luthier.records.metrics_file import read_last
from luthier.records.status import Status

LAST = "last"


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """A line of the list of runs.

    Args:
      directory: The run.
      status: Its status; step and metrics are those of the last recorded step.
      problem: The reason why the rest is unknown, or empty.
    """

    directory: RunDirectory
    status: Status
    problem: str = ""


def _directories(root: pathlib.Path) -> Iterator[RunDirectory]:
    try:
        # `scandir` and one look for config.json, but no reading: a root may hold thousands of runs.
        names = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:
        return
    for name in names:
        if name.name.startswith(".") or not name.is_dir():
            continue
        try:
            runs = sorted(os.scandir(name.path), key=lambda entry: entry.name)
        except OSError:
            continue
        for run in runs:
            if not run.name.startswith(".") and os.path.isfile(
                os.path.join(run.path, "config.json")
            ):
                yield RunDirectory(run.path)


def _changed(directory: RunDirectory) -> float:
    """Return when the run last wrote something."""
    # Not the directory's own time, which changes with checkpoints that are deleted, and not with
    # appends.
    times = []
    for path in (directory.metrics_path, directory.status_path, directory.config_path):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def summarize(directory: RunDirectory) -> RunSummary:
    """Return the status of the run in `directory`; damage is a part of it, and not raised."""
    try:
        status = directory.read_status()
        last = read_last(directory.metrics_path, Step)
    except LuthierError as error:
        return RunSummary(directory, Status(status="unknown"), str(error))
    # status.json is written by a thread every ten seconds and lags behind the last line of
    # metrics.jsonl; right after a kill that line alone is up to date.
    if last is not None and isinstance(last.event, Step):
        status = dataclasses.replace(
            status,
            step=max(status.step, last.step),
            metrics=last.event.values,
            updated=max(status.updated, last.time),
        )
    return RunSummary(directory, status)


def list_runs(root: str | os.PathLike[str] = "runs") -> list[RunSummary]:
    """Return every run under `root`, the one that was written to last at the end.

    Args:
      root: Where runs are kept; a missing directory has none.
    """
    return [summarize(run) for run in sorted(_directories(pathlib.Path(root)), key=_changed)]


def find(root: str | os.PathLike[str], reference: str | os.PathLike[str]) -> RunDirectory:
    """Return the run that is meant.

    Args:
      root: Where runs are kept.
      reference: A run's directory; its id, `name/id`, or the beginning of either; the name of an
        experiment that has one run; or `last` for the one that was written to last.

    Raises:
      UnknownReference: There is no such run; the message holds the nearest names.
      RunError: Several runs are meant.
    """
    # From the most explicit to the least: a folder, `last`, a whole id, the name of an experiment,
    # the beginning of either.
    # Whatever is ambiguous is refused with all that it may mean. An empty path would be the current
    # folder, hence `text and`.
    text = os.fspath(reference).rstrip("/")
    if text and (pathlib.Path(text) / "config.json").is_file():
        return RunDirectory(text)
    runs = list(_directories(pathlib.Path(root)))
    if text == LAST and runs:
        return max(runs, key=_changed)
    exact = [run for run in runs if text in (run.id, f"{run.name}/{run.id}")]
    begins = [
        run
        for run in runs
        if text and (run.id.startswith(text) or f"{run.name}/{run.id}".startswith(text))
    ]
    named = [run for run in runs if text == run.name]
    # What is whole wins over what it is the beginning of (`1a2b3c4d` and `1a2b3c4d-2`, the
    # experiments `c4` and `c4_large`). An empty text would be the beginning of all.
    found = exact or named or begins
    if len(found) == 1:
        return found[0]
    if found:
        names = sorted(f"{run.name}/{run.id}" for run in found)
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        remedy = "give more of the id, or `last`"
        raise RunError(Problem(f"{text!r} may mean {shown}", remedy=remedy))
    if not runs:
        raise UnknownReference(Problem(f"no run {text!r}: there are no runs in {os.fspath(root)}"))
    raise UnknownReference(
        Problem(
            f"no run {text!r} in {os.fspath(root)}",
            nearest=_nearest(text, runs),
            remedy="`luthier runs` lists them",
        )
    )


def _nearest(text: str, runs: list[RunDirectory]) -> list[str]:
    candidates: dict[str, str] = {}
    for run in runs:
        whole = f"{run.name}/{run.id}"
        # The beginning of an id, too: users abbreviate ids, and mistype the abbreviation.
        for key in (run.id, run.id[: len(text)], run.name, whole):
            candidates[key] = whole
    close = difflib.get_close_matches(text, candidates, n=3, cutoff=0.5)
    return list(dict.fromkeys(candidates[key] for key in close))
