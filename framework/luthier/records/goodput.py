"""Goodput: where the time of a run went, over all of its processes.

A stopwatch counts exclusive seconds by kind of work. Its pieces are written as lines while the run
lasts, since a killed process writes nothing at its end, and the account of a run is computed from
the lines: what a process did after the step from which a later one resumed is lost time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from luthier.errors import LockLost, RunError
from luthier.records import events
from luthier.storage import LineReader, LineWriter, run_error

INIT = "init"
COMPILE = "compile"
STEP = "step"
DATA_WAIT = "data_wait"


@dataclasses.dataclass(frozen=True)
class Piece:
    """A stretch of time of one process, and what it was spent on.

    Args:
      start: When it began, by the clock of the stopwatch.
      end: When it ended.
      first: Optimizer steps done at its beginning.
      last: Optimizer steps done at its end.
      seconds: Exclusive seconds by kind of work.
    """

    start: float
    end: float
    first: int
    last: int
    seconds: Mapping[str, float]


# Exclusive seconds: `_open` is the stack of spans, and only the innermost one is running. At each
# border the time since the last border goes to it. A piece is what lies between two borders, or
# between two calls of `pieces`, with the steps at both ends; later a restart can thus tell which
# part of it was done again.
class Goodput:
    """A stopwatch with one hand per kind of work.

    Spans may nest; the time of an inner span is not counted in the outer one, so that the seconds
    add up to the time spent inside any span. Another thread may call `pieces` at any time.

    Args:
      clock: Returns seconds; monotonic.

    Example:
      >>> from luthier import records
      >>> goodput = records.Goodput()
      >>> with goodput.span("evaluation"):
      ...     pass
      >>> list(goodput.seconds())
      ['evaluation']
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0
        self._step = 0
        self._pieces: list[Piece] = []
        self._piece: dict[str, float] = {}
        self._piece_start = 0.0
        self._piece_step = 0

    @contextlib.contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Count the time inside the `with` block as `kind`, in a piece of its own.

        Args:
          kind: The kind of work, such as `step`.

        Yields:
          Nothing.
        """
        self._border(kind)
        try:
            yield
        finally:
            self._border(None)

    def _border(self, opened: str | None) -> None:
        """Begin a span, or end the innermost one; a piece ends here in either case."""
        with self._lock:
            self._cut(self._turn())
            if opened is None:
                self._open.pop()
            else:
                self._open.append(opened)

    def _turn(self) -> float:
        """Count the time up to now."""
        now = self.clock()
        if self._open:
            self._count(self._open[-1], now - self._since)
        self._since = now
        return now

    def _count(self, kind: str, seconds: float) -> None:
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
        self._piece[kind] = self._piece.get(kind, 0.0) + seconds

    def _cut(self, now: float) -> None:
        """End the piece that is open, and begin the next."""
        seconds = {kind: value for kind, value in self._piece.items() if value}
        if seconds:
            start = self._piece_start
            self._pieces.append(Piece(start, now, self._piece_step, self._step, seconds))
        self._piece, self._piece_start, self._piece_step = {}, now, self._step

    def add(self, kind: str, seconds: float) -> None:
        """Count `seconds`, which have just passed, as `kind`: not as the span that is open.

        Args:
          kind: The kind of work, such as `step`.
          seconds: The time, in seconds.
        """
        with self._lock:
            if self._open:
                self._count(kind, seconds)
                # The open span will count this stretch as its own when it ends; so it is taken off
                # in advance.
                self._count(self._open[-1], -seconds)
                return
            now = self.clock()
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
            piece = Piece(now - seconds, now, self._step, self._step, {kind: seconds})
            self._pieces.append(piece)

    def reached(self, step: int) -> None:
        """Note the number of optimizer steps done.

        Args:
          step: Optimizer steps done.
        """
        with self._lock:
            self._step = step
            if not self._open:
                self._piece_step = step

    def pieces(self) -> list[Piece]:
        """Return the pieces since the last call; what is open is cut here.

        Returns:
          The pieces in order.
        """
        with self._lock:
            self._cut(self._turn())
            pieces, self._pieces = self._pieces, []
        return pieces

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every kind; open spans count up to where an inner one began.

        Returns:
          Seconds by kind.
        """
        with self._lock:
            return dict(self._seconds)

    def summary(self) -> dict[str, float]:
        """Return `goodput/<kind>_seconds`, and as `goodput/fraction` the share of steps.

        Returns:
          Seconds, and a number from 0 to 1, by name.
        """
        seconds = self.seconds()
        if not seconds:
            return {}
        result = {f"goodput/{kind}_seconds": value for kind, value in seconds.items()}
        total = sum(seconds.values())
        result["goodput/fraction"] = seconds.get(STEP, 0.0) / total if total > 0 else 0.0
        return result


# goodput.jsonl: the spans of all processes of a run, appended and never changed.
#
# A process writes one line when it begins, one for every stretch of time, and one when it ends; a
# process that was killed has no last line:
#
# {"kind": "began", "time": 1767225600.1, "step": 100, "process": 4711, "host": "node3"}
# {"kind": "span", "start": 1767225601.0, "end": 1767225602.5, "first": 100, "last": 120,
#  "seconds": {"step": 1.4, "data_wait": 0.1}}
# {"kind": "ended", "time": 1767225700.0, "step": 900, "status": "finished"}
#
# Times are seconds since 1970; within a process they follow its monotonic clock. Lines have numbers
# and checksums (`luthier.storage.json_lines`).

FILE = "goodput.jsonl"
LEAST_SECONDS, MOST_SECONDS = 0.2, 10.0
SHARE = 0.01
"""A killed process loses the spans of so much of its time at most, and `MOST_SECONDS`."""

_MOST_UNSYNCED = 100  # lines that a failed sync would take out of the file again
_MOST_WAITING = 10_000  # lines that are kept in memory while the disk refuses


class Spans:
    """The sink that writes what the stopwatch measures, from a thread of its own.

    Args:
      path: The file; lines are appended.
      goodput: The stopwatch of this process.
      report: Is given one line when the file cannot be written.
      wall: Returns seconds since 1970.
      follow: Whether a thread writes now and then; else only `write`, `flush` and `close` do.
      fence: Raises `LockLost` where another process writes here now; called before each write.
    """

    essential = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        goodput: Goodput,
        report: Callable[[str], None] = lambda text: None,
        *,
        wall: Callable[[], float] = time.time,
        follow: bool = True,
        fence: Callable[[], None] = lambda: None,
    ):
        self.path = pathlib.Path(path)
        self._goodput = goodput
        self._report = report
        # Taken once: lines hold wall-clock times, but their differences are those of a monotonic
        # clock.
        self._offset = wall() - goodput.clock()
        self._began = goodput.clock()
        self._lock = threading.Lock()
        self._file: LineWriter | None = None
        self._fence = fence
        self._is_started = self._reported = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        if follow:
            name = "luthier-goodput"
            self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
            self._thread.start()

    def emit(self, event: events.Event) -> None:
        """Note steps, and write the beginning and the end.

        Args:
          event: The event.
        """
        if isinstance(event, events.Step):
            self._goodput.reached(event.step)
        elif isinstance(event, events.Header):
            self._goodput.reached(event.step)
            self._start(event.step)
        elif isinstance(event, events.Ended):
            ended = {"step": event.step, "status": event.status}
            self.write([{"kind": "ended", "time": self._now(), **ended}])

    def flush(self) -> None:
        """Write what was measured so far."""
        self.write()

    def close(self) -> None:
        """Write the rest, make it durable, and end the thread."""
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self.write()
        if self._file is not None:
            self._try(self._file.commit)
            self._file.close()
            self._file, self._is_started = None, False

    def write(self, more: list[dict[str, Any]] | None = None) -> None:
        """Append what was measured since the last call, and further lines.

        Args:
          more: JSON objects, appended after the spans.
        """
        if not self._is_started:
            return
        with self._lock:
            # Taken and written under one lock: the thread that follows and the one that trains must
            # not exchange the order of their pieces.
            lines = [self._line(piece) for piece in self._goodput.pieces()] + (more or [])
            self._append(lines)

    def _start(self, step: int) -> None:
        """Write the line of the beginning, which is where the first span began."""
        pieces = self._goodput.pieces()
        # The file is opened with the first header, when compiling and restoring were measured
        # already.
        start = min((piece.start for piece in pieces), default=self._began)
        fields = {"step": step, "process": os.getpid(), "host": socket.gethostname()}
        began = {"kind": "began", "time": round(start + self._offset, 6), **fields}
        with self._lock:
            self._append([began, *map(self._line, pieces)])
            self._is_started = True

    def _now(self) -> float:
        return round(self._goodput.clock() + self._offset, 6)

    def _line(self, piece: Piece) -> dict[str, Any]:
        return {
            "kind": "span",
            "start": round(piece.start + self._offset, 6),
            "end": round(piece.end + self._offset, 6),
            "first": piece.first,
            "last": piece.last,
            "seconds": {kind: round(value, 6) for kind, value in piece.seconds.items()},
        }

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if not lines:
            return
        self._try(lambda: self._write(lines))

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self._file is None:
            self._file = LineWriter(self.path, self._fence)
        # Beyond that spans are dropped: unlike the metrics they are not worth ending a run for.
        if self._file.num_waiting < _MOST_WAITING:
            for line in lines:
                self._file.add(json.dumps(line))
        self._file.write()
        # No sync after each write: a power cut may take the last spans, which `account_of` then
        # counts as idle time.
        if self._file.num_unsynced >= _MOST_UNSYNCED:
            self._file.sync()

    def _try(self, action: Callable[[], None]) -> None:
        """Write, or report once that the disk refuses; training continues without this record."""
        try:
            action()
        except LockLost:
            self._is_started = False  # the metrics, which are essential, end the run
        except (OSError, RunError) as error:
            if not self._reported:
                if isinstance(error, OSError):
                    error = run_error("write", self.path, error)
                self._report(str(error))
            self._reported = True

    def _follow(self) -> None:
        while True:
            elapsed = self._goodput.clock() - self._began
            # Often in a short run and rarely in a long one: what a kill can lose stays a small
            # share.
            pause = min(max(SHARE * elapsed, LEAST_SECONDS), MOST_SECONDS)
            if self._wake.wait(pause):
                return
            self.write()


def read_spans(
    path: str | os.PathLike[str], report: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Return the lines of a goodput.jsonl in order; damaged and foreign ones are left out.

    Args:
      path: The file; a missing one has no lines.
      report: Is given one line about damaged lines.

    Returns:
      The JSON objects of the lines.

    Raises:
      RunError: It cannot be read.
      VersionError: It was written by a later luthier.

    Example:
      >>> from luthier import records
      >>> records.read_spans("missing/goodput.jsonl")
      []
    """
    reader = LineReader(path, accepts=_is_whole)
    spans = list(reader)
    if reader.report:
        report(reader.report)
    return spans


def _is_whole(fields: dict[str, Any]) -> bool:
    """Return whether a line has all that its kind needs."""
    number = (int, float)
    kind = fields.get("kind")
    if kind in ("began", "ended"):
        needed: dict[str, Any] = {"time": number, "step": int}
        return _has(fields, needed) and (kind == "began" or isinstance(fields.get("status"), str))
    needed = {"start": number, "end": number, "first": int, "last": int, "seconds": dict}
    if kind != "span" or not _has(fields, needed):
        return False
    return all(isinstance(seconds, number) for seconds in fields["seconds"].values())


def _has(fields: dict[str, Any], needed: dict[str, Any]) -> bool:
    return all(isinstance(fields.get(name), kind) for name, kind in needed.items())


# The account of a run's time: what its processes spent, what was lost, and when nothing ran.

LOST = "lost"
IDLE = "idle"
OTHER = "other"
KILLED = "killed"
RUNNING = "running"
_NEVER_LOST = (INIT, COMPILE)
_STEPPING = (STEP, DATA_WAIT)


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """One process of a run.

    Args:
      start: When it began, in seconds since 1970.
      end: When it was last heard of.
      restored: Optimizer steps done when it began.
      reached: Optimizer steps done when it was last heard of.
      status: How it ended: as in `events.Ended`, or `killed`, or `running`.
      seconds: Its seconds by kind of work; `lost` are those that a later process did again.
      idle: Seconds in which nothing ran before it.
    """

    start: float
    end: float
    restored: int
    reached: int
    status: str
    seconds: Mapping[str, float]
    idle: float = 0.0


@dataclasses.dataclass(frozen=True)
class Account:
    """The account of a run's time, over all its processes.

    Args:
      lifetimes: Processes of the run, in order.
      seconds: Seconds by kind of work, with `lost`, `idle` and `other`: they add up to `total`.
    """

    lifetimes: Sequence[Lifetime]
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds from the first beginning to the last end."""
        return sum(self.seconds.values())

    @property
    def fraction(self) -> float:
        """The share of the time that went into steps which count."""
        return self.seconds.get(STEP, 0.0) / self.total if self.total > 0 else 0.0

    @property
    def restarts(self) -> int:
        """The number of times that training resumed after a process had ended."""
        return max(len(self.lifetimes) - 1, 0)


def account_of(lines: Sequence[Mapping[str, Any]], alive: bool = False) -> Account:
    """Return the account of a run's spans.

    Time is lost when a later process began at an earlier step: all that was done after that step,
    except for getting ready, is done again.

    Args:
      lines: The lines of its goodput.jsonl (`read_spans`).
      alive: Whether a process still trains: its last span is then not where it was killed.

    Returns:
      Seconds by kind over all processes, and those of each process.

    Example:
      >>> from luthier import records
      >>> records.account_of([]).seconds
      {}
    """
    # The lines of a killed process just end, so its end is its last span; what lies between that
    # and the next beginning is idle time.
    processes = _processes(lines)
    restored = [process[0]["step"] for process in processes]
    lifetimes: list[Lifetime] = []
    for number, process in enumerate(processes):
        # The least of all later restarts: work that the next process kept may be thrown away by one
        # after it.
        until = min(restored[number + 1 :], default=None)
        is_last = number + 1 == len(processes)
        lifetime = _lifetime(process, until, alive and is_last)
        idle = max(lifetime.start - lifetimes[-1].end, 0.0) if lifetimes else 0.0
        lifetimes.append(dataclasses.replace(lifetime, idle=idle))
    seconds: dict[str, float] = {}
    for lifetime in lifetimes:
        for kind, value in [*lifetime.seconds.items(), (IDLE, lifetime.idle)]:
            if value:
                seconds[kind] = seconds.get(kind, 0.0) + value
    return Account(lifetimes, seconds)


def _processes(lines: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the lines of each process; those without a beginning are left out."""
    processes: list[list[Mapping[str, Any]]] = []
    for line in lines:
        if line["kind"] == "began":
            processes.append([line])
        elif processes:
            processes[-1].append(line)
    return processes


def _lifetime(lines: Sequence[Mapping[str, Any]], until: int | None, alive: bool) -> Lifetime:
    """Return the lifetime of a process, where a later one resumed from step `until`."""
    began = lines[0]
    seconds: dict[str, float] = {}
    end, reached, status = began["time"], began["step"], RUNNING if alive else KILLED
    for line in lines[1:]:
        if line["kind"] == "ended":
            end, reached, status = max(end, line["time"]), line["step"], line["status"]
            continue
        end, reached = max(end, line["end"]), line["last"]
        for kind, value in line["seconds"].items():
            lost = _lost_share(kind, line["first"], line["last"], until)
            # A span is lost as a whole, in part or not at all: what was done behind the step that a
            # later process resumed from is done again. Compiling and opening are not: they prepared
            # steps that count.
            for name, part in ((kind, value * (1 - lost)), (LOST, value * lost)):
                if part:
                    seconds[name] = seconds.get(name, 0.0) + part
    # Time between the spans of a living process: imports, and what nobody measures.
    rest = end - began["time"] - sum(seconds.values())
    if rest > 1e-3:
        seconds[OTHER] = rest
    return Lifetime(began["time"], end, began["step"], reached, status, seconds)


def _lost_share(kind: str, first: int, last: int, until: int | None) -> float:
    """Return how much of a span was done again by a process that resumed from step `until`."""
    if until is None or kind in _NEVER_LOST:
        return 0.0
    if kind in _STEPPING:
        last = max(last, first + 1)  # a step that was begun and never done
    if first == last:
        return float(first > until)
    # In proportion to the steps after `until`: a span of several steps is cut where the later
    # process resumed.
    return (last - min(max(first, until), last)) / (last - first)
