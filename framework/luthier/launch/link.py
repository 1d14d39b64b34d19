"""TCP connections between a driver and the workers of its device groups, with a shared secret.

The driver listens, and says where in a file that only its user can read, in the study's folder (or
in the object store that is the study's home, for all who can read that). A worker reads the file
and connects. Both prove that they know the secret without sending it: each
answers the other's random number with a keyed hash. After that both send JSON lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
import os
import pathlib
import secrets
import socket
import time
from collections.abc import Sequence
from typing import IO, Any

from luthier.errors import Problem, RunError
from luthier.storage.bucket import Bucket, is_url

HELLO_SECONDS = 10.0
DEAD_SECONDS = 45
"""After this long without a sign of life the other machine counts as gone."""

_LONGEST_LINE = 4096


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a driver.

    Args:
      hosts: Names and addresses of its machine; workers take the first that answers.
      port: The port.
      secret: What only the driver's user knows.
    """

    hosts: Sequence[str]
    port: int
    secret: str

    def write(self, path: pathlib.Path) -> None:
        """Write the file that workers read, readable by its owner only.

        Args:
          path: The file.
        """
        # Written beside and renamed: workers poll for this file, and must never read half of it.
        building = path.with_suffix(".tmp")
        # The mode is given at creation: a chmod afterwards leaves a moment in which anybody can
        # open it.
        descriptor = os.open(building, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(self), file)
        os.replace(building, path)

    @classmethod
    def read(cls, place: str | os.PathLike[str]) -> Address:
        """Read the file that `write` wrote.

        Args:
          place: The file, or its URL in an object store.

        Raises:
          FileNotFoundError: There is no such file.
        """
        text = os.fspath(place)
        if not is_url(text):
            return cls(**json.loads(pathlib.Path(text).read_text(encoding="utf-8")))
        folder, _, name = text.rpartition("/")
        data = Bucket(folder).read(name).data
        if data is None:
            raise FileNotFoundError(text)
        return cls(**json.loads(data))


def listen(host: str | None = None) -> tuple[socket.socket, Address]:
    """Listen on a free port of all networks of this machine; return the socket and its address.

    Args:
      host: What workers call this machine; None gives them all names that are known.
    """
    # All networks, because it is not known from here by which one the nodes reach this machine; the
    # handshake keeps strangers out.
    listening = socket.create_server(("", 0), backlog=128)
    hosts = [host] if host else _names()
    return listening, Address(hosts, listening.getsockname()[1], secrets.token_hex(32))


def _names() -> list[str]:
    names = [socket.getfqdn(), socket.gethostname()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; asks which address would be used
            # A connected UDP socket sends nothing; 192.0.2.1 is reserved for documentation, so that
            # the default route decides.
            names.append(probe.getsockname()[0])
        except OSError:
            pass
    # The loopback address last: it is right only for workers on this machine, and elsewhere it
    # names another one.
    return list(dict.fromkeys([*names, "127.0.0.1"]))


@dataclasses.dataclass
class Connection:
    """An open connection.

    Args:
      received: What the other side sends.
      sent: What it is sent.
      socket: The connection itself.
    """

    received: IO[bytes]
    sent: IO[bytes]
    socket: socket.socket

    def cut(self) -> None:
        """Close the connection at once, for both sides."""
        with contextlib.suppress(OSError):
            # `close` alone does not wake a thread that reads from the connection.
            self.socket.shutdown(socket.SHUT_RDWR)
        for part in (self.sent, self.received, self.socket):
            with contextlib.suppress(OSError):
                part.close()


def greet(connection: socket.socket, secret: str) -> tuple[Connection, dict[str, Any]] | None:
    """Authenticate a worker that has connected; return the connection and its description.

    Args:
      connection: As `accept` returned it.
      secret: What the worker must know.

    Returns:
      None, with the connection closed, where it does not know the secret.
    """
    # The protocol, with random numbers against replays: the driver sends a challenge; the worker
    # answers with its proof, a challenge of its own and its description; the driver proves itself.
    # Then the timeout of the handshake is lifted.
    line = _prepare(connection)
    try:
        mine = secrets.token_hex(16)
        _say(line, {"challenge": mine})
        proof_message = _hear(line)
        # The worker proves itself first, so that a stranger who connects learns no keyed hash of a
        # challenge of its own choice. `compare_digest` takes equally long for any difference.
        is_known = hmac.compare_digest(proof_message["proof"], _proof(secret, "worker", mine))
        if not is_known:
            line.cut()
            return None
        _say(line, {"proof": _proof(secret, "driver", proof_message["challenge"])})
        connection.settimeout(None)
        return line, proof_message["about"]
    except (OSError, ValueError, KeyError, TypeError):
        line.cut()
        return None


def connect(
    place: str | os.PathLike[str], about: dict[str, Any], seconds: float
) -> Connection | None:
    """Connect a worker to its driver; None where none answers that knows the secret.

    Args:
      place: The file with the driver's address, or its URL.
      about: The description of the worker.
      seconds: How long to try.

    Raises:
      RunError: The file cannot be read.
    """
    # Retried, because the driver may be between two starts: a resumed study writes a new file with
    # another port, which is why the file is read again each time. No file at all means that the
    # study was closed, and is final.
    deadline = time.monotonic() + seconds
    while True:
        try:
            address = Address.read(place)
        except FileNotFoundError:
            return None
        # Final, unlike a refused connection: the file is renamed into place whole (`write`), so one
        # that is damaged or may not be read does not get better by waiting.
        except (OSError, ValueError, TypeError) as error:
            raise RunError(Problem(f"cannot read where the driver is: {error}")) from error
        # The first that answers *and* proves itself: a name may resolve to another machine here,
        # where something else listens on that port.
        for host in address.hosts:
            try:
                connection = socket.create_connection((host, address.port), HELLO_SECONDS)
            except OSError:
                continue
            line = _introduce(_prepare(connection), address.secret, about)
            if line is not None:
                return line
        # Behind the attempt, so that there is at least one, however short the time is.
        if time.monotonic() >= deadline:
            return None
        time.sleep(1.0)


def _introduce(line: Connection, secret: str, about: dict[str, Any]) -> Connection | None:
    try:
        theirs, mine = _hear(line)["challenge"], secrets.token_hex(16)
        proof = _proof(secret, "worker", theirs)
        _say(line, {"challenge": mine, "proof": proof, "about": about})
        # The worker checks the driver, too: it will run whatever code the driver's messages name.
        if hmac.compare_digest(_hear(line)["proof"], _proof(secret, "driver", mine)):
            line.socket.settimeout(None)
            return line
    except (OSError, ValueError, KeyError, TypeError):
        pass
    line.cut()
    return None


def _prepare(connection: socket.socket) -> Connection:
    connection.settimeout(HELLO_SECONDS)
    # Small messages that wait for answers: without it, each could be held back for an
    # acknowledgement.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        # Keep-alive finds a machine that is gone while nothing is sent; TCP_USER_TIMEOUT one that
        # does not acknowledge what is sent. The system's own limits are hours and a quarter of an
        # hour.
        ("TCP_KEEPIDLE", DEAD_SECONDS // 3),
        ("TCP_KEEPINTVL", DEAD_SECONDS // 6),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", DEAD_SECONDS * 1000),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(connection.makefile("rb"), connection.makefile("wb"), connection)


def _proof(secret: str, who: str, challenge: str) -> str:
    # The role is in the hash: a worker's proof cannot be sent back to it as the driver's.
    return hmac.new(secret.encode(), f"{who} {challenge}".encode(), hashlib.sha256).hexdigest()


def _say(line: Connection, fields: dict[str, Any]) -> None:
    line.sent.write(json.dumps(fields).encode() + b"\n")
    line.sent.flush()


def _hear(line: Connection) -> dict[str, Any]:
    # Bounded: before the handshake is over, the other side may be anybody.
    text = line.received.readline(_LONGEST_LINE)
    if not text.endswith(b"\n"):
        raise ValueError("the connection ended before a whole message")
    return json.loads(text)
