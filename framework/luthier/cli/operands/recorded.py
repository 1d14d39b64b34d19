"""Operands from records: runs, trials, files and offline folders of W&B, all read as data."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luthier import project
from luthier.cli import experiments
from luthier.cli.operands.operand import Operand, Record, ResultOperand, of_record
from luthier.errors import BadInput, LuthierError, Problem, RecordError, RunError, UnknownReference

if TYPE_CHECKING:
    from luthier.records import RunDirectory

STANDARD_INPUT = "-"
MIRRORED = "luthier"
"""The folder of luthier's files in a W&B run."""


@dataclasses.dataclass(frozen=True)
class RecordPlace:
    """The place of a record.

    Args:
      name: Its name on the command line.
      path: Its file; None for the standard input.
      run: The directory of its run; None if it is not the record of a run.
    """

    name: str
    path: Path | None
    run: RunDirectory | None = None


def find(name: str) -> RecordPlace | None:
    """Return the place of the record that a word names; None if it names something else.

    Args:
      name: A run's folder or `run:ID`; `study:NAME/7` or the folder of a trial; a `.json` file; the
        folder of a W&B run; or `-`.

    Raises:
      BadInput: There is no such run or trial, or the folder of W&B has no record.
    """
    # A trial is looked for before a run: its folder has a config.json as well, but no status.
    if name == STANDARD_INPUT:
        return RecordPlace(name, None)
    if name.startswith(experiments.STUDY):
        return RecordPlace(name, find_trial(name.removeprefix(experiments.STUDY)) / "config.json")
    if is_trial(Path(name)):
        return RecordPlace(name, Path(name) / "config.json")
    run = experiments.find_run(name)
    if run is not None:
        return RecordPlace(name, Path(run.config_path), run)
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        return RecordPlace(name, path)
    if path.is_dir():
        return _find_in_folder(name, path)
    return None


def find_all(word: str) -> list[RecordPlace] | None:
    """Return the places of all trials of a study, the base first; None for other words.

    Args:
      word: `study:NAME`.

    Raises:
      UnknownReference: There is no such study, or it has less than two trials.
    """
    name = word.removeprefix(experiments.STUDY)
    if name == word or name.rpartition("/")[2].isdecimal():
        return None
    return [
        RecordPlace(f"{word}/{int(folder.name)}", folder / "config.json") for folder in every(name)
    ]


def read(place: RecordPlace, packages: Sequence[str] = ()) -> Operand:
    """Return the operand of a record.

    Args:
      place: The place of the record.
      packages: The user's packages that it may name.

    Raises:
      BadInput: It cannot be read, or is not a record.
    """
    if place.path is None:
        return of_record("standard input", Record(sys.stdin.read()), packages=packages)
    if place.run is not None:
        return _read_run(place.name, place.run, packages)
    folder = place.path.parent
    record = _record(place.path)
    if is_trial(folder):
        about = describe(folder)
        return of_record(place.name, record, packages=packages, path=folder, **about)
    return of_record(place.name, record, packages=packages, path=place.path)


def read_run(name: str, directory: str, packages: Sequence[str] = ()) -> Operand:
    """Return the operand of a run.

    Args:
      name: The run, as `luthier runs` lists it.
      directory: The folder of the runs.
      packages: The user's packages that it may name.

    Raises:
      BadInput: There is no such run, or it cannot be read.
    """
    from luthier import records

    run = records.find(directory, name)
    return read(RecordPlace(f"{run.name}/{run.id}", run.config_path, run), packages)


def _beside(config: Path, kind: str) -> str:
    """Return the JSON of a file beside a record; empty if it is missing or damaged."""
    # Only the origins or the old defaults are lost then; the graph can still be compared. Deeply
    # nested JSON raises RecursionError, not ValueError.
    try:
        text = config.with_name(f"config.{kind}.json").read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError, RecursionError):
        return ""
    return text


def _record(config: Path, run: str = "") -> Record:
    text = _text(config)
    return Record(text, _beside(config, "history"), _beside(config, "values"), run, config)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise RecordError(Problem(f"cannot read {path}: {reason}")) from error


def _read_run(title: str, run: RunDirectory, packages: Sequence[str]) -> Operand:
    """Return the operand of a run, with its status and its last evaluation."""
    # The values come from status.json, which is small; whether lower or higher is better is in the
    # last evaluation of the metrics file, which is read from its end. Either may be missing or
    # damaged: the comparison of the graphs works without them.
    from luthier.records.events import Evaluation
    from luthier.records.metrics_file import read_last

    name = f"{run.name}/{run.id}"
    record = _record(run.config_path, name)
    state, objectives = "", []
    with contextlib.suppress(LuthierError):
        status = run.read_status()
        state = f"{status.status} at step {status.step:,}"
        better: dict[str, str] = {}
        last = read_last(run.metrics_path, Evaluation)
        if last is not None and isinstance(last.event, Evaluation):
            better = dict(last.event.better)
        objectives = [
            ResultOperand(f"{evaluation}/{metric}", value, better.get(metric, ""))
            for evaluation, values in status.evaluations.items()
            for metric, value in values.items()
            # NaN and infinities are strings in status.json, and cannot be compared.
            if isinstance(value, int | float)
        ]
    return of_record(
        title,
        record,
        detail=f"run {name}, {state}" if state else f"run {name}",
        packages=packages,
        metrics_path=run.metrics_path,
        path=run.path,
        state=state,
        objectives=objectives,
    )


def _find_in_folder(name: str, path: Path) -> RecordPlace | None:
    """Return the record of a W&B folder; None if the folder is not one of W&B."""
    # A mirrored run has copies of luthier's files in files/luthier. If they are missing, the folder
    # of an offline run still lies below that of luthier's run, which has the record itself.
    is_mirror = (path / "files").is_dir() and (
        path.name.startswith(("offline-run-", "run-", "latest-run")) or any(path.glob("*.wandb"))
    )
    if not is_mirror:
        if any((path / part).exists() for part in ("metrics.jsonl", "status.json")):
            raise UnknownReference(Problem(f"{name} is the folder of a run without config.json"))
        return None
    above = path.resolve().parents[1]
    for folder in (path / "files" / MIRRORED, above):
        if (folder / "config.json").is_file():
            return RecordPlace(name, folder / "config.json")
    remedy = "give the folder of the run, or its config.json"
    what = f"{name} has no recorded config: there is no files/{MIRRORED}/config.json"
    raise BadInput(Problem(what, remedy=remedy))


# Trials of studies as operands, read from their files without building the study.

STUDIES = "studies"
"""The folder in which studies are looked up."""


def is_trial(folder: Path) -> bool:
    """Return whether a folder is that of a trial."""
    return (folder / "assignment.json").is_file() and (folder / "config.json").is_file()


def find_trial(reference: str) -> Path:
    """Return the folder of a trial.

    Args:
      reference: `NAME/7`; NAME may also be the folder of the study.

    Raises:
      UnknownReference: There is no such study or trial.
    """
    name, _, number = reference.rpartition("/")
    if not name or not number.isdecimal():
        remedy = "write study:NAME/7"
        raise UnknownReference(Problem(f"{reference!r} is not a trial of a study", remedy=remedy))
    study = _find_study(name)
    folder = study / "trials" / f"{int(number):04d}"
    if not is_trial(folder):
        there = _numbers(study)
        remedy = f"it has the trials 0 to {there[-1]}" if there else "it has no trials yet"
        raise UnknownReference(Problem(f"{name} has no trial {number}", remedy=remedy))
    return folder


def every(name: str) -> list[Path]:
    """Return the folders of all trials of a study, in the order of their numbers.

    Args:
      name: The name of the study, or its folder.

    Raises:
      UnknownReference: There is no such study, or it has less than two trials.
    """
    study = _find_study(name)
    folders = [study / "trials" / f"{number:04d}" for number in _numbers(study)]
    found = [folder for folder in folders if is_trial(folder)]
    if len(found) < 2:
        what = (
            f"the study {name} has only one trial yet"
            if found
            else f"the study {name} has no trials yet"
        )
        raise UnknownReference(Problem(what))
    return found


def describe(folder: Path) -> dict[str, Any]:
    """Return the arguments of `Operand` about a trial, beside its graph.

    Args:
      folder: The folder of the trial.

    Raises:
      VersionError: A file was written by a newer luthier.
    """
    # Whatever can be read is shown: a trial that a killed driver left behind has no outcome, and
    # its assignment may be damaged. Only files of a newer version are an error.
    from luthier.storage import read_json

    overrides: Sequence[str] = ()
    state = ""
    objectives: list[ResultOperand] = []
    from luthier.study.driver.directory import ASSIGNMENT_FORMAT

    with contextlib.suppress(RunError, AttributeError):
        assignment = read_json(folder / "assignment.json", default={}, newest=ASSIGNMENT_FORMAT)
        overrides = assignment.get("words", ())
    detail = " ".join(map(str, overrides)) or "the base"
    with contextlib.suppress(RunError, OSError, ValueError, KeyError, TypeError):
        state, objectives = _outcome(folder)
    from luthier.records import object_storage

    run = folder / "run"
    if (home := object_storage.home_of(run)) is not None:
        object_storage.refresh(run, home)
    metrics = run / "metrics.jsonl"
    return {
        "detail": f"{detail}, {state}" if state else detail,
        "metrics_path": metrics if metrics.is_file() else None,
        "state": state,
        "objectives": objectives,
    }


def _outcome(folder: Path) -> tuple[str, list[ResultOperand]]:
    """Return the outcome of a trial and the values of its objectives, from the study's files."""
    from luthier.study.driver.mirror import read_facts

    study = folder.parents[1]
    facts = read_facts(study)
    journal = study / "journal.jsonl"
    ended = _ended(journal, journal.stat().st_size).get(int(folder.name), {})
    values = ended.get("values") or [None] * len(facts["metrics"])
    return ended.get("outcome", ""), [
        ResultOperand(name, value if isinstance(value, int | float) else None, direction)
        for name, value, direction in zip(
            facts["metrics"], values, facts["directions"], strict=True
        )
    ]


@functools.lru_cache(maxsize=8)
def _ended(journal: Path, size: int) -> dict[int, dict[str, Any]]:
    """Return the last `ended` line of every trial in a journal of a certain size."""
    # Cached, since `study:NAME` asks for every trial of one journal. A journal only grows, so its
    # size distinguishes its states.
    from luthier.study.driver.journal import read_journal

    return {line["trial"]: line for line in read_journal(journal) if line["kind"] == "ended"}


def _numbers(study: Path) -> list[int]:
    return sorted(int(entry.name) for entry in (study / "trials").glob("[0-9]*"))


def _find_study(name: str) -> Path:
    for path in (Path(name), project.records_folder(STUDIES) / name):
        if "://" not in name and (path / "study.json").is_file():
            return path
    from luthier.study.driver.directory import find_study  # which knows the nearest names

    return find_study(name).path
