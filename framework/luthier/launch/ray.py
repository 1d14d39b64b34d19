"""Ray: process groups on the nodes of a Ray cluster, and on slices of TPUs."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput, Problem, RunError
from luthier.launch.engine import (
    Job,
    ProcessGroup,
    Resources,
    Standing,
    State,
    check_script,
    write_files,
)
from luthier.launch.ray_actors import Keeper, RayRequest, num_chips

# The engine over a Ray cluster.
#
# An actor of Ray keeps each group: it reserves nodes, or a slice of TPUs, starts a process on each
# and starts them again elsewhere when a node is lost. Python, luthier and the user's project must
# be the same on all nodes, and all must see the disk of runs.

GROUPS = "groups.json"
NAMESPACE = "luthier"
ANSWER_SECONDS = 20.0
_TOPOLOGY = re.compile(r"\d+(x\d+)+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ray:
    """Starts process groups on a Ray cluster.

    Args:
      address: Of the cluster, as `ray.init` takes it; `auto` is the one that this node belongs to.
      hosts: Nodes of each process group.
      processes_per_host: Processes on each node.
      devices: What each process runs on, as `--devices` takes it.
      cpus: CPUs of each process.
      gpus: GPUs of each process.
      resources: Further resources of each process, by the names that Ray has for them.
      topology: The slice of TPUs of each process group, as `4x4`; `hosts` follows from it.
      accelerator: The generation of its TPUs, as `v5e`.
      chips_per_host: TPU chips of each host of the slice.
    """

    address: str = "auto"
    hosts: int = 1
    processes_per_host: int = 1
    devices: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    topology: str = ""
    accelerator: str = ""
    chips_per_host: int = 4

    name = "ray"

    def __post_init__(self) -> None:
        problems = [
            Problem(f"{field} is less than 1", self.name)
            for field in ("hosts", "processes_per_host", "chips_per_host")
            if getattr(self, field) < 1
        ]
        if self.topology and not _TOPOLOGY.fullmatch(self.topology):
            remedy = "write it as 4x4"
            problems.append(
                Problem(f"cannot read topology {self.topology!r}", self.name, "", remedy)
            )
        elif self.topology and num_chips(self.topology) % max(1, self.chips_per_host):
            what = f"hosts of {self.chips_per_host} chips do not make up {self.topology}"
            problems.append(Problem(what, self.name, remedy="set chips_per_host"))
        if self.topology and not self.accelerator:
            remedy = "set the type of TPU: accelerator=v5e"
            problems.append(Problem("topology needs accelerator", self.name, remedy=remedy))
        if problems:
            raise BadInput(problems)

    @property
    def layout(self) -> Resources:
        """The resources of one process group."""
        request = self._request
        return Resources(request.num_hosts, self.processes_per_host, self.devices)

    @property
    def _request(self) -> RayRequest:
        # The request is what of these settings the actors need; its fields have the same names.
        fields = [field.name for field in dataclasses.fields(RayRequest)]
        return RayRequest(**{name: getattr(self, name) for name in fields})

    def files(self, groups: Sequence[ProcessGroup], directory: str) -> Mapping[str, str]:
        """Return the file with the groups and their requests, by its name.

        Args:
          groups: What would be started.
          directory: Where the file would be.

        Returns:
          Texts by file name.
        """
        check_script(self.name, groups, directory)
        contents = {
            "address": self.address,
            "request": dataclasses.asdict(self._request),
            "groups": [dataclasses.asdict(group) for group in groups],
        }
        return {GROUPS: json.dumps(contents, indent=1) + "\n"}

    def command(self, directory: str) -> Sequence[str]:
        """Return the command that submits the written process groups to the cluster.

        Args:
          directory: Where the file is.

        Returns:
          The command and its arguments.
        """
        return ["python", "-m", "luthier.launch.ray", f"{directory}/{GROUPS}"]

    def submit(self, groups: Sequence[ProcessGroup], directory: str) -> Sequence[Job]:
        """Write the file, and submit the groups to the cluster.

        Args:
          groups: What is started.
          directory: Where the file goes.

        Returns:
          A job for each group.

        Raises:
          RunError: Ray is not installed, or its cluster does not answer.
        """
        write_files(self.files(groups, directory), directory)
        return submit_file(pathlib.Path(directory, GROUPS))

    def standings(self, jobs: Sequence[Job]) -> Sequence[Standing]:
        """Return the status of jobs, in their order; `unknown` where the cluster does not answer.

        Args:
          jobs: Jobs of this engine.

        Returns:
          A status for each job.
        """
        return [_standing(job) for job in jobs]

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs; their processes save first.

        Args:
          jobs: Jobs of this engine.

        Raises:
          RunError: The cluster does not answer.
        """
        for job in jobs:
            if (keeper := _keeper(job)) is not None:
                keeper.cancel.remote()


def submit_file(path: pathlib.Path) -> list[Job]:
    """Submit written process groups to their cluster.

    Args:
      path: The file, as `Ray.files` has it.

    Raises:
      RunError: Ray is not installed, or its cluster does not answer.
    """
    contents = json.loads(path.read_text(encoding="utf-8"))
    ray = connect(contents["address"])
    jobs = []
    for fields in contents["groups"]:
        group = ProcessGroup(**fields)
        # Of an earlier start in the same folder: its file would make the new job look finished.
        _exit_path(group.directory, group.name).unlink(missing_ok=True)
        # Names of detached actors are unique in a namespace, also those of actors that still end.
        id = f"{group.name}-{os.urandom(4).hex()}"
        ray.remote(Keeper).options(
            name=id,
            namespace=NAMESPACE,
            lifetime="detached",
            # The supervisor takes no resources: it must run, and be found, while the cluster is
            # full.
            num_cpus=0,
            # A supervisor whose node is lost is started again elsewhere, and `Keeper.__init__` runs
            # again.
            max_restarts=-1,
            max_concurrency=4,
        ).remote(fields, contents["request"])
        jobs.append(Job(Ray.name, id, group.name, group.directory, contents["address"]))
    return jobs


def connect(address: str) -> Any:
    """Return Ray, connected to a cluster; a connection that there is already stays.

    Args:
      address: As `ray.init` takes it.

    Raises:
      RunError: Ray is not installed, or the cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        remedy = "pip install 'luthier[ray]'"
        raise RunError(
            Problem("the engine ray needs Ray, which is not installed", remedy=remedy)
        ) from error
    # A process has one connection: a program that has its own, such as a test, keeps it.
    if not ray.is_initialized():
        try:
            # Quiet: each process has a log file of its own, and failures are raised here.
            ray.init(
                address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error"
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            what = f"the Ray cluster at {address} does not answer: {reason}"
            remedy = f"start it with {shlex.join(['ray', 'start', '--head'])}, or set ray.address"
            raise RunError(Problem(what, remedy=remedy)) from error
    return ray


def _keeper(job: Job) -> Any:
    ray = connect(job.place)
    try:
        return ray.get_actor(job.id, namespace=NAMESPACE)
    except ValueError:
        return None


def _standing(job: Job) -> Standing:
    # The file before the cluster: it stays when the actor, or the whole cluster, is gone.
    if (over := _over(job)) is not None:
        return over
    try:
        keeper = _keeper(job)
    except RunError as error:
        return Standing("unknown", str(error))
    if keeper is None:
        # It ends right after it has written how the group ended.
        return _over(job) or Standing("failed", "its supervisor actor is gone")
    import ray

    try:
        fields = ray.get(keeper.standing.remote(), timeout=ANSWER_SECONDS)
    except (ray.exceptions.RayError, TimeoutError):
        return _over(job) or Standing("unknown", "its supervisor actor does not answer")
    return Standing(**fields)


def _over(job: Job) -> Standing | None:
    try:
        code, _, word = _exit_path(job.directory, job.group).read_text().partition(" ")
    except FileNotFoundError:
        return None
    state: State = "finished" if code == "0" else "failed"
    return Standing("cancelled" if word else state, f"exit code {code}")


def _exit_path(directory: str, name: str) -> pathlib.Path:
    return pathlib.Path(directory, f"{name}.exit")


# Hand groups that were written to a file to their Ray cluster, as a person does it again by hand.
#
# python -m luthier.launch.ray FOLDER/groups.json


def main(words: Sequence[str]) -> int:
    """Submit, and print the name of each job; return the exit code.

    Args:
      words: The file.
    """
    if len(words) != 1:
        print("usage: python -m luthier.launch.ray FOLDER/groups.json", file=sys.stderr)
        return EXIT_BAD_INPUT
    try:
        jobs = submit_file(pathlib.Path(words[0]))
    except RunError as error:
        print(f"luthier: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(job.id for job in jobs))
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
