"""Training with several processes: the options, and one of the processes of a run."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from luthier import environment
from luthier.cli import main as command_line
from luthier.cli.arguments import Problems, positive, whole
from luthier.errors import LuthierError

# The options that say which process of a run this is, or how many to start here.

VARIABLE = "LUTHIER_PROCESS"
"""The environment variable by which a parent tells a child which process it is."""

_ADDRESS = re.compile(r"\S+:\d{1,5}")
_SHARED = re.compile(r"(cpu|gpu|cuda|rocm):(\d+)")


@dataclasses.dataclass(frozen=True)
class Process:
    """One process of a run, as the parent that starts it knows it.

    Args:
      membership: What of `luthier.parallel.distributed.Membership` is known; the rest is detected.
      devices: What takes the place of `--devices`.
      environment: Further variables of the process.
    """

    membership: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    devices: str | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        """Return the environment variables that tell a child all this."""
        told = json.dumps({"membership": dict(self.membership), "devices": self.devices})
        return {VARIABLE: told, **self.environment}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to `parser`."""
    hosts = parser.add_argument_group(
        "several processes",
        "Every host runs the same command, with its own --process-id. All of them must see the "
        "disk that records.directory is on.",
    )
    hosts.add_argument(
        "--processes", type=positive, metavar="N", help="start N here, which share --devices"
    )
    hosts.add_argument(
        "--coordinator", metavar="HOST:PORT", help="where process 0 runs, and a free port there"
    )
    hosts.add_argument("--num-processes", type=positive, metavar="N", help="of the whole run")
    hosts.add_argument("--process-id", type=whole, metavar="I", help="which this is, from 0")
    hosts.add_argument(
        "--distributed",
        action="store_true",
        help="ask JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or SLURM, "
        "Open MPI, Kubernetes or Cloud TPU",
    )
    hosts.add_argument(
        "--join-seconds",
        type=positive,
        metavar="S",
        help="how far apart the processes may start (20)",
    )


def read(arguments: argparse.Namespace, problems: Problems) -> list[Process]:
    """Return the processes that a command line asks to start on this machine; empty for none.

    Args:
      arguments: What `add_arguments` describes, and `devices`.
      problems: Is given what is wrong.
    """
    given = {
        "--coordinator": arguments.coordinator,
        "--num-processes": arguments.num_processes,
        "--process-id": arguments.process_id,
    }
    patience = {"join_seconds": arguments.join_seconds} if arguments.join_seconds else {}
    ways = [bool(arguments.processes), any(v is not None for v in given.values())]
    if sum([*ways, arguments.distributed]) > 1:
        what = "--processes, --coordinator and --distributed are three ways to the same"
        problems.add(what, remedy="leave out all but one")
        return []
    if arguments.distributed:
        return [Process(patience, arguments.devices)]
    if arguments.processes:
        return _local(arguments.processes, arguments.devices, problems)
    if not ways[1]:
        return []
    return [
        dataclasses.replace(process, membership={**process.membership, **patience})
        for process in _member(arguments, given, problems)
    ]


def _member(
    arguments: argparse.Namespace, given: Mapping[str, Any], problems: Problems
) -> list[Process]:
    missing = [name for name, value in given.items() if value is None]
    if missing:
        problems.add(f"{' and '.join(missing)} is missing", remedy=f"give {', '.join(given)}")
        return []
    address, count, index = given.values()
    if not _ADDRESS.fullmatch(address):
        problems.add(f"cannot read --coordinator {address!r}", remedy="write it as 10.0.0.1:8476")
    if index >= count:
        remedy = f"processes are counted from 0: the last of {count} is {count - 1}"
        problems.add(f"there is no process {index} of {count}", remedy=remedy)
    membership = {"coordinator_address": address, "num_processes": count, "process_id": index}
    return [Process(membership, arguments.devices)]


def _local(count: int, devices: str | None, problems: Problems) -> list[Process]:
    match = _SHARED.fullmatch(devices or "")
    if match is None or int(match[2]) % count or not int(match[2]):
        what = f"{count} processes cannot share {devices or 'devices that are not counted'}"
        problems.add(what, remedy=f"give --devices cpu:N or gpu:N, N a multiple of {count}")
        return []
    kind, share = match[1], int(match[2]) // count
    address = f"127.0.0.1:{_free_port()}"
    environment = {"JAX_COORDINATOR_BIND_ADDRESS": address}
    processes = []
    for index in range(count):
        membership: dict[str, Any] = {
            "coordinator_address": address,
            "num_processes": count,
            "process_id": index,
        }
        if kind != "cpu":
            membership["local_device_ids"] = [index * share + place for place in range(share)]
        own = f"cpu:{share}" if kind == "cpu" else kind
        processes.append(Process(membership, own, environment))
    return processes


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def of_child() -> Process | None:
    """Return which process this one is, where a parent started it as one of several."""
    told = os.environ.get(VARIABLE)
    return None if told is None else Process(**json.loads(told))


# A child among the processes of its run.


@contextlib.contextmanager
def joined(process: Process) -> Iterator[None]:
    """Join the other processes; at the end of the `with` block leave them, or say why this fails.

    Args:
      process: Which process this is.

    Raises:
      BadInput: The others cannot be joined, or differ in their versions or their source.
    """
    import jax

    from luthier.parallel import distributed
    from luthier.records import read_facts

    told = distributed.Membership.of_environment(os.environ)
    known = {name: value for name, value in vars(told).items() if value is not None}
    membership = dataclasses.replace(told, **known | dict(process.membership))
    distributed.join(membership, read_facts())
    index = distributed.process_index()
    distributed.notify_parent(process=index, processes=distributed.process_count())
    if index:
        # Every process runs the same command; one of them shows it.
        sys.stdout.close()
        sys.stdout = sys.stderr  # the log
    try:
        yield
    except BaseException as raised:
        error = distributed.explain(raised) if isinstance(raised, Exception) else raised
        # The others learn the reason from the coordination service, before this process leaves it.
        distributed.farewell(_line(error))
        if error is raised:
            raise
        raise error from raised
    # Only where all went well: it waits for the other processes, which may have failed.
    jax.distributed.shutdown()


def _line(error: BaseException) -> str:
    text = str(error) if isinstance(error, LuthierError) else repr(error)
    return " ".join(text.split())[:500]


# One of the processes of a run: `python -m luthier.cli.hosts.child train ...`, by its parent.

ORPHAN_SECONDS = 60.0


def main(argv: Sequence[str]) -> NoReturn:
    """Run a command line, and end without waiting for the other processes.

    Args:
      argv: The words after `luthier`.
    """
    environment.report_native_crashes()
    _keep_libraries_off_the_terminal()
    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    code = command_line.main(argv)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # What is left to be done at exit would wait for processes that may have ended.
    os._exit(code)


def _keep_libraries_off_the_terminal() -> None:
    """Send what libraries in C++ write to the standard output to the log, where errors go."""
    # At the level of descriptors, since native code does not know `sys.stdout`.
    terminal = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(terminal, "w", buffering=1, encoding="utf-8", errors="replace")


def _follow_parent(parent: int) -> None:
    """End as well, after saving, when the parent has ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    # As if the machine were taken away: the run is saved first.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
