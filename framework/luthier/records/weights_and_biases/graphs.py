"""What W&B is given of a run's graph: the record, and what differs from the run that it is of.

All of it is read as data; nothing that a record names is imported.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
from typing import Any

from luthier.errors import LuthierError
from luthier.records.directory import RunDirectory

FOLDER = "luthier"
"""The folder of our files among those of a W&B run."""
_FILES = ("config.json", "config.history.json", "config.values.json")
_RESTORED_FROM = "luthier.checkpoint.FromRun"


@dataclasses.dataclass(frozen=True)
class Parent:
    """What a run was made of.

    Args:
      title: What it is called.
      folder: Where its config.json is.
    """

    title: str
    folder: pathlib.Path


def keep_graph(wandb_run: Any, run: RunDirectory) -> None:
    """Put the record of a run's graph among the files of its W&B run.

    Args:
      wandb_run: The W&B run.
      run: The run.
    """
    root = pathlib.Path(wandb_run.dir)
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        if (run.path / name).is_file():
            shutil.copyfile(run.path / name, root / FOLDER / name)
    wandb_run.save(os.path.join(root, FOLDER, "*.json"), base_path=str(root), policy="now")


def parent_of(run: RunDirectory) -> Parent | None:
    """Return what a run was made of: the run that it restored, or the base of its study.

    Args:
      run: The run.
    """
    found = _restored(run) or _base(run)
    return found if found is not None and (found.folder / "config.json").is_file() else None


def log_difference(wandb: Any, wandb_run: Any, run: RunDirectory) -> None:
    """Log what differs between a run and its parent as an artifact of type `diff`.

    Args:
      wandb: The wandb module.
      wandb_run: The W&B run.
      run: The run; without a parent, or with one that cannot be read, nothing is logged.
    """
    parent = parent_of(run)
    if parent is None:
        return
    from luthier.graph import compare

    try:
        before = _document(parent.title, parent.folder)
        comparison = compare.compare(before, _document(f"{run.name}/{run.id}", run.path))
    except (LuthierError, OSError):
        return
    artifact = wandb.Artifact(
        f"diff-{wandb_run.id}",
        type="diff",
        description=f"what differs from {parent.title}",
        metadata={"parent": parent.title, "changes": len(comparison.changes)},
    )
    lines = [f"{change.path or 'the root'}: {change.told}" for change in comparison.changes]
    for name, text in (
        ("diff.json", json.dumps(comparison.as_json(), indent=1)),
        ("diff.txt", "\n".join(lines) or "nothing differs"),
    ):
        with artifact.new_file(name) as file:
            file.write(text + "\n")
    wandb_run.log_artifact(artifact)


def _document(title: str, folder: pathlib.Path) -> Any:
    from luthier.graph import compare

    texts = {}
    for kind in ("history", "values"):
        path = folder / f"config.{kind}.json"
        texts[kind] = path.read_text(encoding="utf-8") if path.is_file() else ""
    return compare.read((folder / "config.json").read_text(encoding="utf-8"), title, **texts)


def _restored(run: RunDirectory) -> Parent | None:
    """Return the run whose weights a run began with."""
    try:
        data = json.loads(run.read_config())
        restore = data["graph"]["arguments"]["restore"]
        if restore["config"] != _RESTORED_FROM:
            return None
        folder = pathlib.Path(restore["arguments"]["directory"]).expanduser()
    except (LuthierError, ValueError, KeyError, TypeError):
        return None
    found = RunDirectory(folder)
    return Parent(f"{found.name}/{found.id}", folder)


def _base(run: RunDirectory) -> Parent | None:
    """Return the base of the study of whose trial a run is: trial 0."""
    trial = run.path.resolve().parent
    study = trial.parent.parent
    is_trial = trial.parent.name == "trials" and (study / "study.json").is_file()
    if not is_trial or not trial.name.isdigit() or int(trial.name) == 0:
        return None
    return Parent(f"the base of {study.name}", trial.with_name("0" * len(trial.name)))
