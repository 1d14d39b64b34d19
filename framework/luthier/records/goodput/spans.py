"""goodput.jsonl: the spans of all processes of a run, appended and never changed.

A process writes one line when it begins, one for every stretch of time, and one when it ends; a
process that was killed has no last line:

{"kind": "began", "time": 1767225600.1, "step": 100, "process": 4711, "host": "node3"}
{"kind": "span", "start": 1767225601.0, "end": 1767225602.5, "first": 100, "last": 120,
 "seconds": {"step": 1.4, "data_wait": 0.1}}
{"kind": "ended", "time": 1767225700.0, "step": 900, "status": "finished"}

Times are seconds since 1970; within a process they follow its monotonic clock. Lines have numbers
and checksums (`luthier.storage.json_lines`).
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from luthier.errors import LockLost, RunError
from luthier.records import events
from luthier.records.goodput.stopwatch import Goodput
from luthier.storage import LineReader, LineWriter, run_error

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
        self._wall = wall
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
        """Take note of the step, of the beginning and of the end."""
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
            lines = [self._line(piece) for piece in self._goodput.pieces()] + (more or [])
            self._append(lines)

    def _start(self, step: int) -> None:
        """Write the line of the beginning, which is where the first span began."""
        pieces = self._goodput.pieces()
        start = min((piece.start for piece in pieces), default=self._began)
        fields = {"step": step, "process": os.getpid(), "host": socket.gethostname()}
        began = {"kind": "began", "time": round(start + self._offset, 6), **fields}
        with self._lock:
            self._append([began, *map(self._line, pieces)])
            self._is_started = True

    def _now(self) -> float:
        return round(self._goodput.clock() + self._offset, 6)

    def _line(self, piece: Any) -> dict[str, Any]:
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
        if self._file.num_waiting < _MOST_WAITING:
            for line in lines:
                self._file.add(json.dumps(line))
        self._file.write()
        if self._file.num_unsynced >= _MOST_UNSYNCED:
            self._file.sync()

    def _try(self, action: Callable[[], None]) -> None:
        """Write, or report once that the disk refuses; training goes on without this record."""
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

    Raises:
      RunError: It cannot be read.
      VersionError: It was written by a later luthier.
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
