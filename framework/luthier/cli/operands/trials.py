"""Trials of studies as operands: found and read without the code that drives studies."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from luthier.cli.operands.operand import Objective
from luthier.errors import Problem, RunError, UnknownReference

STUDIES = "studies"
"""Where studies are looked for."""


def is_trial(folder: Path) -> bool:
    """Return whether a folder is that of a trial."""
    return (folder / "assignment.json").is_file() and (folder / "config.json").is_file()


def find(reference: str) -> Path:
    """Return the folder of a trial.

    Args:
      reference: `NAME/7`; for NAME, the folder of the study is right as well.

    Raises:
      UnknownReference: There is no such study or trial.
    """
    name, _, number = reference.rpartition("/")
    if not name or not number.isdigit():
        remedy = "write study:NAME/7"
        raise UnknownReference(Problem(f"{reference!r} names no trial of a study", remedy=remedy))
    study = _find_study(name)
    folder = study / "trials" / f"{int(number):04d}"
    if not is_trial(folder):
        there = _numbers(study)
        remedy = f"its trials go from 0 to {there[-1]}" if there else "it has none as yet"
        raise UnknownReference(Problem(f"{name} has no trial {number}", remedy=remedy))
    return folder


def every(name: str) -> list[Path]:
    """Return the folders of all trials of a study, in the order of their numbers.

    Args:
      name: The name of the study, or its folder.

    Raises:
      UnknownReference: There is no such study, or it has not two trials.
    """
    study = _find_study(name)
    folders = [study / "trials" / f"{number:04d}" for number in _numbers(study)]
    found = [folder for folder in folders if is_trial(folder)]
    if len(found) < 2:
        what = f"the study {name} has {'one trial' if found else 'no trials'} as yet"
        raise UnknownReference(Problem(what))
    return found


def describe(folder: Path) -> dict[str, Any]:
    """Return what an operand is told of a trial beside its graph.

    Args:
      folder: The folder of the trial.

    Raises:
      VersionError: A later luthier wrote what is told.
    """
    from luthier.records.files import read_json

    words: Sequence[str] = ()
    state = ""
    objectives: list[Objective] = []
    from luthier.sweep.driver.directory import ASSIGNMENT_FORMAT

    with contextlib.suppress(RunError, AttributeError):
        assignment = read_json(folder / "assignment.json", default={}, newest=ASSIGNMENT_FORMAT)
        words = assignment.get("words", ())
    detail = " ".join(map(str, words)) or "the base"
    with contextlib.suppress(RunError, OSError, ValueError, KeyError, TypeError):
        state, objectives = _outcome(folder)
    metrics = folder / "run" / "metrics.jsonl"
    return {
        "detail": f"{detail}, {state}" if state else detail,
        "metrics_path": metrics if metrics.is_file() else None,
        "state": state,
        "objectives": objectives,
    }


def _outcome(folder: Path) -> tuple[str, list[Objective]]:
    """Return how a trial ended, and the values of its objectives, as the study's files tell."""
    from luthier.sweep.driver.mirror import read_facts

    study = folder.parents[1]
    facts = read_facts(study)
    journal = study / "journal.jsonl"
    ended = _ended(journal, journal.stat().st_size).get(int(folder.name), {})
    values = ended.get("values") or [None] * len(facts["metrics"])
    return ended.get("outcome", ""), [
        Objective(name, value if isinstance(value, int | float) else None, direction)
        for name, value, direction in zip(
            facts["metrics"], values, facts["directions"], strict=True
        )
    ]


@functools.lru_cache(maxsize=8)
def _ended(journal: Path, size: int) -> dict[int, dict[str, Any]]:
    """Return the last line of every trial that ended; `size` tells one state from another."""
    from luthier.sweep.driver.journal import read_journal

    return {line["trial"]: line for line in read_journal(journal) if line["kind"] == "ended"}


def _numbers(study: Path) -> list[int]:
    return sorted(int(entry.name) for entry in (study / "trials").glob("[0-9]*"))


def _find_study(name: str) -> Path:
    for path in (Path(name), Path(STUDIES, name)):
        if (path / "study.json").is_file():
            return path
    from luthier.sweep.driver.directory import find_study  # which knows the nearest names

    return find_study(name).path
