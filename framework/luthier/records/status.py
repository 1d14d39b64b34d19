"""status.json: the status of a run, for those who look from outside."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from luthier.errors import LockLost, Problem, RunError
from luthier.records import events
from luthier.records.metrics_file import encode_number
from luthier.records.redaction import write_json
from luthier.storage import read_json

CREATED = "created"

FORMAT = 1
"""The format of status.json; a file without one is of format 1."""


@dataclasses.dataclass(frozen=True)
class Status:
    """The status of a run.

    Args:
      status: `created`, `running`, `finished`, `interrupted`, `preempted`, `diverged` or
        `failed`.
      step: Steps done.
      total_steps: Steps of the whole run, when known.
      saved_step: The last step of which a checkpoint is committed.
      seconds: Seconds spent training, over all restarts.
      tokens: Tokens trained on.
      restarts: Number of times that training was resumed.
      started: When the run first started, in seconds since 1970.
      updated: When this was written.
      message: The message with which the run ended.
      metrics: The last step's values.
      evaluations: The last values of every evaluation set.
      crash: The file with the traceback of the failure, in the run's directory; empty for none.
    """

    status: str = CREATED
    step: int = 0
    total_steps: int | None = None
    saved_step: int | None = None
    seconds: float = 0.0
    tokens: int = 0
    restarts: int = 0
    started: float = 0.0
    updated: float = 0.0
    message: str = ""
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    crash: str = ""


def read_status(path: str | os.PathLike[str]) -> Status:
    """Return the status in a file; a missing file is a run that never started.

    Args:
      path: The file.

    Returns:
      The status.

    Raises:
      RunError: The file is damaged.
      VersionError: It was written by a later luthier.

    Example:
      >>> from luthier import records
      >>> records.read_status("missing/status.json").step
      0
    """
    fields = read_json(path, default={}, newest=FORMAT)
    if not isinstance(fields, dict):
        raise RunError(Problem(f"{os.fspath(path)} is damaged: it holds no status"))
    # Fields of a later version are ignored; a change that would be misread needs a higher FORMAT.
    known = {field.name for field in dataclasses.fields(Status)}
    return Status(**{name: value for name, value in fields.items() if name in known})


def write_status(
    path: str | os.PathLike[str], status: Status, fence: Callable[[], None] | None = None
) -> None:
    """Write a status atomically.

    Args:
      path: The file.
      fence: Raises where another process writes here now; called just before the file changes.

    Raises:
      RunError: The file cannot be written.

    Example:
      >>> from luthier import records
      >>> records.write_status("status.json", records.Status(step=10))
      >>> records.read_status("status.json").step
      10
    """
    write_json(path, status_fields(status), fence)


def status_fields(status: Status) -> dict[str, Any]:
    """Return a status as the JSON object of its file."""
    return {"format": FORMAT, **dataclasses.asdict(status)}


class StatusFile:
    """The sink that keeps status.json up to date, from a thread of its own.

    Args:
      path: The file.
      report: Is given one line when the file cannot be written.
      every_seconds: Time between two updates while nothing special happens.
      fence: Raises `LockLost` where another process writes here now; called before each write.
    """

    # The status is a courtesy to those who look; the record is metrics.jsonl.
    essential = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        report: Callable[[str], None] = lambda text: None,
        *,
        every_seconds: float = 10.0,
        fence: Callable[[], None] = lambda: None,
    ):
        self.path = pathlib.Path(path)
        self._report = report
        self._every_seconds = every_seconds
        self._fence = fence
        # What a restart keeps: when the run first started, how often it was restarted, what was
        # saved last.
        self._earlier = read_status(self.path)
        self._status = self._earlier
        self._step: events.Step | None = None
        self._wake = threading.Event()
        self._closing = False
        self._reported = False
        # A thread, since writing atomically means an fsync, which may take seconds on a network
        # disk.
        self._thread = threading.Thread(target=self._run, name="luthier-status", daemon=True)
        self._thread.start()

    def emit(self, event: events.Event) -> None:
        """Note an event; the file follows soon.

        Args:
          event: The event.
        """
        # No write here: the training thread only replaces fields, and the thread of this sink
        # writes the file. Steps and evaluations wait for the next look; beginnings, saves and ends
        # wake it at once, because tools wait for them.
        replace = dataclasses.replace
        status = self._status
        # A step is kept as it is and merged in `_write`: building a status for each of them would
        # be work of the training thread, and few of them are written.
        if isinstance(event, events.Step):
            self._step = event
            return
        if isinstance(event, events.Evaluation):
            self._status = replace(
                status, evaluations={**status.evaluations, event.name: event.values}
            )
            return
        if isinstance(event, events.Header):
            self._status = self._start(event)
        elif isinstance(event, events.Saved):
            self._status = replace(status, saved_step=event.step)
        elif isinstance(event, events.Ended):
            self._status = replace(
                status,
                status=event.status,
                step=event.step,
                message=event.message,
                crash=event.crash,
            )
        else:
            return
        self._wake.set()

    def _start(self, header: events.Header) -> Status:
        earlier = self._earlier
        return dataclasses.replace(
            earlier,
            status=events.RUNNING,
            step=header.step,
            total_steps=header.total_steps,
            restarts=earlier.restarts + (earlier.status != CREATED),
            started=earlier.started or time.time(),
            message="",
            crash="",
        )

    def flush(self) -> None:
        """Request a write of the file, without waiting for it."""
        self._wake.set()

    def close(self) -> None:
        """Write the file a last time and end the thread."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        written: tuple[Status, events.Step | None] = (self._earlier, None)
        while True:
            closing = self._closing
            # Fields are replaced as a whole by the training thread and compared here: no lock is
            # needed, and an update that was not seen now is seen at the next look.
            latest = (self._status, self._step)
            if latest != written:
                self._write(*latest)
                written = latest
            if closing:
                return
            self._wake.wait(self._every_seconds)
            self._wake.clear()

    def _write(self, status: Status, step: events.Step | None) -> None:
        if step is not None:
            values = step.values
            status = dataclasses.replace(
                status,
                # The end may already have named a later step than the last one that was recorded.
                step=max(step.step, status.step),
                metrics=values,
                seconds=float(values.get(events.SECONDS, status.seconds)),
                tokens=int(values.get(events.TOKENS, status.tokens)),
            )
        status = dataclasses.replace(
            status,
            updated=time.time(),
            metrics=_strict(status.metrics),
            evaluations={name: _strict(values) for name, values in status.evaluations.items()},
        )
        try:
            self._fence()
            write_status(self.path, status, self._fence)
        except LockLost:  # the metrics, which are essential, end the run
            return
        except (RunError, OSError) as error:
            if not self._reported:
                self._report(str(error))
            self._reported = True


def _strict(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, str) else encode_number(value)
        for name, value in values.items()
    }


# When a run counts as hanging.


@dataclasses.dataclass(frozen=True)
class Watchdog:
    """Limits after which a run counts as hanging and is ended.

    The time that a process is stopped as a whole, as by Ctrl-Z or a sleeping laptop, does not
    count.

    Args:
      seconds: Time limit of a step, a batch of an evaluation, or a save.
      start_seconds: Time limit of each phase before the first step: opening the data, restoring
        or initializing the state, compiling the step.
    """

    RANGES: ClassVar[dict[str, str]] = {"seconds": "0 < x", "start_seconds": "0 < x"}

    seconds: float = 1800.0
    start_seconds: float = 7200.0
