"""What SLURM's commands say of jobs."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
from collections.abc import Sequence

from luthier.errors import Problem, RunError
from luthier.launch.engine import Standing, State

_FIELDS = ("JobArrayID", "State", "Reason", "NodeList", "RestartCnt")
_SEPARATOR = "|"
_STATES: dict[str, State] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_FED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
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
"""What people see of a state; all others are ways to fail."""


def call(*words: str, what: str) -> str:
    """Return what a command of SLURM prints.

    Args:
      *words: The command.
      what: What it was to do, for the message.

    Raises:
      RunError: It is not installed, or it refuses.
    """
    if shutil.which(words[0]) is None:
        remedy = "run this where SLURM's commands are, such as a login node"
        raise RunError(Problem(f"cannot {what}: there is no {words[0]} here", remedy=remedy))
    told = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if told.returncode:
        said = " ".join(told.stderr.split()) or f"{words[0]} ends with exit code {told.returncode}"
        raise RunError(Problem(f"cannot {what}: {said}"))
    return told.stdout


def submitted(text: str) -> str:
    """Return the id in what `sbatch --parsable` prints.

    Args:
      text: An id, with the cluster's name behind `;` where there are several clusters.
    """
    return text.strip().partition(";")[0]


def standings(ids: Sequence[str]) -> list[Standing]:
    """Return how jobs of this user stand, in their order.

    Args:
      ids: As `12`, or `12_0` for one of an array.
    """
    layout = ",".join(f"{field}:{_SEPARATOR}" for field in _FIELDS)
    words = ["squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}"]
    try:
        text = call(*words, f"--Format={layout}", what="ask for the queue")
    except RunError as error:
        return [Standing("unknown", str(error))] * len(ids)
    known = dict(map(_standing, filter(str.strip, text.splitlines())))
    gone = Standing("unknown", "the queue does not know it any more")
    return [known.get(id, gone) for id in ids]


def _standing(line: str) -> tuple[str, Standing]:
    parts = line.split(_SEPARATOR)[: len(_FIELDS)]
    id, state, reason, nodes, restarts = map(str.strip, parts)
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
