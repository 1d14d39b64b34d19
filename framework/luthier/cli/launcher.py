"""The launcher of a host's processes: starts them, passes signals on, explains why they ended."""

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

# Why the processes of a run ended, as one message.

ORDERLY = (errors.EXIT_DONE, errors.EXIT_REQUEUE, errors.EXIT_INTERRUPTED)
"""Exit codes of processes that ended together, in agreement."""

_MESSAGE = re.compile(r"^luthier: (.*)$", re.MULTILINE)
# JAX's coordination service ends a process whose peer is lost with a fatal log message, and no
# exception reaches Python. So the lost process is read from the log; if the texts change in a later
# version, the message names no process, and still shows the logs.
_SILENT = re.compile(r"stopped sending heartbeats\):\n(.*?)The tasks? ha", re.DOTALL)
# The same at the end, where all wait for each other before they leave.
_TIMED_OUT = re.compile(r"Task (\d+) heartbeat timeout")
_TASK = re.compile(r"(?:^|task:)(\d+)\s*$", re.MULTILINE)
_NO_COORDINATOR = re.compile(r"Failed to send RPC to coordination service")
# Gloo ends a process whose collective a peer has left, without a word about the peer.
_CUT_OFF = re.compile(r"terminate called after throwing an instance of 'gloo::")


@dataclasses.dataclass(frozen=True)
class End:
    """The end of a process.

    Args:
      code: The return code of `subprocess`: negative for a signal; None if its launcher killed it.
      log: The file of its standard error.
      notes: The notes that it wrote for its launcher.
      membership: The membership that it was started with.
    """

    code: int | None
    log: pathlib.Path
    notes: Mapping[str, Any]
    membership: Mapping[str, Any]

    def index(self, number: int = 0) -> int:
        """Return the index of the process in the run; `number` if it is unknown."""
        return self.notes.get("process", self.membership.get("process_id", number))

    def count(self, number: int = 1) -> int:
        """Return the number of processes of the run; `number` if it is unknown."""
        return self.notes.get("processes", self.membership.get("num_processes", number))

    def messages(self) -> list[str]:
        """Return the error messages that it printed itself."""
        return _MESSAGE.findall(self._text())

    def blamed(self) -> list[int]:
        """Return the indices of the processes whose loss made JAX end this one."""
        # The coordinator lists the tasks that stopped sending heartbeats; the others notice only
        # that the coordinator, process 0, is gone.
        text = self._text()
        silent = {int(task) for part in _SILENT.findall(text) for task in _TASK.findall(part)}
        silent |= {int(task) for task in _TIMED_OUT.findall(text)}
        if silent:
            return sorted(silent)
        return [0] if _NO_COORDINATOR.search(text) else []

    def is_cut_off(self) -> bool:
        """Return whether a peer was lost in the middle of a collective, and not known which."""
        return self.code == -signal.SIGABRT and bool(_CUT_OFF.search(self._text()))

    def _text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@dataclasses.dataclass(frozen=True)
class ExitVerdict:
    """The message and the exit code of the launcher.

    Args:
      code: The exit code.
      reasons: The reasons, a line each.
      run: The directory of the run, if it can be resumed; None if it had not started.
      again: The command that resumes it.
    """

    code: int
    reasons: Sequence[str] = ()
    run: pathlib.Path | None = None
    again: str = ""

    def lines(self, logs: pathlib.Path | None) -> list[str]:
        """Return the lines to print; how to resume is at the end of the last one.

        Args:
          logs: The folder of the logs of the processes; None if they were deleted.
        """
        if not self.reasons or self.code == errors.EXIT_BAD_INPUT:
            return list(self.reasons)
        if self.code == errors.EXIT_REQUEUE and self.run is None:
            return list(self.reasons)  # a process that asks for a new start says how
        last = self.reasons[-1]
        if self.run is not None:
            last += f"; {_saved(self.run)}: {self.again}"
        if logs is not None:
            last += f" (logs: {logs})"
        return [*self.reasons[:-1], last]


def judge(ends: Sequence[End], is_preempted: bool = False) -> ExitVerdict:
    """Return the verdict on why processes ended.

    Args:
      ends: The ends of the processes of this machine.
      is_preempted: Whether they were asked to save and end, because the machine is taken away.
    """
    # When one process fails, all others fail after it, each with an error that is only a
    # consequence: an abort by JAX, a collective that is cut off, a timeout. So the verdict looks
    # for the cause, from the most to the least certain: bad input first, since the others broke
    # only because one process left; then processes that a signal ended, since they are the cause of
    # what the others report; then the messages that processes printed themselves; last, bare exit
    # codes.
    # Never empty: the launcher kills processes only after another one has ended by itself.
    codes = [end.code for end in ends if end.code is not None]
    if all(code in ORDERLY for code in codes):
        # The greatest: if one process was stopped (75, 130), the run is not done, even if others
        # are (0).
        code = max(codes)
        if code != errors.EXIT_REQUEUE or is_preempted:
            return ExitVerdict(code)
        # A process that asks for a new start without a signal has a reason of its own.
        lines = (line for end in ends if end.code == code for line in end.messages())
        return ExitVerdict(code, list(dict.fromkeys(lines)))
    if is_preempted and errors.EXIT_REQUEUE in codes:
        # Before the first step processes do not wait for each other before they leave, so the last
        # ones see the loss of the first, and end with an error.
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
    # A machine that was lost took its processes with it. Those here failed only because of that:
    # the same command resumes the run, on other machines if need be. But a process that always dies
    # before the first save, for lack of memory, would be started again without end.
    is_elsewhere = len(ends) < ends[0].count(len(ends))
    can_go_on = is_elsewhere and not _has_saved_nothing(run, notes.get("start"))
    code_of_loss = errors.EXIT_REQUEUE if can_go_on else errors.EXIT_BUG
    if reasons := _lost(ends):
        return ExitVerdict(code_of_loss, reasons, run, again)
    messages = list(dict.fromkeys(line for end in ends for line in end.messages()))
    code = max(code for code in codes if code not in ORDERLY)
    if any(end.notes.get("unreachable") for end in ends):
        code = code_of_loss
    if not messages:
        messages = [
            f"process {end.index(number)} of {end.count(len(ends))} ended (exit code {end.code})"
            for number, end in enumerate(ends)
            if end.code not in (None, *ORDERLY)
        ]
    return ExitVerdict(code, messages, run, again)


def _refused(ends: Sequence[End]) -> list[str]:
    """Return the messages about bad input, if nothing worse than that ended the others."""
    killed = [end for end in ends if end.code is not None and end.code < 0 and not end.blamed()]
    # JAX aborts (SIGABRT) a process whose peer has left; any other signal has a cause of its own.
    if any(end.code != -signal.SIGABRT for end in killed):
        return []
    refused = [end for end in ends if end.code == errors.EXIT_BAD_INPUT]
    return list(dict.fromkeys(line for end in refused for line in end.messages()))


def _died(ends: Sequence[End]) -> list[str]:
    """Return the line about processes that were killed, or reported their end; empty for none."""
    # A process that a signal other than SIGABRT ended (out of memory, a segmentation fault) is a
    # cause. SIGABRT is usually a consequence: JAX and its libraries abort when a peer is gone.
    count = ends[0].count(len(ends))
    signals = {
        end.index(number): -end.code
        for number, end in enumerate(ends)
        if end.code is not None and end.code < 0 and not (end.blamed() or end.is_cut_off())
    }
    causes = {i: number for i, number in signals.items() if number != signal.SIGABRT}
    reported = sorted({end.notes["lost"] for end in _given_up(ends) if "lost" in end.notes})
    if reported and not causes:
        return reported[:1]  # one loss ends the whole run: later ones are mostly its consequences
    if not causes and _silent(ends):
        return []
    dead = causes or signals
    named = [f"process {i} of {count} ended (signal {number})" for i, number in dead.items()]
    return [", ".join(named)] if named else []


def _lost(ends: Sequence[End]) -> list[str]:
    """Return the line about processes that cannot be heard of any more; empty for none.

    A peer on another machine was lost, and could not report it. The surviving processes know it
    from heartbeats (the note `silent`), or from JAX's log.
    """
    if silent := _silent(ends):
        return silent[:1]
    count = ends[0].count(len(ends))
    blamed = sorted({index for end in ends for index in end.blamed()})
    named = [
        f"process {index} of {count}" + (" (the coordinator)" if index == 0 else "")
        for index in blamed
    ]
    if not named and any(end.is_cut_off() for end in ends):
        named = [f"another process of {count}"]
    verb = "is" if len(named) == 1 else "are"
    line = f"{', '.join(named)} ended, {verb} stopped, or cannot be reached"
    return [line] if named else []


def _given_up(ends: Sequence[End]) -> list[End]:
    """Return the processes that JAX ended because it gave up on others."""
    return [end for end in ends if end.blamed() or end.code == -signal.SIGABRT]


def _silent(ends: Sequence[End]) -> list[str]:
    """Return the lines about silent processes, of those that were given up over them."""
    given_up = _given_up(ends)
    if not given_up:
        return []
    # In order of index: process 0 watches all others, which watch only process 0.
    by_index = sorted(enumerate(ends), key=lambda item: item[1].index(item[0]))
    heard = [end for _, end in by_index if end in given_up or end.code is None]
    return [end.notes["silent"] for end in heard if end.notes.get("silent")]


def read_notes(path: pathlib.Path) -> dict[str, Any]:
    """Return the notes of a process for its launcher; empty if it wrote none.

    Args:
      path: The file of the notes.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _saved(run: pathlib.Path) -> str:
    """Return where a run can be resumed from, up to the command that does it."""
    try:
        step = _latest(run)
    except (errors.LuthierError, OSError):
        # The disk or the object store may be what ended the run.
        return "its checkpoints cannot be listed now; resume it with"
    if step is None:
        return "no checkpoint of the run is saved yet; restart it with"
    return f"the run is saved at step {step}; resume it with"


def _has_saved_nothing(run: pathlib.Path | None, start: int | None) -> bool:
    """Return whether it is known that a run has saved no step after the one that it began with."""
    if run is None or start is None:
        return False
    try:
        return (_latest(run) or 0) <= start
    except (errors.LuthierError, OSError):
        return False


def _latest(run: pathlib.Path) -> int | None:
    from luthier.checkpoint import Store
    from luthier.records import RunDirectory

    with _without_native_logs():
        return Store(RunDirectory(run).checkpoints_path).latest()


@contextlib.contextmanager
def _without_native_logs() -> Iterator[None]:
    """Discard what native libraries write to the standard error within the `with` block.

    TensorStore logs each place where it finds no credentials, before it looks at the next one.
    """
    sys.stderr.flush()
    terminal, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(null)


# The launcher itself.

NOTES_VARIABLE = "LUTHIER_NOTES"
POLL_SECONDS = 0.1
ABRUPT_SECONDS = 1.0
"""The time for the other processes to end by themselves after one was ended by a signal."""

ORDERLY_SECONDS = 15.0
"""The time for the other processes after one has ended with an error of its own."""


class Child:
    """A process of the run, started on this machine.

    Args:
      process: The process to start.
      argv: The arguments after `luthier`.
      directory: The folder of its log and its notes while it runs.
      number: Its number among those of this machine.
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
    """Return the terminal for process 0, and the log for all others."""
    # Only one process draws on the terminal. Without a known id (--distributed) it may be process
    # 0, and finds out when it joins: `hosts.joined` then redirects the output of all others.
    return log if process.membership.get("process_id", 0) else None


def supervise(processes: Sequence[Process], argv: Sequence[str]) -> int:
    """Run processes to their end, and report why they ended early.

    Args:
      processes: The processes of this machine.
      argv: The arguments after `luthier`.

    Returns:
      The exit code of the whole.
    """
    # Logs are kept in a temporary folder first, since only a child finds out which run it belongs
    # to.
    directory = pathlib.Path(tempfile.mkdtemp(prefix="luthier-"))
    children: list[Child] = []
    try:
        with _passing_signals_on(children) as received:
            for number, process in enumerate(processes):
                children.append(Child(process, argv, directory, number))
            _watch(children)
    finally:
        for child in children:
            if child.running.poll() is None:
                child.kill()
    ends = [child.end() for child in children]
    verdict = judge(ends, is_preempted=bool({signal.SIGTERM, signal.SIGHUP} & received))
    logs = _keep_logs(ends, directory, verdict.code)
    for line in verdict.lines(logs):
        print(f"luthier: {line}", file=sys.stderr)
    return verdict.code


def _watch(children: Sequence[Child]) -> None:
    """Wait until all processes have ended; after one has failed, kill the others in a while."""
    deadline = float("inf")
    while None in (codes := [child.running.poll() for child in children]):
        # A process that ended with an error of its own leaves the others in a collective that never
        # returns. The time is for those that fail of the same cause to print their message.
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
    """Pass SIGINT, SIGTERM and SIGHUP on to the children, which save and end.

    Yields:
      The signals received so far.
    """
    received: set[int] = set()

    def hand_on(number: int, frame: FrameType | None) -> None:
        received.add(number)
        if number == signal.SIGHUP:
            environment.forget_terminal()
        # `children` grows while processes are started: a signal in between reaches those that
        # exist.
        for child in children:
            # To the child alone and not to its process group, as in `kill`: processes that it
            # started have to live until it has saved.
            if child.running.poll() is None:
                child.running.send_signal(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under `nohup`
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep_logs(ends: Sequence[End], directory: pathlib.Path, code: int) -> pathlib.Path | None:
    """Append the logs to those of the run, without secrets; return their folder, None for none."""
    # Appended, because a run that is resumed has logs of its earlier processes already. A run that
    # had not started has no folder: then the temporary one stays, unless all went well.
    from luthier.records.redaction import redact

    run = next((end.notes["run"] for end in ends if "run" in end.notes), None)
    if run is None:
        if code != errors.EXIT_DONE:
            return directory
        shutil.rmtree(directory, ignore_errors=True)
        return None
    folder = pathlib.Path(run) / "processes"
    try:
        folder.mkdir(exist_ok=True)
        for number, end in enumerate(ends):
            name = f"process-{end.index(number)}-of-{end.count(len(ends))}.log"
            with end.log.open("rb") as log, (folder / name).open("ab") as file:
                for line in log:
                    # Copied line by line into the record: native code prints past Python's
                    # redaction.
                    text = redact(line.decode("utf-8", "surrogateescape"))
                    file.write(text.encode("utf-8", "surrogateescape"))
    except OSError:
        return directory  # the run's disk may be full or gone: the temporary copies are kept
    shutil.rmtree(directory, ignore_errors=True)
    return folder
