"""Starts commands of luthier as processes of their own, without waiting for imports each time.

A program that has imported everything and forks: each child is a process as the shell would start
one, with its own session, folder, variables, limits and files. It reads one JSON object a line,
and answers with lines: `{"number", "pid"}` when a child has begun, and `{"number", "code"}` when
it has ended. The parent of several processes forks them too.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback


def _import_everything() -> None:
    import grain  # noqa: F401
    from orbax.checkpoint import v1  # noqa: F401

    import luthier.cli.commands.train
    import luthier.cli.hosts
    import luthier.program
    import luthier.trainer  # noqa: F401


def _become(order: dict) -> None:
    """Make a forked child what the order says."""
    os.setsid()
    os.chdir(order["folder"])
    os.environ.update(order["environment"])
    for path, numbers in ((order["out"], (1,)), (order["err"], (2,))):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for number in numbers:
            os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, size in order.get("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (size, size))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    sys.argv = ["luthier", *order["words"]]
    sys.path[0] = ""


class Forked:
    """Takes the place of `subprocess.Popen` where a parent starts the processes of its run."""

    def __init__(self, command, *, env, stdout, stderr, **unused):
        assert command[1:3] == ["-m", "luthier.cli.hosts"], command
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            _guarded(lambda: self._child(command[3:], env, stdout, stderr))

    @staticmethod
    def _child(words, env, stdout, stderr):
        from luthier.cli import hosts

        os.setsid()
        os.environ.clear()
        os.environ.update(env)
        if stdout is not None:
            os.dup2(stdout.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
        for number in (signal.SIGINT, signal.SIGTERM):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
        sys.argv = ["child", *words]
        hosts.main(words)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        while self.poll() is None:
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


def _guarded(work) -> None:
    """Run the work of a forked child, and end it whatever happens."""
    code = 1
    try:
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code or 0)


def _command(order: dict) -> int:
    import atexit

    from luthier.cli import command_line, launcher

    _become(order)
    subprocess_like = type("Subprocess", (), {"Popen": Forked, "DEVNULL": subprocess.DEVNULL})
    launcher.subprocess = subprocess_like
    try:
        return command_line.main(order["words"])
    finally:
        atexit._run_exitfuncs()


def main() -> None:
    """Take orders until the standard input ends; then end what is left."""
    _import_everything()
    print(json.dumps({"ready": True}), flush=True)
    running: dict[int, int] = {}
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.01)
        if ready:
            data = os.read(0, 65536)
            if not data:
                break
            pending += data
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _guarded(lambda order=order: _command(order))
            running[pid] = order["number"]
            print(json.dumps({"number": order["number"], "pid": pid}), flush=True)
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                print(json.dumps({"number": running.pop(pid), "code": code}), flush=True)
    for pid in running:
        os.killpg(pid, signal.SIGKILL)
    os._exit(0)  # Nothing is left to be tidied up, and there is much to be torn down.


if __name__ == "__main__":
    main()
