"""Cloud TPU slices, reached by ssh: the engine writes the command, and a person runs it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

from luthier.errors import Problem, RunError
from luthier.launch.engine import Job, ProcessGroup, Resources, Standing, check_script


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuVm:
    """Writes the command that starts a process group on all machines of a Cloud TPU slice.

    JAX reads the ranks of a Cloud TPU from its metadata, so only the command is needed. It is run
    by a person: whoever may use a TPU is logged in with gcloud, and luthier is not.

    Args:
      tpu: The name of the TPU.
      zone: Where it is.
      project: The project of Google Cloud; None means gcloud's own.
      python: The interpreter on its machines.
      setup: Shell that comes before, such as `source venv/bin/activate`.
    """

    tpu: str
    zone: str
    project: str | None = None
    python: str = "python3"
    setup: Sequence[str] = ()

    name = "tpu-vm"

    @property
    def layout(self) -> Resources:
        """The resources of one process group; the number of hosts is known to its machines only."""
        return Resources()

    def files(self, groups: Sequence[ProcessGroup], directory: str) -> Mapping[str, str]:
        """Return the commands, one for each process group.

        Args:
          groups: What would be started.
          directory: Not used: nothing is written.

        Returns:
          Texts by file name.
        """
        check_script(self.name, groups, directory)
        return {f"{group.name}.sh": shlex.join(self._words(group)) + "\n" for group in groups}

    def command(self, directory: str) -> Sequence[str]:
        """Return an empty command: the files hold the command itself.

        Args:
          directory: Not used.

        Returns:
          The command and its arguments.
        """
        return []

    def submit(self, groups: Sequence[ProcessGroup], directory: str) -> Sequence[Job]:
        """Raise: a person runs the command.

        Args:
          groups: What would be started.
          directory: Not used.

        Returns:
          Nothing: it always raises.

        Raises:
          RunError: Always.
        """
        what = "luthier does not log in to the machines of a TPU"
        raise RunError(Problem(what, remedy="run the command that `luthier launch --print` prints"))

    def standings(self, jobs: Sequence[Job]) -> Sequence[Standing]:
        """Return `unknown` for each job: there is no queue to ask.

        Args:
          jobs: Jobs, of which there are none.

        Returns:
          A status for each job.
        """
        return [Standing("unknown")] * len(jobs)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Do nothing.

        Args:
          jobs: Jobs, of which there are none.
        """

    def _words(self, group: ProcessGroup) -> list[str]:
        lines = [*self.setup, f"cd {shlex.quote(group.working_directory)}"]
        exports = [f"{name}={shlex.quote(value)}" for name, value in group.environment.items()]
        # A slice of several hosts is one run; JAX reads the ranks from the machines' metadata.
        lines += [" ".join([*exports, self.python, shlex.join(group.command)])]
        words = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", self.tpu, f"--zone={self.zone}"]
        if self.project is not None:
            words += [f"--project={self.project}"]
        return [*words, "--worker=all", f"--command={' && '.join(lines)}"]
