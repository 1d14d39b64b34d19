"""The protocol of engines, which start process groups on a site's machines and report their state.

One interface serves a single run on many hosts (`luthier train EXP --on slurm:nodes=8`: one process
group) and the device groups of a sweep (`luthier sweep STUDY --on slurm:nodes=2,slices=4`: a
process group for each; `luthier.launch.Slices` talks to their workers, whatever engine started
them).

An engine is a plain constructor and may be a node of a graph; its arguments are what a site has to
say, and `luthier.launch.settings` reads them from files and from the command line. So
its arguments are numbers, strings, and lists or mappings of these, all with defaults. To add an
engine: write the class, and name it under `[project.entry-points."luthier.engines"]` in the
pyproject.toml of your package.

Engines know processes and nothing of training: how workers of a sweep talk to their driver is in
`luthier.launch.link`, the same for all engines.

Every engine promises to the processes of a group:

- All of them run `python *command` in `working_directory`, and see the disk of `directory`.
- `environment` is set, and where the group has several processes `JAX_COORDINATOR_ADDRESS`,
  `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` are too, new ones for each start. JAX's own detection of
  clusters is not asked: it takes one port for all process groups of an allocation.
- A process sees the devices that are its own: `JAX_LOCAL_DEVICE_IDS`, where a host has several.
- SIGTERM comes first when machines are taken away; the processes save and leave with exit code 75,
  and the group is started again, with the same command. Exit code 0 is the end of it. After
  any other code it is started again at most `restarts` times.
- What each process prints is appended to a file of its own: `ProcessGroup.log_path`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from luthier.errors import BadInput, Problem
from luthier.storage import write_atomically
from luthier.terminal import cell

State = Literal["waiting", "running", "finished", "failed", "cancelled", "unknown"]
"""The state of a job: in the queue (also when it waits for a restart), on its machines, over
with exit code 0, over with another one, cancelled, or unknown."""

LIVE: tuple[State, ...] = ("waiting", "running")
"""The states that a job may still leave."""

LOGS = "logs"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources of one process group.

    Args:
      hosts: Machines.
      processes_per_host: Processes on each.
      devices: The devices of each process, as `--devices` takes it; None leaves it to JAX.
    """

    hosts: int = 1
    processes_per_host: int = 1
    devices: str | None = None

    @property
    def num_processes(self) -> int:
        """Processes of the group."""
        return self.hosts * self.processes_per_host


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """Processes that start, work and end together: those of one run, or the worker of one slice.

    Args:
      name: What people call it; a file name.
      command: The words after `python`, the same for all processes.
      directory: The folder of its logs, and of what its processes meet by; all hosts see it.
      working_directory: Where the processes run: the user's project.
      environment: Variables of the processes, beside those of the engine.
      restarts: How often it is started again after it died; a group that leaves with exit code 75
        (preempted, and saved) is always started again, and not counted.
    """

    name: str
    command: Sequence[str]
    directory: str
    working_directory: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    restarts: int = 0

    def log_path(self, rank: int | str) -> pathlib.Path:
        """Return the file that a process prints to.

        Args:
          rank: Which process, from 0; or what an engine replaces by that number.

        Returns:
          The path.
        """
        return pathlib.Path(self.directory, LOGS, f"{self.name}-rank-{rank}.log")


@dataclasses.dataclass(frozen=True)
class Job:
    """A process group that was submitted to an engine.

    Args:
      engine: The engine's name, as `--on` takes it.
      id: What the engine calls the job: `123`, `123_0`, a name.
      group: The group's name; several process groups may be in one job.
      directory: The group's folder.
      place: What the engine needs beside the id to find the job again: a namespace, an address.
    """

    engine: str
    id: str
    group: str
    directory: str
    place: str = ""


@dataclasses.dataclass(frozen=True)
class Standing:
    """The status of a job.

    Args:
      state: In words that are the same for all engines.
      detail: In the engine's own words: `PENDING (Priority)`.
      hosts: The machines that it runs on.
      restarts: How often it was started again.
    """

    state: State
    detail: str = ""
    hosts: Sequence[str] = ()
    restarts: int = 0


class Engine(Protocol):
    """Starts process groups on a site's machines; nothing is done before a method is called."""

    @property
    def name(self) -> str:
        """Its name for `--on`."""

    @property
    def layout(self) -> Resources:
        """The resources of one process group."""

    def files(self, groups: Sequence[ProcessGroup], directory: str) -> Mapping[str, str]:
        """Return the scripts and manifests that `submit` would write and use, by file name.

        A person can read them, and run them again by hand. Nothing is written here.

        Args:
          groups: What would be started.
          directory: Where the files would be; all hosts see it.

        Returns:
          Texts by file name.
        """

    def command(self, directory: str) -> Sequence[str]:
        """Return the command by which a person would submit the written files.

        Args:
          directory: Where the files are.

        Returns:
          The command and its arguments.
        """

    def submit(self, groups: Sequence[ProcessGroup], directory: str) -> Sequence[Job]:
        """Write the files, and submit the groups; return a job for each, in their order.

        Args:
          groups: What is started.
          directory: Where the files go; all hosts see it.

        Returns:
          A job for each group.

        Raises:
          RunError: The site rejects them; the message has its reason.
        """

    def standings(self, jobs: Sequence[Job]) -> Sequence[Standing]:
        """Return the status of jobs, in their order; `unknown` where the site does not answer.

        Args:
          jobs: Jobs of an engine of this name, perhaps submitted by another process.

        Returns:
          A status for each job.
        """

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Take jobs back; those that are over are left alone.

        Args:
          jobs: Jobs of an engine of this name, perhaps submitted by another process.

        Raises:
          RunError: The site refuses.
        """


def check_script(engine: str, groups: Sequence[ProcessGroup], directory: str) -> None:
    """Reject texts that a script cannot hold, such as a folder's name with a line break.

    Args:
      engine: The engine's name.
      groups: What the script starts.
      directory: Where the script goes.

    Raises:
      BadInput: A folder or a name has control characters; all problems are in it.
    """
    # Most texts are quoted in the script, but the header repeats some of them in comments, which a
    # line break would end: the rest of the name would be run as a command.
    texts = {"the folder of the run": directory, "the working directory": ""}
    names: dict[str, None] = {}
    for group in groups:
        texts |= {"the name": group.name, "the working directory": group.working_directory}
        # A dict for its order: problems are listed as the variables are.
        names |= dict.fromkeys(group.environment)
    remedy = "choose another one, without line ends and control characters"
    problems = [
        Problem(f"{what} has control characters: {text!r}", engine, remedy=remedy)
        for what, text in texts.items()
        if cell(text) != text
    ]
    problems += [
        Problem(f"{name!r} is not the name of a variable", engine)
        for name in names
        if not _VARIABLE.fullmatch(name)
    ]
    if problems:
        raise BadInput(problems)


def write_files(files: Mapping[str, str], directory: str) -> None:
    """Write the files that an engine submits, beside the folder of its logs.

    Args:
      files: What `Engine.files` returned.
      directory: Where they go; all hosts see it.

    Raises:
      RunError: The disk refuses.
    """
    place = pathlib.Path(directory)
    place.joinpath(LOGS).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomically(place / name, text)
