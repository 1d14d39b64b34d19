"""The batch script of a launch: plain sbatch and srun, for people too."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from luthier.errors import BadInput, Problem
from luthier.launch.engine import LOGS, Gang, Layout
from luthier.terminal import cell

_OPTION = re.compile(r"[a-z][a-z0-9-]*")
MEETINGS = "meetings"
_MEMBER = "luthier.launch.gang.member"
_AFTER_FIRST_SECONDS = 120  # that the processes of a gang may take to end after its first one

_GANG = """\
# run_gang NAME RESTARTS WORDS...: one step for one gang. It is started again where it died.
run_gang() {{
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
    echo "gang $name ended with exit code $code and is started again"
    sleep 1
  done
}}
"""

_END = """\
# Exit code {requeue}: the machines are taken away, and all is saved. The job goes back to the
# queue, unless it is being cancelled.
worst=0
for number in "${{gangs[@]}}"; do
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
    gangs: Sequence[Gang],
    directory: str,
    layout: Layout,
    options: Mapping[str, str | int],
    step_options: Mapping[str, str | int],
    *,
    gangs_per_job: int,
    devices_per_process: int,
    setup: Sequence[str],
    notes: Sequence[str],
) -> str:
    """Return the script of one job, or of an array of jobs, for gangs of one layout.

    Args:
      gangs: What it starts; their commands may differ.
      directory: Where it is written.
      layout: What each gang gets.
      options: Long options of sbatch, without their dashes.
      step_options: Long options of srun, beside those that follow from the layout.
      gangs_per_job: Gangs that share an allocation.
      devices_per_process: Devices of its host that belong to each process; 0 means all.
      setup: Lines of shell that come first.
      notes: Lines of comment: which setting came from where.
    """
    num_jobs = math.ceil(len(gangs) / gangs_per_job)
    lines = ["#!/bin/bash", *_directives(gangs, directory, layout, options, gangs_per_job)]
    lines += ["", "# Written by luthier. To run it again by hand:", "#"]
    lines += [f"#     sbatch {shlex.quote(directory)}/job.sh", "#"]
    lines += [*(f"# {cell(note)}" for note in notes), ""]
    lines += ["trap : TERM  # a signal is for the steps, which save; the script stays to the end"]
    lines += ["unset WANDB_SERVICE  # what that records would end with the process that launched"]
    lines += [f"cd {shlex.quote(gangs[0].working_directory)} || exit 1"]
    for name, value in gangs[0].environment.items():
        lines += [f"export {name}={shlex.quote(value)}"]
    step = "".join(f" --{name}={shlex.quote(str(v))}" for name, v in step_options.items())
    devices = f" --devices-per-process {devices_per_process}" if devices_per_process else ""
    lines += [
        *setup,
        "",
        _GANG.format(
            nodes=layout.hosts,
            tasks=layout.num_processes,
            per_node=layout.processes_per_host,
            step=" --exact" * (gangs_per_job > 1) + step,
            wait=_AFTER_FIRST_SECONDS,
            logs=shlex.quote(f"{directory}/{LOGS}"),
            python=shlex.quote(sys.executable),
            member=_MEMBER,
            meetings=shlex.quote(f"{directory}/{MEETINGS}"),
            devices=devices,
            requeue=75,
            directory=shlex.quote(directory),
        ),
        "gangs=()",
    ]
    if num_jobs == 1:
        lines += [_start(gang) for gang in gangs]
    else:
        lines += ['case "$SLURM_ARRAY_TASK_ID" in']
        for index in range(num_jobs):
            lines += [f"{index})"]
            own = gangs[index * gangs_per_job : (index + 1) * gangs_per_job]
            lines += [f"  {_start(gang)}" for gang in own]
            lines += ["  ;;"]
        lines += ["esac"]
    return "\n".join([*lines, "", _END.format(requeue=75)])


def _directives(
    gangs: Sequence[Gang],
    directory: str,
    layout: Layout,
    options: Mapping[str, str | int],
    gangs_per_job: int,
) -> list[str]:
    num_jobs = math.ceil(len(gangs) / gangs_per_job)
    side_by_side = min(gangs_per_job, len(gangs))
    stem = "slurm-%A_%a" if num_jobs > 1 else "slurm-%j"
    given: dict[str, str | int] = {
        "job-name": gangs[0].name if len(gangs) == 1 else gangs[0].name.rpartition("-")[0],
        "nodes": layout.hosts * side_by_side,
        "ntasks-per-node": layout.processes_per_host,
        **({"array": f"0-{num_jobs - 1}"} if num_jobs > 1 else {}),
        "output": f"{directory}/{LOGS}/{stem}.log",
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


def _start(gang: Gang) -> str:
    words = shlex.join([gang.name, str(gang.restarts), *gang.command])
    return f"run_gang {words} & gangs+=($!)"
