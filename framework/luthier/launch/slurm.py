"""The engine over SLURM: process groups as job steps of a script, submitted with sbatch."""

from __future__ import annotations

import dataclasses
import getpass
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from luthier.errors import BadInput, Problem, RunError
from luthier.launch.engine import (
    LOGS,
    Job,
    ProcessGroup,
    Resources,
    Standing,
    State,
    check_script,
    write_files,
)
from luthier.terminal import cell

_FIELDS = ("JobArrayID", "State", "Reason", "NodeList", "RestartCnt")
_SEPARATOR = "|"
_STATES: dict[str, State] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_FED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
    # Jobs are submitted with --requeue, so that a preempted one comes back.
    "PREEMPTED": "waiting",
    "SUSPENDED": "waiting",
    "STOPPED": "waiting",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SIGNALING": "running",
    "RESIZING": "running",
    "STAGE_OUT": "running",
    "COMPLETED": "finished",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}
"""Our states for those of SLURM; all others are failures."""


def call(*words: str, what: str) -> str:
    """Run a command of SLURM and return its output.

    Args:
      *words: The command.
      what: What it was to do, for the message.

    Raises:
      RunError: It is not installed, or it fails.
    """
    if shutil.which(words[0]) is None:
        remedy = "run this where SLURM's commands are, such as a login node"
        raise RunError(Problem(f"cannot {what}: there is no {words[0]} here", remedy=remedy))
    # Without the terminal's input: a command that asks for something must fail instead of waiting
    # for an answer.
    process = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if process.returncode:
        reason = (
            " ".join(process.stderr.split())
            or f"{words[0]} ended with exit code {process.returncode}"
        )
        raise RunError(Problem(f"cannot {what}: {reason}"))
    return process.stdout


def submitted(text: str) -> str:
    """Return the id in what `sbatch --parsable` prints.

    Args:
      text: An id, with the cluster's name behind `;` where there are several clusters.
    """
    return text.strip().partition(";")[0]


def standings(ids: Sequence[str]) -> list[Standing]:
    """Return the status of jobs of this user, in their order.

    Args:
      ids: As `12`, or `12_0` for one of an array.
    """
    # A separator of our own, because fields hold spaces (`CANCELLED by 1000`). `--array` lists
    # every job of an array by itself; `--states=all` those that have just ended, too.
    layout = ",".join(f"{field}:{_SEPARATOR}" for field in _FIELDS)
    words = ["squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}"]
    try:
        text = call(*words, f"--Format={layout}", what="ask for the queue")
    except RunError as error:
        # A controller that does not answer is no sign that a job is over.
        return [Standing("unknown", str(error))] * len(ids)
    known = dict(map(_standing, filter(str.strip, text.splitlines())))
    # `unknown` and not `failed`: squeue forgets a job minutes after its end, however it ended.
    gone = Standing("unknown", "the queue does not know it any more")
    return [known.get(id, gone) for id in ids]


def _standing(line: str) -> tuple[str, Standing]:
    parts = line.split(_SEPARATOR)[: len(_FIELDS)]
    id, state, reason, nodes, restarts = map(str.strip, parts)
    # Only the first word: `CANCELLED by 1000` names the user.
    seen = _STATES.get(state.partition(" ")[0], "failed")
    detail = state if reason in ("", "None") else f"{state} ({reason})"
    return id, Standing(seen, detail, _hosts(nodes), int(restarts or 0))


def _hosts(text: str) -> tuple[str, ...]:
    """Return the names in a list of nodes: `n[1-3,7],m2` names five."""
    found: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,\[]*", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            found.append(part)
            continue
        for numbers in match[2].split(","):
            first, _, last = numbers.partition("-")
            found += [
                f"{match[1]}{number:0{len(first)}d}{match[3]}"
                for number in range(int(first), int(last or first) + 1)
            ]
    return tuple(found)


# The batch script of a launch: plain sbatch and srun, for people too.

_OPTION = re.compile(r"[a-z][a-z0-9-]*")
MEETINGS = "meetings"
_MEMBER = "luthier.launch.member"
_AFTER_FIRST_SECONDS = 120  # for the processes of a group to end after its first one

# In the script: `--kill-on-bad-exit=0`, because one process that leaves with exit code 75 must not
# have the others killed while they save; `--wait` bounds how long they may take. The file `closed`
# is the driver's word that no further start is wanted.
_GROUP = """\
# run_group NAME RESTARTS WORDS...: one step for one group. It is started again where it died.
run_group() {{
  local name=$1 restarts=$2 starts=0 code
  shift 2
  while true; do
    starts=$((starts + 1))
    srun --nodes={nodes} --ntasks={tasks} --ntasks-per-node={per_node}{step} \\
      --kill-on-bad-exit=0 --wait={wait} --open-mode=append \\
      --output={logs}/"$name"-rank-%t.log \\
      {python} -m {member} --meeting {meetings}/"$name"{devices} -- "$@"
    code=$?
    if [ $code -eq 0 ] || [ $code -eq {requeue} ]; then return $code; fi
    if [ -e {directory}/closed ] || [ $starts -gt "$restarts" ]; then return $code; fi
    echo "group $name ended with exit code $code and is started again"
    sleep 1
  done
}}
"""

# The script traps TERM and stays to the end: the steps get the signal, too, and save, and a script
# that ended at once would end the job. `wait` is repeated as long as the process exists, since a
# trapped signal interrupts it. Whether to requeue is asked of the queue: a job that is being
# cancelled has left the state RUNNING, and requeueing it would undo the cancellation.
_END = """\
# Exit code {requeue}: the machines are taken away, and all is saved. The job goes back to the
# queue, unless it is being cancelled.
worst=0
for number in "${{groups[@]}}"; do
  while true; do
    wait "$number"
    code=$?
    kill -0 "$number" 2>/dev/null || break
  done
  if [ $code -eq {requeue} ] || {{ [ $code -ne 0 ] && [ $worst -eq 0 ]; }}; then worst=$code; fi
done
# One job of an array has the number of the whole array.
job=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
job=${{job:-$SLURM_JOB_ID}}
if [ $worst -eq {requeue} ] && [ "$(squeue -h -r -j "$job" -o %T)" = RUNNING ]; then
  scontrol requeue "$job"
fi
exit $worst
"""


def render(
    groups: Sequence[ProcessGroup],
    directory: str,
    layout: Resources,
    options: Mapping[str, str | int],
    step_options: Mapping[str, str | int],
    *,
    groups_per_job: int,
    devices_per_process: int,
    setup: Sequence[str],
    notes: Sequence[str],
) -> str:
    """Return the script of one job, or of an array of jobs, for process groups of one layout.

    Args:
      groups: What it starts; their commands may differ.
      directory: Where it is written.
      layout: What each process group gets.
      options: Long options of sbatch, without their dashes.
      step_options: Long options of srun, beside those that follow from the layout.
      groups_per_job: Process groups that share an allocation.
      devices_per_process: Devices of its host that belong to each process; 0 means all.
      setup: Lines of shell that come first.
      notes: Lines of comment: which setting came from where.
    """
    num_jobs = math.ceil(len(groups) / groups_per_job)
    lines = ["#!/bin/bash", *_directives(groups, directory, layout, options, groups_per_job)]
    lines += ["", "# Written by luthier. To run it again by hand:", "#"]
    lines += [f"#     sbatch {shlex.quote(directory)}/job.sh", "#"]
    lines += [*(f"# {cell(note)}" for note in notes), ""]
    lines += ["trap : TERM  # a signal is for the steps, which save; the script stays to the end"]
    lines += ["unset WANDB_SERVICE  # what that records would end with the process that launched"]
    # The first stands for all: groups of one submission share folder and environment. A run is one
    # group, and `Slices._group` gives all groups of a study the same.
    lines += [f"cd {shlex.quote(groups[0].working_directory)} || exit 1"]
    for name, value in groups[0].environment.items():
        lines += [f"export {name}={shlex.quote(value)}"]
    step = "".join(f" --{name}={shlex.quote(str(v))}" for name, v in step_options.items())
    devices = f" --devices-per-process {devices_per_process}" if devices_per_process else ""
    lines += [
        *setup,
        "",
        _GROUP.format(
            nodes=layout.hosts,
            tasks=layout.num_processes,
            per_node=layout.processes_per_host,
            # Without --exact the first step of an allocation gets all of its cores and GPUs, and
            # the others wait for it.
            step=" --exact" * (groups_per_job > 1) + step,
            wait=_AFTER_FIRST_SECONDS,
            logs=shlex.quote(f"{directory}/{LOGS}"),
            python=shlex.quote(sys.executable),
            member=_MEMBER,
            meetings=shlex.quote(f"{directory}/{MEETINGS}"),
            devices=devices,
            # `errors.EXIT_REQUEUE`, with which a process leaves after it has saved.
            requeue=75,
            directory=shlex.quote(directory),
        ),
        "groups=()",
    ]
    if num_jobs == 1:
        lines += [_start(group) for group in groups]
    else:
        lines += ['case "$SLURM_ARRAY_TASK_ID" in']
        for index in range(num_jobs):
            lines += [f"{index})"]
            own = groups[index * groups_per_job : (index + 1) * groups_per_job]
            lines += [f"  {_start(group)}" for group in own]
            lines += ["  ;;"]
        lines += ["esac"]
    return "\n".join([*lines, "", _END.format(requeue=75)])


def _directives(
    groups: Sequence[ProcessGroup],
    directory: str,
    layout: Resources,
    options: Mapping[str, str | int],
    groups_per_job: int,
) -> list[str]:
    num_jobs = math.ceil(len(groups) / groups_per_job)
    side_by_side = min(groups_per_job, len(groups))
    stem = "slurm-%A_%a" if num_jobs > 1 else "slurm-%j"
    # What follows from the layout comes first, and `options` of the user may override it; --requeue
    # does not, because the script relies on it.
    given: dict[str, str | int] = {
        "job-name": groups[0].name if len(groups) == 1 else groups[0].name.rpartition("-")[0],
        "nodes": layout.hosts * side_by_side,
        "ntasks-per-node": layout.processes_per_host,
        **({"array": f"0-{num_jobs - 1}"} if num_jobs > 1 else {}),
        "output": f"{directory}/{LOGS}/{stem}.log",
        # A job that was requeued has the same id: its log would be emptied at each start.
        "open-mode": "append",
    }
    words = [_directive(name, value) for name, value in (given | {**options}).items()]
    return [*words, "#SBATCH --requeue"]


def _directive(name: str, value: str | int) -> str:
    """Return a line for sbatch, which reads it by rules of its own, and not as a shell does."""
    text = str(value)
    # A quote would end the value, and what follows it would be an option: --wrap runs commands.
    if not _OPTION.fullmatch(name) or cell(text) != text or set(text) & set("\"'\\"):
        remedy = "leave out quotes, backslashes, line ends and control characters"
        what = f"the option {name!r} of sbatch cannot be {text!r}"
        raise BadInput(Problem(what, "slurm", remedy=remedy))
    return f'#SBATCH --{name}="{text}"' if " " in text else f"#SBATCH --{name}={text}"


def _start(group: ProcessGroup) -> str:
    words = shlex.join([group.name, str(group.restarts), *group.command])
    return f"run_group {words} & groups+=($!)"


# The engine over SLURM.

SCRIPT = "job.sh"
GRACE_SECONDS = 120
"""The time before the end of its time limit at which a job is signalled to save."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slurm:
    """Starts process groups with sbatch and srun.

    The script that it submits is kept beside the logs. A job that is preempted, or whose time is
    over, saves and goes back to the queue; so `time_limit` is that of one piece of a run.

    Args:
      nodes: Machines of each process group.
      processes_per_node: Processes on each; 1 drives all devices of its machine.
      devices: What each process runs on, as `--devices` takes it; None leaves it to JAX.
      gpus_per_node: GPUs of each group on each of its machines; shared by its processes there.
      cpus_per_process: Cores of each process.
      memory: Memory on each node, as `64G`.
      time_limit: As sbatch takes it: `2-00:00:00`; None means the partition's.
      partition: Where it runs; None means the site's default.
      account: Who pays.
      groups_per_job: Groups that share one allocation, each in a step of its own; jobs of equal
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
    groups_per_job: int = 1
    options: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    setup: Sequence[str] = ()

    name = "slurm"

    def __post_init__(self) -> None:
        for field in ("nodes", "processes_per_node", "groups_per_job"):
            if getattr(self, field) < 1:
                raise BadInput(Problem(f"{field} is less than 1", "slurm"))
        if (self.gpus_per_node or 0) % self.processes_per_node:
            what = f"{self.gpus_per_node} GPUs cannot be shared by {self.processes_per_node}"
            raise BadInput(Problem(f"{what} processes", "slurm"))

    @property
    def layout(self) -> Resources:
        """The resources of one process group."""
        return Resources(self.nodes, self.processes_per_node, self.devices)

    def files(self, groups: Sequence[ProcessGroup], directory: str) -> Mapping[str, str]:
        """Return the script by its name.

        Args:
          groups: What would be started.
          directory: Where the script would be.

        Returns:
          Texts by file name.
        """
        check_script(self.name, groups, directory)
        # GPUs are requested for the node, and divided among its processes by JAX's local device ids
        # (`launch.member`).
        share = (self.gpus_per_node or 0) // self.processes_per_node
        text = render(
            groups,
            directory,
            self.layout,
            self._job_options(),
            self._step_options(),
            groups_per_job=self.groups_per_job,
            devices_per_process=share if self.processes_per_node > 1 else 0,
            setup=self.setup,
            notes=[],
        )
        return {SCRIPT: text}

    def command(self, directory: str) -> Sequence[str]:
        """Return the command that submits the script.

        Args:
          directory: Where it is.

        Returns:
          The command and its arguments.
        """
        return ["sbatch", "--parsable", f"{directory}/{SCRIPT}"]

    def submit(self, groups: Sequence[ProcessGroup], directory: str) -> Sequence[Job]:
        """Write the script, and submit it.

        Args:
          groups: What is started.
          directory: Where the script goes.

        Returns:
          A job for each group.

        Raises:
          RunError: sbatch refuses.
        """
        write_files(self.files(groups, directory), directory)
        output = call(*self.command(directory), what=f"submit {SCRIPT}")
        id = submitted(output)
        is_array = math.ceil(len(groups) / self.groups_per_job) > 1
        return [
            Job(
                self.name,
                f"{id}_{index // self.groups_per_job}" if is_array else id,
                group.name,
                directory,
            )
            for index, group in enumerate(groups)
        ]

    def standings(self, jobs: Sequence[Job]) -> Sequence[Standing]:
        """Return the status of jobs, in their order.

        Args:
          jobs: Jobs of SLURM.

        Returns:
          A status for each job.
        """
        return standings([job.id for job in jobs])

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Take jobs back.

        Args:
          jobs: Jobs of SLURM.

        Raises:
          RunError: scancel refuses.
        """
        ids = dict.fromkeys(job.id for job in jobs)
        if ids:
            call("scancel", *ids, what=f"cancel {', '.join(ids)}")

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
