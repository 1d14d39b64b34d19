"""Training with several processes: the command-line options, and the child processes of a run."""

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
from luthier.cli import command_line
from luthier.cli.arguments import Problems, positive, whole
from luthier.errors import LuthierError

# The options that choose which process of a run this is, or how many to start here.

VARIABLE = "LUTHIER_PROCESS"
"""The environment variable by which a launcher passes a child its `Process`."""

_ADDRESS = re.compile(r"\S+:\d{1,5}")
_SHARED = re.compile(r"(cpu|gpu|cuda|rocm):(\d+)")


@dataclasses.dataclass(frozen=True)
class Process:
    """One process of a run, as its launcher knows it.

    Args:
      membership: Known fields of `luthier.parallel.distributed.Membership`; others are detected.
      devices: The value of `--devices` for this process.
      environment: Further environment variables of the process.
    """

    membership: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    devices: str | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        """Return the environment variables that pass this to a child."""
        # By the environment and not by options: the command line of a child stays the user's own,
        # so that the command to resume which it records is the one that was typed.
        encoded = json.dumps({"membership": dict(self.membership), "devices": self.devices})
        return {VARIABLE: encoded, **self.environment}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of several processes to `parser`."""
    hosts = parser.add_argument_group(
        "several processes",
        "Run the same command on every host, with a different --process-id. All hosts\n"
        "must share the disk of records.directory, unless it is a bucket.",
    )
    hosts.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help="start N processes on this machine, and split --devices among them",
    )
    hosts.add_argument(
        "--coordinator", metavar="HOST:PORT", help="host of process 0 and a free port on it"
    )
    hosts.add_argument(
        "--num-processes", type=positive, metavar="N", help="number of processes of the run"
    )
    hosts.add_argument(
        "--process-id", type=whole, metavar="I", help="index of this process, starting at 0"
    )
    hosts.add_argument(
        "--distributed",
        action="store_true",
        help="detect these values from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and "
        "JAX_PROCESS_ID, or from SLURM, Open MPI, Kubernetes or Cloud TPU",
    )
    hosts.add_argument(
        "--join-seconds",
        type=positive,
        metavar="S",
        help="maximum time between the starts of the processes, in seconds (default: 20)",
    )


def read(arguments: argparse.Namespace, problems: Problems) -> list[Process]:
    """Return the processes to start on this machine; empty for a run of one process.

    Args:
      arguments: The options of `add_arguments`, and `devices`.
      problems: Collects the problems found.
    """
    # Also a single member of a run (--coordinator, --distributed) is started as a child process,
    # under a launcher: JAX ends a process whose peer is lost from native code, and only a parent
    # can then say why, and exit with a code that a queue understands.
    given = {
        "--coordinator": arguments.coordinator,
        "--num-processes": arguments.num_processes,
        "--process-id": arguments.process_id,
    }
    patience = {"join_seconds": arguments.join_seconds} if arguments.join_seconds else {}
    ways = [bool(arguments.processes), any(v is not None for v in given.values())]
    if sum([*ways, arguments.distributed]) > 1:
        what = "--processes, --coordinator and --distributed cannot be combined"
        problems.add(what, remedy="keep one of them")
        return []
    if arguments.distributed:
        return [Process(patience, arguments.devices)]
    # --join-seconds has no effect on these: one launcher starts them together.
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
    # The devices must be counted, since each process gets an equal part of them: CPUs are virtual,
    # and every process makes its own; GPUs exist once, so each process is given the ids of its
    # part.
    match = _SHARED.fullmatch(devices or "")
    if match is None or int(match[2]) % count or not int(match[2]):
        what = f"{count} processes cannot split {devices or 'devices without a count'}"
        problems.add(what, remedy=f"give --devices cpu:N or gpu:N, N a multiple of {count}")
        return []
    kind, share = match[1], int(match[2]) // count
    # Without JAX_COORDINATOR_BIND_ADDRESS the coordinator listens on all interfaces, and anybody in
    # the network could join a run that needs this machine only.
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
    # The port is free now; another process may take it before the coordinator binds it. Every child
    # has to know the number before any of them starts, so there is no way without this gap.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def of_child() -> Process | None:
    """Return the `Process` that a launcher passed to this process; None if there is no launcher."""
    encoded = os.environ.get(VARIABLE)
    return None if encoded is None else Process(**json.loads(encoded))


# A child process joins the others of its run.


@contextlib.contextmanager
def joined(process: Process) -> Iterator[None]:
    """Join the other processes of the run for the duration of a block.

    If the block raises, the others are sent the reason before this process leaves.

    Args:
      process: This process.

    Raises:
      BadInput: The others cannot be joined, or differ in their versions or their source.
    """
    # What a launcher passed takes precedence over what the environment (SLURM, Kubernetes, ...)
    # says.
    import jax

    from luthier.parallel import distributed
    from luthier.records import read_facts

    detected = distributed.Membership.of_environment(os.environ)
    known = {name: value for name, value in vars(detected).items() if value is not None}
    membership = dataclasses.replace(detected, **known | dict(process.membership))
    distributed.join(membership, read_facts())
    index = distributed.process_index()
    distributed.notify_parent(process=index, processes=distributed.process_count())
    if index:
        # Every process runs the same command; only process 0 prints its output. The stream is
        # closed and not only replaced: it has the last descriptor of the terminal or pipe here (see
        # `_keep_libraries_off_the_terminal`), and whatever kept a reference to it must not print
        # there.
        sys.stdout.close()
        sys.stdout = sys.stderr  # the log
    try:
        yield
    except BaseException as raised:
        error = distributed.explain(raised) if isinstance(raised, Exception) else raised
        # The others learn the reason from the coordination service, before this process leaves it.
        is_silent = isinstance(error, distributed.ProcessUnreachable)
        distributed.farewell("" if is_silent else _line(error))
        if error is raised:
            raise
        raise error from raised
    # Only after success: shutting down waits for the other processes, which may have failed.
    jax.distributed.shutdown()


def _line(error: BaseException) -> str:
    text = str(error) if isinstance(error, LuthierError) else repr(error)
    return " ".join(text.split())[:500]


# A child process: `python -m luthier.cli.hosts train ...`, started by its launcher.

ORPHAN_SECONDS = 60.0
"""The time in which a process whose launcher has ended can save its run."""


def main(argv: Sequence[str]) -> NoReturn:
    """Run a command line, and exit without waiting for the other processes.

    Args:
      argv: The arguments after `luthier`.
    """
    environment.report_native_crashes()
    _keep_libraries_off_the_terminal()
    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    code = command_line.main(argv)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # JAX's exit handlers would wait for processes that may have ended.
    os._exit(code)


def _keep_libraries_off_the_terminal() -> None:
    """Redirect what native libraries write to the standard output into the log."""
    # At the level of descriptors, since native code does not know `sys.stdout`. Gloo, for one,
    # prints its connections to standard output.
    terminal = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(terminal, "w", buffering=1, encoding="utf-8", errors="replace")


def _follow_parent(parent: int) -> None:
    """End this process, after saving, when its launcher has ended."""
    # A launcher that was killed (SIGKILL, out of memory) cannot pass a signal on; its children
    # would train on, or hold the devices and wait in a collective.
    while os.getppid() == parent:
        time.sleep(1.0)
    # As in a preemption: the run is saved first.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
