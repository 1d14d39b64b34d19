"""The parent of a host's processes: starts them, passes signals on, and speaks when one ends."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import IO

from luthier import environment, errors
from luthier.cli.hosts import verdict
from luthier.cli.hosts.options import Process
from luthier.cli.hosts.verdict import End

NOTES_VARIABLE = "LUTHIER_NOTES"
POLL_SECONDS = 0.1
ABRUPT_SECONDS = 1.0
"""What the others get to end by themselves when one was ended by a signal."""

ORDERLY_SECONDS = 15.0
"""What the others get when one has ended with an error of its own."""


class Child:
    """A process of the run, started on this machine.

    Args:
      process: Which one it is.
      argv: The words after `luthier`.
      directory: Where its log and its notes are kept while it runs.
      number: Its place among those of this machine.
    """

    def __init__(self, process: Process, argv: Sequence[str], directory: pathlib.Path, number: int):
        self.notes = directory / f"process-{number}.json"
        self.log = directory / f"process-{number}.log"
        self.was_killed = False
        self._membership = process.membership
        environment = {**os.environ, **process.variables(), NOTES_VARIABLE: str(self.notes)}
        with self.log.open("wb") as log:
            self.running = subprocess.Popen(
                [sys.executable, "-m", "luthier.cli.hosts.child", *argv],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=_stdout(process, log),
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the process, and what it started, at once."""
        self.was_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running.pid, signal.SIGKILL)
        self.running.wait()

    def end(self) -> End:
        """Return how the process ended."""
        code = None if self.was_killed else self.running.returncode
        return End(code, self.log, verdict.read_notes(self.notes), self._membership)


def _stdout(process: Process, log: IO[bytes]) -> IO[bytes] | None:
    """Return the terminal for whoever may be the primary, and the log for all others."""
    return log if process.membership.get("process_id", 0) else None


def supervise(processes: Sequence[Process], argv: Sequence[str]) -> int:
    """Run processes to their end, and say in one line why they ended early.

    Args:
      processes: Those of this machine.
      argv: The words after `luthier`.

    Returns:
      The exit code of all of them.
    """
    directory = pathlib.Path(tempfile.mkdtemp(prefix="luthier-"))
    children: list[Child] = []
    try:
        with _passing_signals_on(children) as heard:
            for number, process in enumerate(processes):
                children.append(Child(process, argv, directory, number))
            _watch(children)
    finally:
        for child in children:
            if child.running.poll() is None:
                child.kill()
    ends = [child.end() for child in children]
    found = verdict.judge(ends, is_preempted=bool({signal.SIGTERM, signal.SIGHUP} & heard))
    logs = _keep_logs(ends, directory, found.code)
    for line in found.lines(logs):
        print(f"luthier: {line}", file=sys.stderr)
    return found.code


def _watch(children: Sequence[Child]) -> None:
    """Return when all have ended; when one fails, the others get a while and are then killed."""
    deadline = float("inf")
    while None in (codes := [child.running.poll() for child in children]):
        failed = [code for code in codes if code is not None and code not in verdict.ORDERLY]
        deadline = min([deadline, *(time.monotonic() + _patience(code) for code in failed)])
        if time.monotonic() >= deadline:
            for child in children:
                if child.running.poll() is None:
                    child.kill()
        time.sleep(POLL_SECONDS)


def _patience(code: int) -> float:
    return ABRUPT_SECONDS if code < 0 else ORDERLY_SECONDS


@contextlib.contextmanager
def _passing_signals_on(children: Sequence[Child]) -> Iterator[set[int]]:
    """Hand Ctrl-C, SIGTERM and SIGHUP to the children, which save and end."""

    heard: set[int] = set()

    def hand_on(number: int, frame: FrameType | None) -> None:
        heard.add(number)
        if number == signal.SIGHUP:
            environment.forget_terminal()
        for child in children:
            if child.running.poll() is None:
                child.running.send_signal(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` has it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep_logs(ends: Sequence[End], directory: pathlib.Path, code: int) -> pathlib.Path | None:
    """Add the logs to the run's, without secrets; return where they are, None for nowhere."""
    from luthier.records.redaction import redact

    run = next((end.notes["run"] for end in ends if "run" in end.notes), None)
    if run is None:
        if code != errors.EXIT_DONE:
            return directory
        shutil.rmtree(directory, ignore_errors=True)
        return None
    kept = pathlib.Path(run) / "processes"
    try:
        kept.mkdir(exist_ok=True)
        for number, end in enumerate(ends):
            name = f"process-{end.index(number)}-of-{end.count(len(ends))}.log"
            with end.log.open("rb") as log, (kept / name).open("ab") as file:
                for line in log:
                    text = redact(line.decode("utf-8", "surrogateescape"))
                    file.write(text.encode("utf-8", "surrogateescape"))
    except OSError:
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    return kept
