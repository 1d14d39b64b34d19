"""A machine to stage faults on: processes that start at once, in folders of their own."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
PROJECT = pathlib.Path(__file__).with_name("project")


class Started:
    """A command that was started.

    Args:
      folder: Where it runs.
      number: Which one it is.
    """

    def __init__(self, folder: pathlib.Path, number: int):
        self.folder = folder
        self.out = folder / f"out-{number}.txt"
        self.err = folder / f"err-{number}.txt"
        self.pid = 0
        self.code: int | None = None
        self.begun = threading.Event()
        self.ended = threading.Event()
        self.began_at = time.monotonic()
        self.ended_at = 0.0

    def wait(self, seconds: float = 300) -> int:
        """Return the exit code, below zero for a signal."""
        if not self.ended.wait(seconds):
            self.kill_all()
            raise AssertionError(f"still running after {seconds} s:\n{self.stderr}")
        assert self.code is not None
        return self.code

    @property
    def stderr(self) -> str:
        """What it wrote to its standard error."""
        return self.err.read_text(errors="replace") if self.err.exists() else ""

    @property
    def stdout(self) -> str:
        """What it wrote to its standard output."""
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def send(self, number: int) -> None:
        """Send a signal to the process that was started."""
        os.kill(self.pid, number)

    @property
    def children(self) -> list[int]:
        """The processes that it watches, in their order; empty where it trains itself."""
        path = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children")
        try:
            return sorted(map(int, path.read_text().split()))
        except OSError:
            return []

    def kill_all(self) -> None:
        """End it and its children, without a chance to save."""
        for pid in [self.pid, *self.children]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


class Machine:
    """Starts commands; a context manager that ends all of them.

    Args:
      folder: For what they share: the cache of compiled programs.
    """

    def __init__(self, folder: pathlib.Path):
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        environment = os.environ | cache | {"JAX_PLATFORMS": "cpu"}
        packages = [PROJECT, REPOSITORY / "framework", REPOSITORY]
        environment["PYTHONPATH"] = os.pathsep.join(map(str, packages))
        environment["XLA_FLAGS"] = QUICK
        self._started: list[Started] = []
        self._zygote = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).with_name("zygote.py"))],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._zygote.stdout is not None
        assert json.loads(self._zygote.stdout.readline()) == {"ready": True}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *unused: object) -> None:
        for started in self._started:
            if not started.ended.is_set():
                started.kill_all()
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        try:
            self._zygote.wait(30)
        except subprocess.TimeoutExpired:  # a machine that is very busy
            self._zygote.kill()
            self._zygote.wait()
        self._reader.join(5)
        assert self._zygote.stdout is not None
        self._zygote.stdout.close()

    def start(
        self,
        folder: pathlib.Path,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> Started:
        """Start `luthier WORDS` in a folder.

        Args:
          folder: The working directory, with what the process writes to its standard files.
          words: The command line after `luthier`.
          environment: Further variables.
          limits: Limits of the system by their name, such as `RLIMIT_FSIZE`.
        """
        number = len(self._started)
        started = Started(folder, number)
        self._started.append(started)
        order = {
            "number": number,
            "folder": str(folder),
            "words": list(words),
            "environment": dict(environment or {}),
            "limits": dict(limits or {}),
            "out": str(started.out),
            "err": str(started.err),
        }
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(order) + "\n")
        self._zygote.stdin.flush()
        assert started.begun.wait(30)
        return started

    def _read(self) -> None:
        assert self._zygote.stdout is not None
        for line in self._zygote.stdout:
            reply = json.loads(line)
            started = self._started[reply["number"]]
            if "pid" in reply:
                started.pid = reply["pid"]
                started.begun.set()
            else:
                started.code = reply["code"]
                started.ended_at = time.monotonic()
                started.ended.set()
