"""The roll call of a run: all its processes meet before JAX joins them.

Process 0 listens where JAX's coordinator will, and every other process comes there and tells who it
is, in a line of JSON. When all have come, or one of them does not fit, or the time is over, process
0 answers each of them with what is wrong: all processes end with the same lines. JAX itself would
wait for whoever is missing and then abort, and processes of different versions may not understand
each other there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence

from luthier.errors import BadInput, Problem
from luthier.parallel.distributed.agreement import differences

JOIN_SECONDS = 20.0
"""How far apart the processes of a run may start, where nothing else is said."""

_BIND = "JAX_COORDINATOR_BIND_ADDRESS"
_LARGEST_BYTES = 1 << 20
_SPEAK_SECONDS = 2.0
_STRAGGLE_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_MOST_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Attendance:
    """What a process tells at the roll call.

    Args:
      process: Which one it is, from 0.
      processes: How many it believes the run to have.
      facts: What must be the same everywhere, by what it is called.
      host: The name of its machine.
    """

    process: int
    processes: int
    facts: Mapping[str, str]
    host: str = dataclasses.field(default_factory=platform.node)


def call_roll(address: str, mine: Attendance, seconds: float = JOIN_SECONDS) -> None:
    """Return when all processes of the run have come and none of them differs from process 0.

    Args:
      address: Host and port of process 0; the port is free again afterwards.
      mine: What this process tells.
      seconds: How long the others are waited for.

    Raises:
      BadInput: Some process did not come, or differs; the same lines in all that came.
    """
    host, _, port = address.rpartition(":")
    lines = (_preside if mine.process == 0 else _attend)(host, int(port), mine, seconds)
    if lines:
        raise BadInput(map(Problem, lines))


def _preside(host: str, port: int, mine: Attendance, seconds: float) -> list[str]:
    """Receive the others, and tell them the verdict."""
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
            other = _hear(connection)
            if other is None:
                continue
            connections.append(connection)
            known = came.setdefault(other.process, other)
            doubles += [] if known is other else [(known, other)]
            if known is not other or not _fits(other, mine.processes):
                # Nobody can tell any more how many will come.
                expected = max(expected, other.processes)
                deadline = min(deadline, time.monotonic() + _STRAGGLE_SECONDS)
        lines = [str(problem) for problem in verdict(came, doubles, seconds)]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(lines).encode() + b"\n")
    return lines


def _fits(other: Attendance, count: int) -> bool:
    return other.processes == count and other.process < count


def _listen(port: int) -> socket.socket:
    """Return what listens where JAX's coordinator will."""
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
    """Return what somebody says who came; None where it is no process of luthier."""
    connection.settimeout(_SPEAK_SECONDS)
    try:
        return Attendance(**json.loads(_read_line(connection)))
    except (OSError, ValueError, TypeError):
        return None


def _attend(host: str, port: int, mine: Attendance, seconds: float) -> list[str]:
    """Come to process 0, and return its verdict."""
    with _reach(host.strip("[]"), port, seconds) as connection:
        # It counts from when it began to listen, which was before it was reached.
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
        what = f"what answers at {host}:{port} is no process 0 that waits for others"
        remedy = "the run goes on without this process, or the port has another user"
        return [str(Problem(what, remedy=remedy))]


def _reach(host: str, port: int, seconds: float) -> socket.socket:
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
    """Return what keeps processes from being one run.

    Args:
      came: What each process told that came, by its index.
      doubles: Pairs that told the same index.
      seconds: How long all were waited for.
    """
    count, problems = came[0].processes, []
    for first, second in doubles:
        what = f"two processes say that they are process {first.process} of {count}"
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
            what = f"there is no process {index} of {count}, as the one on {other.host} says it is"
            problems.append(Problem(what, remedy="processes are counted from 0"))
    if not problems:
        absent = [index for index in range(count) if index not in came]
        problems += _absent(absent, count, seconds) if absent else []
        facts = [came[index].facts if index in came else came[0].facts for index in range(count)]
        problems += differences(facts)
    return problems


def _absent(absent: Sequence[int], count: int, seconds: float) -> list[Problem]:
    named = ", ".join(map(str, absent[:_MOST_NAMED]))
    more = len(absent) - _MOST_NAMED
    which = named if more <= 0 else f"{named} and {more} more"
    noun = "process" if len(absent) == 1 else "processes"
    what = f"{noun} {which} of {count} did not come within {seconds:.0f} s"
    remedy = "see that every host starts, or wait longer with --join-seconds"
    return [Problem(what, remedy=remedy)]
