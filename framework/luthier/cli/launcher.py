"""The launcher of a host's processes: it starts them, passes signals on, and says why one ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, Any

from luthier import environment, errors
from luthier.cli.hosts import Process

# Why the processes of a run ended, in one line.

ORDERLY = (errors.EXIT_DONE, errors.EXIT_REQUEUE, errors.EXIT_INTERRUPTED)
"""Exit codes of a process that ended together with all others."""

_SPOKEN = re.compile(r"^luthier: (.*)$", re.MULTILINE)
# JAX's coordination service ends a process whose peer is lost with a fatal log message, and no
# exception reaches Python. So who was lost is read from the log; where the texts change in a later
# version, the line names nobody, and the logs are still shown.
_SILENT = re.compile(r"stopped sending heartbeats\):\n(.*?)The tasks? ha", re.DOTALL)
_TASK = re.compile(r"(?:^|task:)(\d+)\s*$", re.MULTILINE)
_NO_COORDINATOR = re.compile(r"Failed to send RPC to coordination service")


@dataclasses.dataclass(frozen=True)
class End:
    """The end of a process.

    Args:
      code: As `subprocess` tells it: below zero for a signal; None where its parent killed it.
      log: What it wrote to its standard error.
      notes: What it told its parent.
      membership: Which process it was started as.
    """

    code: int | None
    log: pathlib.Path
    notes: Mapping[str, Any]
    membership: Mapping[str, Any]

    def index(self, number: int = 0) -> int:
        """Return which process of the run it was; `number` where nobody knows."""
        return self.notes.get("process", self.membership.get("process_id", number))

    def count(self, number: int = 1) -> int:
        """Return how many processes the run had; `number` where nobody knows."""
        return self.notes.get("processes", self.membership.get("num_processes", number))

    def spoken(self) -> list[str]:
        """Return the lines in which it said itself what is wrong."""
        return _SPOKEN.findall(self._text())

    def blamed(self) -> list[int]:
        """Return the processes because of which JAX ended this one."""
        text = self._text()
        silent = {int(task) for part in _SILENT.findall(text) for task in _TASK.findall(part)}
        if silent:
            return sorted(silent)
        return [0] if _NO_COORDINATOR.search(text) else []

    def _text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@dataclasses.dataclass(frozen=True)
class ExitVerdict:
    """The message and the exit code of the parent.

    Args:
      code: The exit code.
      reasons: What happened, a line each.
      run: The run's directory, where it goes on; None where it had not begun, or needs no word.
      again: The command that continues it.
    """

    code: int
    reasons: Sequence[str] = ()
    run: pathlib.Path | None = None
    again: str = ""

    def lines(self, logs: pathlib.Path | None) -> list[str]:
        """Return the lines to tell; what belongs to the run stands at the end of the last.

        Args:
          logs: Where the logs of the processes are.
        """
        if not self.reasons or self.code == errors.EXIT_BAD_INPUT:
            return list(self.reasons)
        last = self.reasons[-1]
        if self.run is not None:
            step = _saved_step(self.run)
            saved = "nothing of the run is saved yet; start it again with"
            if step is not None:
                saved = f"the run is saved at step {step}; continue it with"
            last += f"; {saved}: {self.again}"
        if logs is not None:
            last += f" (logs: {logs})"
        return [*self.reasons[:-1], last]


def judge(ends: Sequence[End], is_preempted: bool = False) -> ExitVerdict:
    """Return why processes ended.

    Args:
      ends: Those of this machine.
      is_preempted: Whether they were asked to save and end, as the machine is taken away.
    """
    codes = [end.code for end in ends if end.code is not None]
    if all(code in ORDERLY for code in codes):
        return ExitVerdict(max(codes))
    if is_preempted and errors.EXIT_REQUEUE in codes:
        # Before the first step they do not wait for each other: the last ones lose the first.
        return ExitVerdict(errors.EXIT_REQUEUE)
    notes: dict[str, Any] = {}
    for end in ends:
        notes |= end.notes
    run = pathlib.Path(notes["run"]) if "run" in notes else None
    again = notes.get("again", "")
    if refused := _refused(ends):
        return ExitVerdict(errors.EXIT_BAD_INPUT, refused, run, again)
    if reasons := _died(ends):
        return ExitVerdict(errors.EXIT_BUG, reasons, run, again)
    spoken = list(dict.fromkeys(line for end in ends for line in end.spoken()))
    code = max(code for code in codes if code not in ORDERLY)
    if not spoken:
        spoken = [
            f"process {end.index(number)} of {end.count(len(ends))} ended (exit code {end.code})"
            for number, end in enumerate(ends)
            if end.code not in (None, *ORDERLY)
        ]
    return ExitVerdict(code, spoken, run, again)


# The order of the verdicts: bad input first, since the others break only because one process left;
# then processes that died without a word, since they are the cause of what the others report; then
# what processes said themselves.
def _refused(ends: Sequence[End]) -> list[str]:
    """Return the lines of those that ended over bad input, where others broke only over that."""
    killed = [end for end in ends if end.code is not None and end.code < 0 and not end.blamed()]
    # JAX aborts (SIGABRT) a process whose peer has left; any other signal has a cause of its own.
    if any(end.code != -signal.SIGABRT for end in killed):
        return []
    refused = [end for end in ends if end.code == errors.EXIT_BAD_INPUT]
    return list(dict.fromkeys(line for end in refused for line in end.spoken()))


def _died(ends: Sequence[End]) -> list[str]:
    """Return the line about the processes that ended without a word, if any did."""
    count = ends[0].count(len(ends))
    signals = {
        end.index(number): -end.code
        for number, end in enumerate(ends)
        if end.code is not None and end.code < 0 and not end.blamed()
    }
    # A library may abort when another process is gone: that one comes first.
    causes = {i: number for i, number in signals.items() if number != signal.SIGABRT}
    given_up = [end for end in ends if end.blamed() or end.code == -signal.SIGABRT]
    told = sorted({end.notes["lost"] for end in given_up if "lost" in end.notes})
    if given_up:  # the primary hears all processes; the others, it alone
        by_index = sorted(enumerate(ends), key=lambda item: item[1].index(item[0]))
        heard = [end for _, end in by_index if end in given_up or end.code is None]
        told += [end.notes["silent"] for end in heard if end.notes.get("silent")]
    if told and not causes:
        return told[:1]
    if causes := causes or signals:
        dead = [f"process {i} of {count} ended (signal {n})" for i, n in causes.items()]
        return [", ".join(dead)]
    blamed = sorted({index for end in ends for index in end.blamed()})
    named = [
        f"process {index} of {count}" + (" (the coordinator)" if index == 0 else "")
        for index in blamed
    ]
    verb = "is" if len(named) == 1 else "are"
    line = f"{', '.join(named)} ended, {verb} stopped, or cannot be reached"
    return [line] if named else []


def read_notes(path: pathlib.Path) -> dict[str, Any]:
    """Return what a process told its parent; empty where it told nothing.

    Args:
      path: The file of its notes.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _saved_step(run: pathlib.Path) -> int | None:
    from luthier.checkpoint import Store

    return Store(run / "checkpoints").latest()


# The parent of a host's processes: starts them, passes signals on, and speaks when one ends.

NOTES_VARIABLE = "LUTHIER_NOTES"
POLL_SECONDS = 0.1
ABRUPT_SECONDS = 1.0
"""The time for the others to end by themselves when one was ended by a signal."""

ORDERLY_SECONDS = 15.0
"""The time for the others when one has ended with an error of its own."""


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
                [sys.executable, "-m", "luthier.cli.hosts", *argv],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=_stdout(process, log),
                stderr=log,
                # A terminal sends Ctrl-C to a whole process group: the children would hear it
                # twice, from the terminal and from this process, and a second interrupt ends a run
                # at once.
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
        return End(code, self.log, read_notes(self.notes), self._membership)


def _stdout(process: Process, log: IO[bytes]) -> IO[bytes] | None:
    """Return the terminal for whoever may be the primary, and the log for all others."""
    # Only one process draws on the terminal.
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
    found = judge(ends, is_preempted=bool({signal.SIGTERM, signal.SIGHUP} & heard))
    logs = _keep_logs(ends, directory, found.code)
    for line in found.lines(logs):
        print(f"luthier: {line}", file=sys.stderr)
    return found.code


def _watch(children: Sequence[Child]) -> None:
    """Return when all have ended; when one fails, the others get a while and are then killed."""
    deadline = float("inf")
    while None in (codes := [child.running.poll() for child in children]):
        # A process that ended with an error of its own leaves the others in a collective that never
        # returns; a while is enough for those that fail of the same cause to say so.
        failed = [code for code in codes if code is not None and code not in ORDERLY]
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
                    # Copied line by line into the record: native code prints past Python's
                    # redaction.
                    text = redact(line.decode("utf-8", "surrogateescape"))
                    file.write(text.encode("utf-8", "surrogateescape"))
    except OSError:
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    return kept
