"""A process of a gang, as an actor of Ray runs it on the node where its devices are."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

# 1 is PR_SET_PDEATHSIG, and 9 is SIGKILL. Set by the process itself: a hook between fork and exec
# is no good in an actor, which has threads.
_TIE = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Member:
    """Runs one process, and dies with it and it with this."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None

    def whereabouts(self) -> tuple[str, int, int]:
        """Return an address of this node, a port that is free there, and its place in a slice."""
        import ray

        with socket.socket() as found:
            found.bind(("", 0))
            port = found.getsockname()[1]
        worker = int(os.environ.get("TPU_WORKER_ID", "0"))
        return ray.util.get_node_ip_address(), port, worker

    def run(
        self,
        command: Sequence[str],
        working_directory: str,
        environment: Mapping[str, str],
        log: str,
    ) -> int:
        """Run the process to its end; return its exit code, below zero for a signal.

        Args:
          command: The words after `python`.
          working_directory: Where it runs.
          environment: Variables that it gets beside those of this node.
          log: The file that what it prints is appended to.
        """
        pathlib.Path(log).parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self._running = subprocess.Popen(
                [*_ends_with_parent(), *command],
                cwd=working_directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        return self._running.wait()

    def end(self) -> None:
        """Have the process save and leave."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                self._running.send_signal(signal.SIGTERM)


def _ends_with_parent() -> list[str]:
    """Return Python, which Linux kills when the actor is gone: its node is taken for lost then."""
    tie = ["-I", "-S", "-c", _TIE] if sys.platform == "linux" else []
    return [sys.executable, *tie]
