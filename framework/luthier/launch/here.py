"""The engine over processes of this machine, which stand in for those on many machines."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from luthier.errors import BadInput, Problem, RunError
from luthier.launch.engine import (
    LOGS,
    Job,
    ProcessGroup,
    Resources,
    Standing,
    check_script,
    write_files,
)
from luthier.storage.process import ProcessIdentity

SCRIPT = "job.sh"
CANCELLED = "cancelled"

# In the script: `wait` returns early, with a code above 128, when a trapped signal arrives, so it
# is repeated for as long as the process exists. 75 of any process counts for all of them: the
# others may have failed because that one left. The exit code is moved into place, because a driver
# may read at any moment.
_GROUP = """\
# run_group NAME RESTARTS WORDS...: all processes of one group. It is started again where it died.
run_group() {{
  local name=$1 restarts=$2 starts=0 failures=0 code worst rank numbers
  shift 2
  trap 'kill -TERM $(jobs -p) 2>/dev/null' TERM
  while true; do
    starts=$((starts + 1)) worst=0 numbers=()
    for rank in {ranks}; do
      LUTHIER_RANK=$rank LUTHIER_RANKS={count} LUTHIER_LOCAL_RANK=$rank \\
        LUTHIER_START=$name-$$-$starts \\
        {python} -m luthier.launch.member --meeting {directory}/meetings -- "$@" \\
        >> {logs}/"$name"-rank-$rank.log 2>&1 &
      numbers+=($!)
    done
    for number in "${{numbers[@]}}"; do
      while true; do
        wait "$number"
        code=$?
        kill -0 "$number" 2>/dev/null || break
      done
      if [ $code -eq 75 ] || {{ [ $code -ne 0 ] && [ $worst -ne 75 ]; }}; then worst=$code; fi
    done
    if [ $worst -eq 0 ] || [ -e {directory}/{cancelled} ]; then break; fi
    if [ $worst -ne 75 ]; then
      failures=$((failures + 1))
      if [ -e {directory}/closed ] || [ $failures -gt "$restarts" ]; then break; fi
    fi
  done
  echo $worst > {directory}/."$name".exit  # moved when it is whole: whoever looks may look now
  mv -f {directory}/."$name".exit {directory}/"$name".exit
}}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Here:
    """Starts process groups on this machine, which outlive the process that started them.

    Args:
      processes: Processes of each group.
      devices: What each process runs on, as `--devices` takes it.
    """

    processes: int = 1
    devices: str | None = None

    name = "local"

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise BadInput(Problem("processes is less than 1", self.name))

    @property
    def layout(self) -> Resources:
        """The resources of one process group."""
        return Resources(1, self.processes, self.devices)

    def files(self, groups: Sequence[ProcessGroup], directory: str) -> Mapping[str, str]:
        """Return the script by its name.

        Args:
          groups: What would be started.
          directory: Where the script would be.

        Returns:
          Texts by file name.
        """
        check_script(self.name, groups, directory)
        # All groups of one submission share directory and environment.
        first = groups[0]
        lines = ["#!/bin/bash", "# Written by luthier. To run it again by hand:", "#"]
        lines += [f"#     {shlex.join(self.command(directory))}", ""]
        lines += ["trap 'kill -TERM $(jobs -p) 2>/dev/null' TERM"]
        lines += [f"cd {shlex.quote(first.working_directory)} || exit 1", "unset WANDB_SERVICE"]
        lines += [f"export {name}={shlex.quote(v)}" for name, v in first.environment.items()]
        text = _GROUP.format(
            ranks=" ".join(map(str, range(self.processes))),
            count=self.processes,
            python=shlex.quote(sys.executable),
            directory=shlex.quote(directory),
            logs=shlex.quote(f"{directory}/{LOGS}"),
            cancelled=CANCELLED,
        )
        lines += ["", text]
        for group in groups:
            words = shlex.join([group.name, str(group.restarts), *group.command])
            lines += [f"run_group {words} &"]
        # `wait` returns when SIGTERM is trapped, before the groups have saved: it is repeated until
        # none runs.
        lines += ['while [ -n "$(jobs -pr)" ]; do wait; done']
        return {SCRIPT: "\n".join([*lines, ""])}

    def command(self, directory: str) -> Sequence[str]:
        """Return the command that starts the script.

        Args:
          directory: Where it is.

        Returns:
          The command and its arguments.
        """
        # A session of its own: it outlives the terminal, and Ctrl-C does not reach it.
        return ["setsid", "bash", f"{directory}/{SCRIPT}"]

    def submit(self, groups: Sequence[ProcessGroup], directory: str) -> Sequence[Job]:
        """Write the script, and start it.

        Args:
          groups: What is started.
          directory: Where the script goes.

        Returns:
          A job for each group.
        """
        write_files(self.files(groups, directory), directory)
        with open(pathlib.Path(directory, LOGS, "script.log"), "ab") as log:
            started = subprocess.Popen(
                ["bash", f"{directory}/{SCRIPT}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _started.append(started)
        # An id alone is soon, and on another host at once, that of another process.
        identity = json.dumps(dataclasses.asdict(ProcessIdentity.of(started.pid)))
        id = str(started.pid)
        return [Job(self.name, id, group.name, directory, identity) for group in groups]

    def standings(self, jobs: Sequence[Job]) -> Sequence[Standing]:
        """Return the status of jobs, in their order.

        Args:
          jobs: Jobs of this engine.

        Returns:
          A status for each job.
        """
        return [_standing(job) for job in jobs]

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs; their processes save first.

        Args:
          jobs: Jobs of this engine; those that were started together end together.

        Raises:
          RunError: A job is one of another host, or its record does not say which process it is;
            no process was sent a signal then.
        """
        scripts = {(job.id, job.directory): job for job in jobs}.values()
        for job in scripts:
            if problem := _problem_of(job):
                raise RunError(Problem(f"job {job.id} is not cancelled: {problem}"))
        for job in scripts:
            # The file first: the script would otherwise start the processes again that the signal
            # ends.
            pathlib.Path(job.directory, CANCELLED).touch()
            _terminate(_identity(job))


_started: list[subprocess.Popen[bytes]] = []


def _identity(job: Job) -> ProcessIdentity | None:
    """Return which process a job is; None where its record, which others may write, is damaged."""
    try:
        identity = ProcessIdentity(**json.loads(job.place))
        is_process = type(identity.pid) is int and identity.pid > 1 and str(identity.pid) == job.id
        # Without these the process could not be distinguished from a later one of the same id.
        is_known = isinstance(identity.host, str) and isinstance(identity.boot, str)
        return identity if is_process and is_known else None
    except (ValueError, TypeError, RecursionError):
        return None


def _problem_of(job: Job) -> str:
    """Return why nothing can be known here about the process of a job; empty where it can."""
    identity = _identity(job)
    if identity is None:
        return f"its record does not identify a process: {job.id!r}"
    if identity.here or (identity.boot and identity.host == socket.gethostname()):
        return ""  # that host was restarted since, where the boot is another one
    return f"it was started on {identity.host}, and this is {socket.gethostname()}"


def _terminate(identity: ProcessIdentity | None) -> None:
    """Send SIGTERM to a process, and never to another one that has its id by now."""
    if identity is None or not identity.here:
        return
    with contextlib.suppress(ProcessLookupError):
        # The descriptor belongs to whatever has the id now; that is looked at before the signal.
        descriptor = os.pidfd_open(identity.pid)
        try:
            if identity.alive:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        finally:
            os.close(descriptor)


def _standing(job: Job) -> Standing:
    for process in _started:
        process.poll()  # so that none stays as a zombie
    # The exit file decides, where there is one: a process id may be another process's by now.
    if (over := _over(job)) is not None:
        return over
    if problem := _problem_of(job):
        return Standing("unknown", problem)
    identity = _identity(job)
    if identity is None or not identity.here or not identity.alive:
        # It may have ended since the first look.
        return _over(job) or Standing("failed", "its processes were killed")
    return Standing("running", f"process {job.id} since {_since(job)}", ("localhost",))


def _over(job: Job) -> Standing | None:
    try:
        code = int(pathlib.Path(job.directory, f"{job.group}.exit").read_text())
    except FileNotFoundError:
        return None
    if pathlib.Path(job.directory, CANCELLED).exists():
        return Standing("cancelled", f"exit code {code}")
    return Standing("failed" if code else "finished", f"exit code {code}")


def _since(job: Job) -> str:
    moment = pathlib.Path(job.directory, SCRIPT).stat().st_mtime
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
