"""A process of a gang finds the others and becomes what it is to run.

    python -m luthier.launch.gang.member --meeting FOLDER -- -m luthier train ... --distributed

The first process of the gang tells the others where it listens, in a file of the folder that all of
them see: on an address that is its own and a port that is free, so that gangs side by side never
meet by accident. JAX's detection of clusters is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from luthier.errors import EXIT_BAD_INPUT, LuthierError, Problem, RunError
from luthier.launch.gang.places import Place, read_place

MEETING_SECONDS = 120.0
"""How far apart the processes of a gang may start."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Join the gang, and go on as the program that follows `--`.

    Args:
      arguments: The words of the command line.
    """
    parser = argparse.ArgumentParser(prog="luthier.launch.gang.member")
    parser.add_argument("--meeting", type=pathlib.Path, required=True)
    parser.add_argument("--devices-per-process", type=int, default=0)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        place = read_place(os.environ)
        told = variables(place, options.meeting, options.devices_per_process)
    except LuthierError as error:
        print(f"luthier: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *options.command], {**os.environ, **told})


def variables(
    place: Place, meeting: pathlib.Path, devices_per_process: int = 0
) -> Mapping[str, str]:
    """Return what tells JAX which process this is; nothing for a gang of one.

    Args:
      place: The place of this process.
      meeting: The folder in which the first process says where it listens.
      devices_per_process: Devices of its host that belong to each process; 0 means all.

    Raises:
      RunError: The first process says nothing in `MEETING_SECONDS`.
    """
    told = {}
    if place.count > 1:
        told["JAX_COORDINATOR_ADDRESS"] = _coordinator(place, meeting)
        told["JAX_NUM_PROCESSES"] = str(place.count)
        told["JAX_PROCESS_ID"] = str(place.rank)
    if devices_per_process:
        first = place.local * devices_per_process
        numbers = range(first, first + devices_per_process)
        told["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, numbers))
    return told


def _coordinator(place: Place, meeting: pathlib.Path) -> str:
    path = meeting / f"{place.start}.json"
    if place.rank == 0:
        meeting.mkdir(parents=True, exist_ok=True)
        address = f"{place.host}:{_free_port()}"
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
    what = f"process 0 of {place.count} did not say where it listens in {MEETING_SECONDS:.0f} s"
    raise RunError(
        Problem(what, origin=str(path), remedy="look at its log, and whether it started")
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]


if __name__ == "__main__":
    main(sys.argv[1:])
