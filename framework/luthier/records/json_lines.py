"""The sink that is the record: a thread appends events to metrics.jsonl, durably."""

from __future__ import annotations

import json
import os
import pathlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from luthier.errors import LockLost, Problem, RunError
from luthier.records.events import Event, Step
from luthier.records.metrics_file import encode_event
from luthier.records.redaction import redact
from luthier.storage import LineWriter, run_error, unfenced

_POLL_SECONDS = 0.1
_PLAIN = {float, int}

_Entry = dict[str, Any] | tuple[Event, float, int]
"""A line's JSON object, or what `encode_event` makes it of."""


def _silent(text: str) -> None:
    del text


class JsonLines:
    """Appends events to a file, in the order in which they are emitted.

    `emit` only queues. Lines are kept in memory until they are synced. When the disk refuses, they
    are tried again every second, and it is reported once; `flush` says whether everything is on
    disk, and raises where it is not. When `capacity` events wait, `emit` waits too (the disk is
    slow) or raises (it refuses). `luthier.storage.LineWriter` keeps the file whole meanwhile.

    Args:
      path: The file; a torn last line in it is cut off first.
      report: Is given one line about trouble, and one when it is over; called from any thread.
      sync_seconds: Longest time between two fsyncs while events come in.
      retry_seconds: Time between two attempts after the disk refused.
      capacity: Most events that may wait in memory to be written, and lines to be synced.
      fence: Raises `LockLost` where another process writes here now; called before each write.

    Raises:
      RunError: The file cannot be opened for writing.
    """

    essential = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        report: Callable[[str], None] = _silent,
        *,
        sync_seconds: float = 2.0,
        retry_seconds: float = 1.0,
        capacity: int = 65536,
        fence: Callable[[], None] = unfenced,
    ):
        self.path = pathlib.Path(path)
        self._report = report
        self._sync_seconds = sync_seconds
        self._retry_seconds = retry_seconds
        self._capacity = capacity
        self._pending: deque[_Entry] = deque()
        self._num_held = 0  # lines that the file does not have yet, because the disk refuses
        self._condition = threading.Condition()
        self._asked = self._answered = 0  # numbers of flushes
        self._error: OSError | None = None
        self._defect: BaseException | None = None
        self._closing = False
        self._step = 0
        self._file = LineWriter(self.path, fence)
        self._thread = threading.Thread(target=self._run, name="luthier-json-lines", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Queue an event.

        Raises:
          RunError: The disk has refused for so long that no more events fit into memory.
          LockLost: Another process writes here now.
          TypeError: A value of a step or an evaluation is not a number.
        """
        entry: _Entry
        if isinstance(event, Step) and set(map(type, event.values.values())) <= _PLAIN:
            # Nothing can be refused: the writer's thread encodes it.
            entry, step = (event, time.time(), event.step), event.step
        else:
            entry = encode_event(event, time.time(), self._step)
            step = entry["step"]
        self._step = max(self._step, step)
        with self._condition:
            self._check()
            while len(self._pending) + self._num_held >= self._capacity:
                if self._error is not None:
                    raise run_error("write", self.path, self._error)
                self._condition.wait(0.1)
                self._check()
            self._pending.append(entry)

    def flush(self) -> None:
        """Return when everything emitted so far is durable.

        Raises:
          RunError: The disk refuses.
          LockLost: Another process writes here now.
        """
        with self._condition:
            if self._closing:
                return
            self._asked += 1
            number = self._asked
            self._condition.notify_all()
            while self._answered < number:
                self._check()
                self._condition.wait(1.0)
            if self._error is not None:
                raise run_error("write", self.path, self._error)

    def close(self) -> None:
        """Flush and end the thread; a second call does nothing. See `flush` for what it raises."""
        with self._condition:
            if self._closing:
                return
        try:
            self.flush()
        finally:
            with self._condition:
                self._closing = True
                self._condition.notify_all()
            self._thread.join()
            self._file.close()

    def _check(self) -> None:
        if isinstance(self._defect, LockLost):
            raise LockLost(str(self._defect))
        if self._defect is not None:
            raise RuntimeError(f"the writer of {self.path} has died") from self._defect
        if self._closing:
            raise RunError(Problem(f"{self.path} is closed"))

    def _run(self) -> None:
        try:
            self._write_forever()
        except BaseException as error:  # a defect of ours, or a lost lock: never in silence
            with self._condition:
                self._defect = error
                self._condition.notify_all()

    def _write_forever(self) -> None:
        unsynced_since: float | None = None
        while True:
            with self._condition:
                self._wait()
                batch = list(self._pending)
                asked, closing = self._asked, self._closing
            error = self._append(batch)
            if self._file.num_unsynced and unsynced_since is None:
                unsynced_since = time.monotonic()
            if error is None and unsynced_since is not None:
                due = time.monotonic() - unsynced_since >= self._sync_seconds
                full = self._file.num_unsynced >= self._capacity
                # After a failure nothing is well again before a sync says so.
                if due or full or closing or asked > self._answered or self._error is not None:
                    error = self._tried(self._file.sync)
                    unsynced_since = None
            self._answer(asked, error, len(batch))
            if closing:
                return

    def _wait(self) -> None:
        """Sleep until there is something to do."""
        if self._asked == self._answered and not self._closing:
            # Not woken by every event: that would cost the training thread more than the event.
            self._condition.wait(_POLL_SECONDS if self._error is None else self._retry_seconds)

    def _answer(self, asked: int, error: OSError | None, num_taken: int) -> None:
        with self._condition:
            for _ in range(num_taken):
                self._pending.popleft()
            self._num_held = self._file.num_waiting
            waiting = len(self._pending) + self._num_held
            before, self._error = self._error, error
            self._answered = asked
            self._condition.notify_all()
        if error is not None and before is None:
            self._report(
                f"{run_error('write', self.path, error)} ({waiting} records wait in memory)"
            )
        elif error is None and before is not None:
            self._report(f"{self.path} can be written again; nothing is lost")

    def _append(self, batch: list[_Entry]) -> OSError | None:
        """Take in lines, and put all that wait into the file."""
        for entry in batch:
            self._file.add(_line(entry))
        return self._tried(self._file.write)

    def _tried(self, action: Callable[[], None]) -> OSError | None:
        try:
            action()
        except OSError as error:
            return error
        return None


def _line(entry: _Entry) -> str:
    """Return a line; those with texts in them lose their secrets."""
    record = entry if isinstance(entry, dict) else encode_event(*entry)
    line = json.dumps(record, allow_nan=False)
    return line if record["kind"] == "step" else redact(line)
