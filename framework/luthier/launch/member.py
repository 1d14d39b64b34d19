"""The entry point of a process of a group: it finds the others, then becomes the command.

JAX can detect clusters by itself, but takes one port for all groups of an allocation. So process 0
chooses a free port and writes its address into a file that all hosts see; the file's name is
different for each start, so that nobody reads the address of the start before.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from luthier.errors import EXIT_BAD_INPUT, BadInput, LuthierError, Problem, RunError

# The rank of this process in its group, which the engine that started it puts into the environment.

VARIABLES = ("LUTHIER_RANK", "LUTHIER_RANKS", "LUTHIER_LOCAL_RANK", "LUTHIER_START")
"""Which process this is, of how many, which on its host, and a word that only the processes of one
start of a process group share: where an engine has no such variables of its own."""


@dataclasses.dataclass(frozen=True)
class Rank:
    """The place of a process in its group.

    Args:
      rank: Which process it is, from 0.
      count: Processes of the group.
      local: Which process of its host it is, from 0.
      start: What only the processes of this start of the group have; a file name.
      host: The name or address that the others reach this machine by.
    """

    rank: int
    count: int
    local: int
    start: str
    host: str


def read_place(environment: Mapping[str, str]) -> Rank:
    """Return the place of this process.

    Args:
      environment: Such as `os.environ`.

    Raises:
      BadInput: The environment does not hold it.
    """
    # Before SLURM's: an engine that sets these may itself run inside of a SLURM job, whose
    # variables are of the outer process.
    if "LUTHIER_RANK" in environment:
        # The engine `here` sets these: its processes are on one machine.
        rank, count, local, start = (environment.get(name, "0") for name in VARIABLES)
        return Rank(int(rank), int(count), int(local), start, "127.0.0.1")
    if "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        # A requeued job keeps its id and counts its steps from 0 again; only the restart count
        # differs.
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return Rank(
            int(environment["SLURM_PROCID"]),
            int(environment["SLURM_STEP_NUM_TASKS"]),
            int(environment["SLURM_LOCALID"]),
            "-".join(environment.get(name) or "0" for name in names),
            _slurm_address(environment.get("SLURMD_NODENAME", "")),
        )
    remedy = f"start it with srun, or set {', '.join(VARIABLES)}"
    raise BadInput(
        Problem(
            "the environment does not name the rank of this process in its group", remedy=remedy
        )
    )


def _slurm_address(node: str) -> str:
    """Return the address of a node that SLURM's own daemons use: its name may not resolve."""
    if node and shutil.which("scontrol"):
        node_record = subprocess.run(
            ["scontrol", "show", "node", node, "--oneliner"],
            capture_output=True,
            text=True,
            # With it set, scontrol asks the cluster that it names instead of the one that this node
            # is in.
            env={k: v for k, v in os.environ.items() if k != "SLURM_CLUSTERS"},
        )
        if found := re.search(r"\bNodeAddr=(\S+)", node_record.stdout):
            return found[1]
    return node or socket.gethostname()


# A process of a group finds the others and becomes what it is to run.
#
#     python -m luthier.launch.member --meeting FOLDER -- -m luthier train ... --distributed
#
# The first process of the group publishes its address in a file of the folder that all
# of them see: on an address that is its own and a port that is free, so that groups side by side
# never meet by accident. JAX's detection of clusters is left out.

MEETING_SECONDS = 120.0
"""The time within which the processes of a group must start."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Join the group, then become the program that follows `--`.

    Args:
      arguments: The words of the command line.
    """
    parser = argparse.ArgumentParser(prog="luthier.launch.member")
    parser.add_argument("--meeting", type=pathlib.Path, required=True)
    parser.add_argument("--devices-per-process", type=int, default=0)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        place = read_place(os.environ)
        rank_variables = variables(place, options.meeting, options.devices_per_process)
    except LuthierError as error:
        print(f"luthier: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    sys.stdout.flush()
    # In the place of this process and not as its child: signals of the engine reach the command.
    os.execve(sys.executable, [sys.executable, *options.command], {**os.environ, **rank_variables})


def variables(
    place: Rank, meeting: pathlib.Path, devices_per_process: int = 0
) -> Mapping[str, str]:
    """Return the variables of JAX for this process; none for a process group of one.

    Args:
      place: The place of this process.
      meeting: The folder in which the first process publishes its address.
      devices_per_process: Devices of its host that belong to each process; 0 means all.

    Raises:
      RunError: The first process does not publish its address within `MEETING_SECONDS`.
    """
    rank_variables = {}
    if place.count > 1:
        rank_variables["JAX_COORDINATOR_ADDRESS"] = _coordinator(place, meeting)
        rank_variables["JAX_NUM_PROCESSES"] = str(place.count)
        rank_variables["JAX_PROCESS_ID"] = str(place.rank)
    if devices_per_process:
        first = place.local * devices_per_process
        # By local rank: each process of a host gets its own share of the host's devices.
        numbers = range(first, first + devices_per_process)
        rank_variables["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, numbers))
    return rank_variables


def _coordinator(place: Rank, meeting: pathlib.Path) -> str:
    # The name of the start is in the name of the file: a group that is started again must not read
    # the address of its predecessor, whose port may be another program's by now.
    path = meeting / f"{place.start}.json"
    if place.rank == 0:
        meeting.mkdir(parents=True, exist_ok=True)
        address = f"{place.host}:{_free_port()}"
        # Renamed into place, so that the others see no half of it.
        building = path.with_suffix(".tmp")
        building.write_text(json.dumps({"coordinator": address, "processes": place.count}))
        os.replace(building, path)
        return address
    deadline = time.monotonic() + MEETING_SECONDS
    while time.monotonic() < deadline:
        try:
            os.listdir(meeting)  # has a network disk look again
            return json.loads(path.read_text())["coordinator"]
        except FileNotFoundError:
            time.sleep(0.2)
    what = f"process 0 of {place.count} did not publish its address within {MEETING_SECONDS:.0f} s"
    raise RunError(
        Problem(what, origin=str(path), remedy="look at its log, and whether it started")
    )


def _free_port() -> int:
    with socket.socket() as found:
        # The port is free again until JAX binds it; another process may take it, and then the group
        # fails to join and is started again, with another port.
        found.bind(("", 0))
        return found.getsockname()[1]


if __name__ == "__main__":
    main(sys.argv[1:])
