"""Lists the runs under a root, selects among them, and finds a run by a reference."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

from luthier import project
from luthier.errors import (
    BadInput,
    LuthierError,
    Problem,
    RunError,
    UnknownReference,
    listed,
)
from luthier.facade import root_function
from luthier.records import object_storage
from luthier.records.directory import RunDirectory
from luthier.records.events import MFU, STEPS_PER_SECOND, TOKENS_PER_SECOND, Evaluation
from luthier.records.metrics_file import read_last
from luthier.records.run import Run, summarize
from luthier.storage import moves

LAST = "last"


def _directories(root: pathlib.Path) -> Iterator[RunDirectory]:
    """Yield the runs below a folder."""
    for path in _folders_with(moves.CONFIG, root):
        if not ((path / moves.NOTE).is_file() and _new_place(path)):
            yield RunDirectory(path)


def _folders_with(file: str, root: pathlib.Path) -> Iterator[pathlib.Path]:
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
            if not run.name.startswith(".") and os.path.isfile(os.path.join(run.path, file)):
                yield pathlib.Path(run.path)


def _new_place(path: pathlib.Path) -> str:
    """Return where a run is that has a note of a move; empty where it is here still."""
    # The run is here for readers as long as nobody can know that it is elsewhere.
    with contextlib.suppress(RunError):
        return moves.moved_to(path)
    return ""


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


@root_function("runs")
def list_runs(
    root: str | os.PathLike[str] = "runs",
    *,
    name: str | None = None,
    status: str | None = None,
    sort: str | None = None,
    best: int | None = None,
    last: int | None = None,
) -> list[Run]:
    """Return the runs under `root`, ordered by their last update, the latest at the end.

        runs = luthier.runs()
        best = luthier.runs(name="quickstart*", sort="held_out/loss", best=5)

    Args:
      root: Where runs are kept; a missing directory has none.
      name: Only runs of experiments with this name; `*` stands for any text.
      status: Only runs of this status, such as `finished`.
      sort: Order by the last value of this metric, the best run first, and runs without a value
        at the end: `loss` for one of the training steps, `held_out/loss` for one of an evaluation.
      best: The maximum number of runs, the best by `sort`.
      last: The maximum number of runs, the most recently updated ones.

    Returns:
      The runs, each with its directory, status and last metrics.

    Raises:
      BadInput: `best` without `sort`, or no run has the metric.

    Example:
      >>> import luthier
      >>> luthier.runs("an_empty_folder")
      []
    """
    root = project.records_folder(root)
    object_storage.refresh_all(root)
    runs = [summarize(run) for run in sorted(_directories(root), key=_changed)]
    if name is not None:
        runs = [run for run in runs if fnmatch.fnmatchcase(run.name, name)]
    if status is not None:
        runs = [run for run in runs if run.status == status]
    if last is not None:
        runs = runs[-last:] if last > 0 else []
    if best is not None and sort is None:
        raise BadInput(Problem("the best runs are by a metric", "best", remedy="give sort, too"))
    return runs if sort is None else _by(sort, runs)[:best]


def _by(metric: str, runs: Sequence[Run]) -> list[Run]:
    """Return runs by the last value of a metric, the best first."""
    values = {run.directory: run.value(metric) for run in runs}
    if runs and all(value is None for value in values.values()):
        known = list(dict.fromkeys(each for run in reversed(runs) for each in _metrics_of(run)))
        near = difflib.get_close_matches(metric, known)
        there = f"there are {listed(known)}" if known else "they have recorded nothing yet"
        what = f"no run has a metric {metric!r}"
        raise BadInput(Problem(what, nearest=near, remedy="" if near else there))
    sign = -1.0 if direction_of(metric, runs) == "higher" else 1.0

    def key(run: Run) -> tuple[bool, float]:
        value = values[run.directory]
        # Runs without a value come last, as do those whose loss is not a number.
        is_missing = value is None or math.isnan(value)
        return is_missing, 0.0 if value is None or math.isnan(value) else sign * value

    return sorted(runs, key=key)


def _metrics_of(run: Run) -> Iterator[str]:
    for evaluation, values in run.evaluations.items():
        yield from (f"{evaluation}/{name}" for name in values)
    yield from run.record.metrics


def direction_of(metric: str, runs: Sequence[Run]) -> str:
    """Return which way of a metric is better, as the newest run with it recorded it.

    Args:
      metric: `loss`, or `held_out/loss` for one of an evaluation.
      runs: The runs.

    Returns:
      `lower` or `higher`; `lower` where no run recorded it.

    Example:
      >>> from luthier.records import catalogue
      >>> catalogue.direction_of("held_out/loss", [])
      'lower'
    """
    if metric in (MFU, TOKENS_PER_SECOND, STEPS_PER_SECOND):
        return "higher"
    name = metric.rpartition("/")[2]
    for run in reversed(runs):
        try:
            found = read_last(run.directory.metrics_path, Evaluation)
        except LuthierError:
            continue
        if found is not None and isinstance(found.event, Evaluation) and name in found.event.better:
            return found.event.better[name]
    return "lower"


def find(root: str | os.PathLike[str], reference: str | os.PathLike[str]) -> RunDirectory:
    """Return the run that is meant.

    Args:
      root: Where runs are kept.
      reference: A run's directory or URL; its id, `name/id`, or the beginning of either; the name
        of an experiment that has one run; or `last` for the most recently updated one.

    Returns:
      The directory of the run.

    Raises:
      UnknownReference: There is no such run; the message holds the nearest names.
      RunError: Several runs are meant.
    """
    # From the most explicit to the least: a folder, `last`, a whole id, the name of an experiment,
    # the beginning of either.
    # A run that was moved elsewhere is found by the note that it left, where no other is meant.
    # Whatever is ambiguous is refused with all that it may mean. An empty path would be the current
    # folder, hence `text and`.
    text = os.fspath(reference).rstrip("/")
    if "://" in text:
        place = project.working_copy(text)
        home = object_storage.home_of(place)
        if home is not None:
            object_storage.refresh(place, home)
            if run := _run_of(text, place):
                return run
        folder = text.rpartition("/")[0]
        raise UnknownReference(
            Problem(f"{text} is not a run", remedy=f"`luthier runs {folder}` may list them")
        )
    if text and (run := _run_of(text, pathlib.Path(text))):
        return run
    root = project.records_folder(root)
    object_storage.refresh_all(root)
    runs = list(_directories(root))
    if text == LAST and runs:
        return max(runs, key=_changed)
    exact = [run for run in runs if text in (run.id, f"{run.name}/{run.id}")]
    begins = [run for run in runs if _is_meant(run, text)]
    named = [run for run in runs if text == run.name]
    # What is whole wins over what it is the beginning of (`1a2b3c4d` and `1a2b3c4d-2`, the
    # experiments `c4` and `c4_large`). An empty text would be the beginning of all.
    found = exact or named or begins
    if len(found) == 1:
        return found[0]
    if found:
        names = sorted(f"{run.name}/{run.id}" for run in found)
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        # Of one config under two names the ids are equal, and no more of them can be given.
        is_one_id = len({run.id for run in found}) == 1
        remedy = "write NAME/ID" if is_one_id else "give more of the id, or `last`"
        raise RunError(Problem(f"{text!r} may mean {shown}", remedy=remedy))
    moved = [
        path for path in _folders_with(moves.NOTE, root) if _is_meant(RunDirectory(path), text)
    ]
    if len(moved) == 1 and (run := _run_of(RunDirectory(moved[0]).address, moved[0])):
        return run
    if not runs:
        raise UnknownReference(Problem(f"no run {text!r}: there are no runs in {os.fspath(root)}"))
    raise UnknownReference(
        Problem(
            f"no run {text!r} in {os.fspath(root)}",
            nearest=_nearest(text, runs),
            remedy="`luthier runs` lists them",
        )
    )


def _is_meant(run: RunDirectory, text: str) -> bool:
    """Return whether a text is the beginning of an id, or of a name with an id."""
    return bool(text) and (run.id.startswith(text) or f"{run.name}/{run.id}".startswith(text))


def _run_of(place: str, folder: pathlib.Path) -> RunDirectory | None:
    """Return the run of a place, wherever it was moved to; None if there was none.

    Args:
      place: A path or URL.
      folder: The same, or the working copy of the URL.

    Raises:
      UnknownReference: It was moved, and is not at the new place any more.
    """
    is_there = (folder / moves.CONFIG).is_file()
    note = moves.note_of(folder if is_there else place)
    if note is None:
        return RunDirectory(folder) if is_there else None
    if new := _new_place(folder) if is_there else moves.moved_to(place):
        return find(project.RECORDS[0], new)
    if is_there:
        return RunDirectory(folder)
    what = f"{place} was moved to {note.destination}, which is not a run any more"
    raise UnknownReference(Problem(what, remedy="`luthier runs` lists the runs"))


def _nearest(text: str, runs: list[RunDirectory]) -> list[str]:
    candidates: dict[str, str] = {}
    for run in runs:
        whole = f"{run.name}/{run.id}"
        # The beginning of an id, too: users abbreviate ids, and mistype the abbreviation.
        for key in (run.id, run.id[: len(text)], run.name, whole):
            candidates[key] = whole
    close = difflib.get_close_matches(text, candidates, n=3, cutoff=0.5)
    return list(dict.fromkeys(candidates[key] for key in close))
