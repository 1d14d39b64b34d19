"""The engine over SLURM."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from luthier.errors import BadInput, Problem
from luthier.launch.engine import Gang, Job, Layout, Standing, check_script, write_files
from luthier.launch.slurm import queue, script

SCRIPT = "job.sh"
GRACE_SECONDS = 120
"""How long before the end of its time a job is told to save."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slurm:
    """Starts gangs with sbatch and srun.

    The script that it submits is kept beside the logs. A job that is preempted, or whose time is
    over, saves and goes back to the queue; so `time_limit` is that of one piece of a run.

    Args:
      nodes: Machines of each gang.
      processes_per_node: Processes on each; 1 drives all devices of its machine.
      devices: What each process runs on, as `--devices` takes it; None leaves it to JAX.
      gpus_per_node: GPUs of each gang on each of its machines; shared by its processes there.
      cpus_per_process: Cores of each process.
      memory: Memory on each node, as `64G`.
      time_limit: As sbatch takes it: `2-00:00:00`; None means the partition's.
      partition: Where it runs; None means the site's default.
      account: Who pays.
      gangs_per_job: Gangs that share one allocation, each in a step of its own; jobs of equal
        allocations make an array.
      options: Further long options of sbatch by name, without dashes: `{"qos": "high"}`.
      setup: Lines of shell before everything else: `["module load cuda"]`.
    """

    nodes: int = 1
    processes_per_node: int = 1
    devices: str | None = None
    gpus_per_node: int | None = None
    cpus_per_process: int | None = None
    memory: str | None = None
    time_limit: str | None = None
    partition: str | None = None
    account: str | None = None
    gangs_per_job: int = 1
    options: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    setup: Sequence[str] = ()

    name = "slurm"

    def __post_init__(self) -> None:
        for field in ("nodes", "processes_per_node", "gangs_per_job"):
            if getattr(self, field) < 1:
                raise BadInput(Problem(f"{field} is less than 1", "slurm"))
        if (self.gpus_per_node or 0) % self.processes_per_node:
            what = f"{self.gpus_per_node} GPUs cannot be shared by {self.processes_per_node}"
            raise BadInput(Problem(f"{what} processes", "slurm"))

    @property
    def layout(self) -> Layout:
        """What one gang gets."""
        return Layout(self.nodes, self.processes_per_node, self.devices)

    def files(self, gangs: Sequence[Gang], directory: str) -> Mapping[str, str]:
        """Return the script by its name.

        Args:
          gangs: What would be started.
          directory: Where the script would be.
        """
        check_script(self.name, gangs, directory)
        share = (self.gpus_per_node or 0) // self.processes_per_node
        text = script.render(
            gangs,
            directory,
            self.layout,
            self._job_options(),
            self._step_options(),
            gangs_per_job=self.gangs_per_job,
            devices_per_process=share if self.processes_per_node > 1 else 0,
            setup=self.setup,
            notes=[],
        )
        return {SCRIPT: text}

    def command(self, directory: str) -> Sequence[str]:
        """Return the words that submit the script.

        Args:
          directory: Where it is.
        """
        return ["sbatch", "--parsable", f"{directory}/{SCRIPT}"]

    def submit(self, gangs: Sequence[Gang], directory: str) -> Sequence[Job]:
        """Write the script, and submit it.

        Args:
          gangs: What is started.
          directory: Where the script goes.

        Raises:
          RunError: sbatch refuses.
        """
        write_files(self.files(gangs, directory), directory)
        told = queue.call(*self.command(directory), what=f"submit {SCRIPT}")
        id = queue.submitted(told)
        is_array = math.ceil(len(gangs) / self.gangs_per_job) > 1
        return [
            Job(
                self.name,
                f"{id}_{index // self.gangs_per_job}" if is_array else id,
                gang.name,
                directory,
            )
            for index, gang in enumerate(gangs)
        ]

    def standings(self, jobs: Sequence[Job]) -> Sequence[Standing]:
        """Return how jobs stand, in their order.

        Args:
          jobs: Jobs of SLURM.
        """
        return queue.standings([job.id for job in jobs])

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Take jobs back.

        Args:
          jobs: Jobs of SLURM.

        Raises:
          RunError: scancel refuses.
        """
        ids = dict.fromkeys(job.id for job in jobs)
        if ids:
            queue.call("scancel", *ids, what=f"cancel {', '.join(ids)}")

    def _job_options(self) -> dict[str, str | int]:
        given = {
            "gpus-per-node": None if self.gpus_per_node is None else self.gpus_per_node,
            "cpus-per-task": self.cpus_per_process,
            "mem": self.memory,
            "time": self.time_limit,
            "partition": self.partition,
            "account": self.account,
            "signal": f"TERM@{GRACE_SECONDS}" if self.time_limit else None,
        }
        return {name: v for name, v in given.items() if v is not None} | dict(self.options)

    def _step_options(self) -> dict[str, str | int]:
        given = {"gpus-per-node": self.gpus_per_node, "cpus-per-task": self.cpus_per_process}
        return {name: value for name, value in given.items() if value is not None}
