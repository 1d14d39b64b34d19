"""Which process of its gang this is, as the engine that started it tells in the environment."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping

from luthier.errors import BadInput, Problem

VARIABLES = ("LUTHIER_RANK", "LUTHIER_RANKS", "LUTHIER_LOCAL_RANK", "LUTHIER_START")
"""Which process this is, of how many, which on its host, and a word that only the processes of one
start of a gang share: where an engine has no such variables of its own."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a process in its gang.

    Args:
      rank: Which process it is, from 0.
      count: Processes of the gang.
      local: Which process of its host it is, from 0.
      start: What only the processes of this start of the gang have; a file name.
      host: The name or address that the others reach this machine by.
    """

    rank: int
    count: int
    local: int
    start: str
    host: str


def read_place(environment: Mapping[str, str]) -> Place:
    """Return the place of this process.

    Args:
      environment: Such as `os.environ`.

    Raises:
      BadInput: No engine tells it.
    """
    if "LUTHIER_RANK" in environment:
        rank, count, local, start = (environment.get(name, "0") for name in VARIABLES)
        return Place(int(rank), int(count), int(local), start, "127.0.0.1")
    if "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return Place(
            int(environment["SLURM_PROCID"]),
            int(environment["SLURM_STEP_NUM_TASKS"]),
            int(environment["SLURM_LOCALID"]),
            "-".join(environment.get(name) or "0" for name in names),
            _slurm_address(environment.get("SLURMD_NODENAME", "")),
        )
    remedy = f"start it with srun, or set {', '.join(VARIABLES)}"
    raise BadInput(Problem("nothing tells which process of the gang this is", remedy=remedy))


def _slurm_address(node: str) -> str:
    """Return the address of a node that SLURM's own daemons use: its name may not resolve."""
    if node and shutil.which("scontrol"):
        told = subprocess.run(
            ["scontrol", "show", "node", node, "--oneliner"],
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "SLURM_CLUSTERS"},
        )
        if found := re.search(r"\bNodeAddr=(\S+)", told.stdout):
            return found[1]
    return node or socket.gethostname()
