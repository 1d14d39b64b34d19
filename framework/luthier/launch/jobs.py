"""The record of a launch: its folder, and its jobs."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier.launch.engine import LOGS, Engine, Job
from luthier.records.redaction import write_json
from luthier.storage import read_json

FOLDER = "launch"
JOBS = "jobs.json"
_RENAMED = {"gang": "group", "gangs_per_job": "groups_per_job"}


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch, as it is kept.

    Args:
      path: Its folder.
      engine: The engine's name.
      values: The arguments that the engine was made with.
      command: What a person wrote.
      settings: Each setting of the engine and who set it, in lines.
      jobs: The jobs that came of it.
      at: When, in seconds since 1970.
    """

    path: pathlib.Path
    engine: str
    values: Mapping[str, Any]
    command: str
    settings: Sequence[str]
    jobs: Sequence[Job]
    at: float

    @property
    def of(self) -> pathlib.Path:
        """The directory of the run or the study that was launched."""
        return self.path.parents[1]


def new_folder(directory: pathlib.Path) -> pathlib.Path:
    """Make the folder of a launch in the directory of a run or a study, and return it.

    Args:
      directory: The directory.

    Returns:
      The folder `launch/N`, N being the next number.

    Example:
      >>> import pathlib
      >>> from luthier import launch
      >>> launch.new_folder(pathlib.Path(".")).name
      '1'
    """
    root = directory / FOLDER
    root.mkdir(exist_ok=True)
    # `mkdir` both chooses and reserves: two launches at the same moment get two numbers, also on a
    # network disk.
    number = 1
    while True:
        with contextlib.suppress(FileExistsError):
            (root / str(number)).mkdir()
            break
        number += 1
    (root / str(number) / LOGS).mkdir()
    return root / str(number)


def write_launch(launch: Launch) -> None:
    """Write the record of a launch into its folder.

    Args:
      launch: The launch.
    """
    fields: dict[str, Any] = {
        "engine": launch.engine,
        "values": dict(launch.values),
        "command": launch.command,
        "settings": list(launch.settings),
        "jobs": [dataclasses.asdict(job) for job in launch.jobs],
        "at": launch.at,
    }
    write_json(launch.path / JOBS, fields)


def make_launch(
    path: pathlib.Path, engine: Engine, command: str, settings: Sequence[str], jobs: Sequence[Job]
) -> Launch:
    """Record a launch now, and return it.

    Args:
      path: Its folder.
      engine: The engine.
      command: What a person wrote.
      settings: Each setting of the engine and who set it, in lines.
      jobs: The jobs that came of it.

    Returns:
      The launch, as it was written.
    """
    values: dict[str, Any] = dataclasses.asdict(engine)  # type: ignore[call-overload]
    made = Launch(path, engine.name, values, command, tuple(settings), tuple(jobs), time.time())
    write_launch(made)
    return made


def read_launch(path: pathlib.Path) -> Launch:
    """Return the launch that is kept in a folder.

    Args:
      path: The folder.
    """
    fields = read_json(path / JOBS)
    # Before process groups were called that, a job named its `gang`.
    named = [
        {_RENAMED.get(key, key): value for key, value in job.items()} for job in fields["jobs"]
    ]
    jobs = tuple(Job(**job) for job in named)
    del fields["jobs"]
    fields["values"] = {_RENAMED.get(key, key): x for key, x in fields["values"].items()}
    return Launch(path, jobs=jobs, **fields)


def launches(directory: pathlib.Path) -> list[Launch]:
    """Return the launches of a run or a study, the oldest first.

    Args:
      directory: Its directory.

    Returns:
      The launches; none where there were none.

    Example:
      >>> import pathlib
      >>> from luthier import launch
      >>> launch.launches(pathlib.Path("."))
      []
    """
    return sorted(_find(directory), key=lambda launch: launch.at)


def _find(directory: pathlib.Path) -> Iterator[Launch]:
    for path in (directory / FOLDER).glob(f"*/{JOBS}"):
        yield read_launch(path.parent)
