"""Rendezvous of the processes of a run, before `jax.distributed.initialize` joins them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from luthier.errors import BadInput, LuthierError, Problem
from luthier.parallel.distributed.messages import (
    ProcessUnreachable,
    differences,
    is_several,
    lost,
    notify_parent,
    process_count,
)

# The rendezvous of a run: all its processes meet before JAX joins them.
#
# Process 0 listens where JAX's coordinator will, and every other process connects there and sends
# who it is, in a line of JSON. When all have come, or one of them does not fit, or the time is
# over, process 0 answers each of them with the problems: all processes end with the same lines. JAX
# itself would wait for missing processes and then abort, and processes of different versions may
# not understand each other there. Afterwards the port is free again, for the coordinator of JAX.

JOIN_SECONDS = 20.0
"""Default of the time between the starts of the first and the last process of a run."""

_BIND = "JAX_COORDINATOR_BIND_ADDRESS"
_LARGEST_BYTES = 1 << 20
_SPEAK_SECONDS = 2.0
_STRAGGLE_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_MOST_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Attendance:
    """The message of a process at the rendezvous.

    Args:
      process: Its index, from 0.
      processes: Number of processes that it was started with.
      facts: Values that must be the same everywhere, by name.
      host: Name of its machine.
    """

    process: int
    processes: int
    facts: Mapping[str, str]
    host: str = dataclasses.field(default_factory=platform.node)


def call_roll(address: str, mine: Attendance, seconds: float = JOIN_SECONDS) -> None:
    """Wait until all processes of the run have come and none of them differs from process 0.

    Args:
      address: Host and port of process 0; the port is free again afterwards.
      mine: The message of this process.
      seconds: Maximum time to wait for the others.

    Raises:
      BadInput: A process did not come, or differs; the same lines in all that came.
    """
    host, _, port = address.rpartition(":")
    lines = (_preside if mine.process == 0 else _attend)(host, int(port), mine, seconds)
    if lines:
        raise BadInput(map(Problem, lines))


def _preside(host: str, port: int, mine: Attendance, seconds: float) -> list[str]:
    """Receive the others, and send them the verdict."""
    # Connections stay open until the verdict: it needs all of them, and an open connection is how a
    # process notices that process 0 has died. Strangers at the port (a health check, a scanner)
    # send no valid line and are ignored. Once one process does not fit, the run cannot start: the
    # others get a short time to arrive, so that all of them are told, instead of all of the time.
    # `host` is for `_attend`, which has the same signature: here `_listen` chooses the interfaces.
    came, doubles, expected = {0: mine}, [], mine.processes
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(port))
        connections = []
        while len(came) < expected and (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection = stack.enter_context(listener.accept()[0])
            except TimeoutError:
                break
            # One at a time: a process sends its line right after it connects, and a silent stranger
            # costs at most `_SPEAK_SECONDS`.
            other = _hear(connection)
            if other is None:
                continue
            connections.append(connection)
            known = came.setdefault(other.process, other)
            doubles += [] if known is other else [(known, other)]
            if known is not other or not _fits(other, mine.processes):
                # How many will come is unknown now: as many as the largest claim.
                expected = max(expected, other.processes)
                deadline = min(deadline, time.monotonic() + _STRAGGLE_SECONDS)
        lines = [str(problem) for problem in verdict(came, doubles, seconds)]
        for connection in connections:
            # One that has ended meanwhile must not keep the verdict from those after it.
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(lines).encode() + b"\n")
    return lines


def _fits(other: Attendance, count: int) -> bool:
    return other.processes == count and other.process < count


def _listen(port: int) -> socket.socket:
    """Return a server socket where JAX's coordinator will listen."""
    # On all interfaces unless JAX is told otherwise, and for IPv4 and IPv6 at once where the system
    # can: the address that the others were given may be of either family.
    place, family = ("", port), socket.AF_INET
    if bound := os.environ.get(_BIND):
        name, _, number = bound.rpartition(":")
        place = (name.strip("[]"), int(number))
        family = socket.AF_INET6 if ":" in name else family
    both = family is socket.AF_INET and not place[0] and socket.has_dualstack_ipv6()
    if both:
        family = socket.AF_INET6
    try:
        return socket.create_server(place, family=family, backlog=1024, dualstack_ipv6=both)
    except OSError as error:
        what = f"process 0 cannot listen at port {place[1]}: {_reason(error)}"
        raise BadInput(Problem(what, "", "--coordinator", "choose a port that is free")) from None


def _hear(connection: socket.socket) -> Attendance | None:
    """Return the message of a process; None from anything that is not a process of luthier."""
    connection.settimeout(_SPEAK_SECONDS)
    try:
        return Attendance(**json.loads(_read_line(connection)))
    except (OSError, ValueError, TypeError):
        return None


def _attend(host: str, port: int, mine: Attendance, seconds: float) -> list[str]:
    """Connect to process 0, and return its verdict."""
    with _reach(host.strip("[]"), port, seconds) as connection:
        # Process 0 counts its time from when it began to listen, before this connection: its
        # verdict comes within `seconds`, or a straggler's time later.
        connection.settimeout(seconds + _STRAGGLE_SECONDS)
        try:
            connection.sendall(json.dumps(dataclasses.asdict(mine)).encode() + b"\n")
            answer = _read_line(connection)
        except TimeoutError:
            return [f"process 0 at {host}:{port} does not answer"]
        except OSError as error:
            return [f"process 0 at {host}:{port} has ended: {_reason(error)}"]
    try:
        return [str(line) for line in json.loads(answer)]
    except ValueError:
        what = f"the process at {host}:{port} is not a process 0 that waits for others"
        remedy = "the run continues without this process, or the port has another user"
        return [str(Problem(what, remedy=remedy))]


def _reach(host: str, port: int, seconds: float) -> socket.socket:
    # Process 0 may start later than this one, so a refused connection is tried again.
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, port), timeout=_SPEAK_SECONDS)
        except OSError as error:
            if time.monotonic() >= deadline:
                what = (
                    f"process 0 does not answer at {host}:{port} within {seconds:.0f} s: "
                    f"{_reason(error)}"
                )
                remedy = "start process 0 there, on a port that this machine can reach"
                raise BadInput(Problem(what, remedy=remedy)) from None
        time.sleep(_RETRY_SECONDS)


def _read_line(connection: socket.socket) -> bytes:
    read = b""
    while not read.endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part or len(read) > _LARGEST_BYTES:
            break
        read += part
    return read


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def verdict(
    came: Mapping[int, Attendance],
    doubles: Sequence[tuple[Attendance, Attendance]],
    seconds: float,
) -> list[Problem]:
    """Return the problems that keep processes from being one run.

    Args:
      came: Messages of the processes that came, by index.
      doubles: Pairs of messages with the same index.
      seconds: Time that was waited for all of them.
    """
    # Wrong indices and counts come first, alone: as long as they are wrong, which processes are
    # absent, or whose facts are compared, is a guess.
    count, problems = came[0].processes, []
    for first, second in doubles:
        what = f"two processes claim to be process {first.process} of {count}"
        where = first.host if first.host == second.host else f"{first.host} and {second.host}"
        remedy = "give each of them a --process-id of its own"
        problems.append(Problem(f"{what} (on {where})", remedy=remedy))
    for index, other in sorted(came.items()):
        if other.processes != count:
            what = (
                f"process {index} on {other.host} was started as one of {other.processes} "
                f"processes, process 0 on {came[0].host} as one of {count}"
            )
            problems.append(Problem(what, remedy="give all of them the same --num-processes"))
        elif index >= count:
            what = f"there is no process {index} of {count} (claimed on {other.host})"
            problems.append(Problem(what, remedy="processes are counted from 0"))
    if not problems:
        absent = [index for index in range(count) if index not in came]
        problems += _absent(absent, count, seconds) if absent else []
        # An absent process gets the facts of process 0, which cannot differ from themselves:
        # `differences` takes the place in the list for the index of a process.
        facts = [came[index].facts if index in came else came[0].facts for index in range(count)]
        problems += differences(facts)
    return problems


def _absent(absent: Sequence[int], count: int, seconds: float) -> list[Problem]:
    named = ", ".join(map(str, absent[:_MOST_NAMED]))
    more = len(absent) - _MOST_NAMED
    which = named if more <= 0 else f"{named} and {more} more"
    noun = "process" if len(absent) == 1 else "processes"
    what = f"{noun} {which} of {count} did not connect within {seconds:.0f} s"
    remedy = "check that every host has started, or wait longer with --join-seconds"
    return [Problem(what, remedy=remedy)]


# How a process joins the others of its run.

HEARTBEAT_SECONDS = 15
"""Time without a heartbeat after which a process counts as dead, and JAX ends all the others."""

CONNECT_SECONDS = 60
"""Maximum time for JAX to join processes that have all come to the rendezvous."""

PATIENCE = "LUTHIER_JOIN_SECONDS"

_config: Any = jax.config
_SECONDS = re.compile(r"\d+(\.\d+)?")
_ONE_TASK = re.compile(r"1(\(x\d+\))?")


@dataclasses.dataclass(frozen=True)
class Membership:
    """Membership of this process in a run. None means: detect it from the cluster's environment.

    Args:
      coordinator_address: Host and port of process 0, such as `10.0.0.1:8476`.
      num_processes: Number of processes of the run.
      process_id: Index of this process, from 0.
      local_device_ids: The devices of this machine that the process uses; None means all.
      join_seconds: Maximum time to wait for the other processes.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: Sequence[int] | None = None
    join_seconds: float = JOIN_SECONDS

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Membership:
        """Read `JAX_COORDINATOR_ADDRESS`, `_NUM_PROCESSES` and `_PROCESS_ID` from an environment.

        `LUTHIER_JOIN_SECONDS` is the maximum time to wait for the other processes.

        Args:
          environment: Such as `os.environ`.

        Raises:
          BadInput: A number is malformed.
        """
        numbers: dict[str, int | None] = {}
        for name in ("num_processes", "process_id"):
            variable = f"JAX_{name.upper()}"
            text = environment.get(variable)
            if text is not None and not text.isdecimal():
                raise BadInput(Problem(f"{variable}={text} is not a whole number"))
            numbers[name] = None if text is None else int(text)
        patience = environment.get(PATIENCE, str(JOIN_SECONDS))
        if not _SECONDS.fullmatch(patience):
            raise BadInput(Problem(f"{PATIENCE}={patience} is not a number of seconds"))
        address = environment.get("JAX_COORDINATOR_ADDRESS")
        who = numbers["num_processes"], numbers["process_id"]
        return cls(address, *who, join_seconds=float(patience))


def join(membership: Membership, facts: Mapping[str, str]) -> None:
    """Join the other processes of the run, before JAX starts its backends.

    Missing values are detected from the environment of SLURM, Open MPI, Kubernetes or Cloud TPU.

    Args:
      membership: Membership of this process.
      facts: Values that must be the same in all processes, by name.

    Raises:
      BadInput: The index of this process is unknown, or the others cannot be reached, or differ.
    """
    # Detection comes first, because the rendezvous needs its result. So JAX gets complete
    # arguments, and its own detection, which would run again, is switched off. Its warnings are
    # hints about a cluster that was nearly detected: they go into the error, not to the terminal.
    hints: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = located(membership)
            hints += [str(warning.message) for warning in caught]
        index, count = found.process_id, found.num_processes
        if found.coordinator_address and index is not None and count is not None and count > 1:
            mine = Attendance(index, count, facts)
            call_roll(found.coordinator_address, mine, found.join_seconds)
        given = {name: value for name, value in vars(found).items() if value is not None}
        del given["join_seconds"]
        jax.distributed.initialize(
            **given,
            cluster_detection_method="deactivate",
            initialization_timeout=CONNECT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    # These are what detection and `initialize` raise; a `BadInput` of the rendezvous passes.
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        raise _refusal(membership, error, hints) from error
    if _has_machine_to_itself(membership):
        # JAX gives each SLURM task one GPU of its machine. A task that has the machine to itself
        # gets all of them. This comes last because `initialize` sets the same options; a version of
        # JAX that lacks one of them has nothing to reset.
        for kind in ("cuda", "rocm"):
            with contextlib.suppress(AttributeError):
                _config.update(f"jax_{kind}_visible_devices", "all")


def located(membership: Membership) -> Membership:
    """Return a membership with missing values detected from the environment of the cluster.

    Args:
      membership: The known values.
    """
    if membership.num_processes is not None and membership.local_device_ids is None:
        return membership
    _choose_port()
    # JAX detects clusters only inside `jax.distributed.initialize`, which returns nothing. The
    # private class is the only way to know the result before that.
    from jax._src.clusters import ClusterEnv

    address, count, index, devices = ClusterEnv.auto_detect_unset_distributed_params(
        membership.coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS"),
        membership.num_processes,
        membership.process_id,
        membership.local_device_ids or _local_devices(),
        None,
        CONNECT_SECONDS,
    )
    return Membership(address, count, index, devices, membership.join_seconds)


def _local_devices() -> list[int] | None:
    named = os.environ.get("JAX_LOCAL_DEVICE_IDS")
    return [int(number) for number in named.split(",")] if named else None


def _choose_port() -> None:
    """Keep two runs in one allocation of SLURM apart: JAX derives one port from the job's id."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    if job and step and job.isdecimal() and step.isdecimal():
        port = 61440 + (int(job) + 97 * int(step)) % 4096
        os.environ.setdefault("JAX_COORDINATOR_PORT", str(port))


def _has_machine_to_itself(membership: Membership) -> bool:
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    chosen = membership.local_device_ids or os.environ.get("JAX_LOCAL_DEVICE_IDS")
    return membership.num_processes is None and not chosen and bool(_ONE_TASK.fullmatch(tasks))


def _refusal(membership: Membership, error: Exception, hints: Sequence[str]) -> BadInput:
    reason = " ".join(str(error).split())
    if isinstance(error, ValueError) and "defined" in reason:
        what = "no cluster was detected, so the index of this process is unknown"
        if hints:
            what += f" ({' '.join(hints[0].split())})"
        remedy = "give --coordinator HOST:PORT --num-processes N --process-id I"
        return BadInput(Problem(what, "", "--distributed", remedy))
    if membership.coordinator_address is None:
        return BadInput(Problem(f"cannot join the other processes: {reason}", "", "--distributed"))
    what = f"cannot join the other processes at {membership.coordinator_address}: {reason}"
    remedy = f"start all {membership.num_processes} processes, each with a --process-id of its own"
    return BadInput(Problem(what, "", "--coordinator", remedy))


# Distinguishing the end of another process from an error of this one.

_CONTACT = re.compile(
    r"gloo|nccl|rccl|connection (closed|reset|refused)|socket closed|UNAVAILABLE|"
    r"coordination service|heartbeat",
    re.IGNORECASE,
)


def explain(error: Exception) -> Exception:
    """Return an error that names the process that ended, if that is what caused an error.

    Args:
      error: The error that was raised.
    """
    # If one process ends, collectives fail in the others, with errors of Gloo or NCCL that do not
    # say which one it was. It may have reported its end itself (`farewell`), perhaps a moment later
    # than the connection broke: so that is waited for. If it could not, JAX finds out by its
    # heartbeats within HEARTBEAT_SECONDS and aborts this process too; its parent reads the name in
    # the log.
    if isinstance(error, LuthierError) or not is_several():
        return error
    if not (isinstance(error, jax.errors.JaxRuntimeError) and _CONTACT.search(str(error))):
        return error
    deadline = time.monotonic() + 2 * HEARTBEAT_SECONDS
    while time.monotonic() < deadline:
        try:
            if (reported := lost()) is not None:
                return reported
        except jax.errors.JaxRuntimeError:
            break
        time.sleep(0.5)
    notify_parent(unreachable=True)  # for its exit code: nothing is wrong with this process
    return ProcessUnreachable(f"one of the {process_count()} processes cannot be reached: {error}")
