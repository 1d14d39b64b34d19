"""metrics.jsonl, the record of a run: a JSON object per line, every step exactly once."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import numbers
import os
import pathlib
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from luthier.errors import LockLost, Problem, RunError
from luthier.records.events import KINDS, Evaluation, Event, Step
from luthier.records.redaction import redact
from luthier.storage import LineReader, LineWriter, replacing, run_error, unfenced
from luthier.storage.json_lines import parse, renumber

# The record of a run: one JSON object per line, every step exactly once, across restarts.
#
# A line is `{"kind": "step", "step": 12, "time": 1767225600.1, "values": {"loss": 2.5}}`, with a
# number and a checksum (`luthier.storage.json_lines`). JSON has no NaN and no infinities: in
# `values` they stand as the strings "NaN", "Infinity" and "-Infinity". Every other float reads back
# as the very same double.

_KIND_OF = {cls: kind for kind, cls in KINDS.items()}
_IN_FILES = {"pixels"}  # of an image: its line has the path of their file
_FIELDS = {kind: {field.name for field in dataclasses.fields(cls)} for kind, cls in KINDS.items()}


class Recorded(NamedTuple):
    """An event with the time (seconds since 1970) and the step at which it was recorded."""

    time: float
    step: int
    event: Event


class CutBack(NamedTuple):
    """Numbers of lines that `cut_back` kept and dropped, and of the dropped that were damaged."""

    kept: int
    dropped: int
    damaged: int


def encode_number(value: Any) -> int | float | str:
    """Return a scalar as strict JSON holds it.

    Args:
      value: A bool, int, float, NumPy scalar or array without dimensions.

    Returns:
      An int for bools and integers, a float, or `"NaN"`, `"Infinity"` and `"-Infinity"`.

    Raises:
      TypeError: It is not a number.

    Example:
      >>> from luthier import records
      >>> records.encode_number(0.5), records.encode_number(float("nan"))
      (0.5, 'NaN')
    """
    if type(value) is float and math.isfinite(value):
        return value  # nearly always, and the thread that trains waits for it
    if isinstance(value, str):
        raise TypeError(f"a recorded value is a number, not {value!r}")
    if isinstance(value, int | numbers.Integral):
        return int(value)
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


# Never raises: these are the texts and facts of rare events, which must not be lost because one of
# their values is of an odd type. The values of steps, which are numbers by contract, go through
# `encode_number`, which does raise.
def _encode(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _encode(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_encode(entry) for entry in value]
    if value is None or isinstance(value, str | bool):
        return value
    try:
        return encode_number(value)
    except (TypeError, ValueError):
        return str(value)


def encode_event(event: Event, time: float, step: int) -> dict[str, Any]:
    """Return an event as the JSON object of its line.

    Args:
      event: Any event.
      time: Seconds since 1970.
      step: The step for events that have none of their own.

    Returns:
      A dict of plain JSON values, with `kind`, `step` and `time`.

    Raises:
      TypeError: A value of a step or an evaluation is not a number.

    Example:
      >>> from luthier import records
      >>> records.encode_event(records.Step(10, {"loss": 2.5}), time=0.0, step=10)
      {'kind': 'step', 'step': 10, 'time': 0.0, 'values': {'loss': 2.5}}
    """
    # Steps and evaluations are nearly all of the lines and written by hand; the rare ones go
    # through their fields, so that a new field of an event is recorded without a change here.
    record: dict[str, Any] = {"kind": _KIND_OF[type(event)], "step": step, "time": round(time, 6)}
    if isinstance(event, Step | Evaluation):
        values = {name: encode_number(value) for name, value in event.values.items()}
        record["step"] = int(event.step)
        if isinstance(event, Evaluation):
            record["name"] = event.name
            if event.better:
                record["better"] = dict(event.better)
        record["values"] = values
        return record
    for field in dataclasses.fields(event):
        if field.name not in _IN_FILES:
            record[field.name] = _encode(getattr(event, field.name))
    return record


def decode_event(record: Mapping[str, Any]) -> Recorded | None:
    """Return the event of a line's JSON object, or None for a kind of a later version.

    Args:
      record: The fields of a line.

    Returns:
      The event with its time and step, or None.

    Raises:
      RunError: A field is missing, or of another type.

    Example:
      >>> from luthier import records
      >>> line = {"kind": "step", "step": 10, "time": 0.0, "values": {"loss": 2.5}}
      >>> records.decode_event(line).event
      Step(step=10, values={'loss': 2.5})
    """
    kind = record["kind"]
    if kind not in KINDS:
        return None
    # Fields of a later version are left out: its lines are read as far as they are understood.
    fields = {name: value for name, value in record.items() if name in _FIELDS[kind]}
    try:
        if kind in ("step", "evaluation"):
            values = record["values"]
            fields["values"] = {name: _decode_number(value) for name, value in values.items()}
        return Recorded(record["time"], record["step"], KINDS[kind](**fields))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"a recorded {kind} of step {record['step']} is damaged: {error!r}"
        raise RunError(Problem(what)) from error


def _decode_number(value: Any) -> Any:
    # JSON has no NaN and no infinities; `encode_number` writes them as strings.
    return float(value) if isinstance(value, str) else value


def _is_event(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("kind"), str) and isinstance(record.get("step"), int)


def read_records(
    path: str | os.PathLike[str], report: Callable[[str], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of every whole line; what is damaged is left out, and reported.

    A torn end (of a process that is writing, or was killed while it wrote) is no damage.

    Args:
      path: A metrics.jsonl; a missing file has no lines.
      report: Is given one line about all that was left out; None raises a `DamagedRecord` warning.

    Yields:
      The fields of a line, in the order of the file.

    Raises:
      RunError: The file cannot be read.
      VersionError: It was written by a later luthier.

    Example:
      >>> import json
      >>> from luthier import records
      >>> record = records.encode_event(records.Step(10, {"loss": 2.5}), time=0.0, step=10)
      >>> with open("metrics.jsonl", "w") as file:
      ...     print(json.dumps(record), file=file)
      >>> list(records.read_records("metrics.jsonl"))
      [{'kind': 'step', 'step': 10, 'time': 0.0, 'values': {'loss': 2.5}}]
    """
    reader = LineReader(path, accepts=_is_event)
    yield from reader
    _report(reader, report)


def damage_of(path: str | os.PathLike[str]) -> str:
    """Return one line about what is damaged or missing in a record; empty where it is whole.

    Args:
      path: A metrics.jsonl; a missing file is whole.

    Raises:
      RunError: The file cannot be read.
      VersionError: It was written by a later luthier.
    """
    found: list[str] = []
    for _ in read_events(path, found.append):
        pass
    return "".join(found)


def _report(reader: LineReader, report: Callable[[str], None] | None) -> None:
    if reader.report and report is not None:
        report(reader.report)
    elif reader.report:
        warnings.warn(reader.report, DamagedRecord, stacklevel=4)


class DamagedRecord(UserWarning):
    """Lines of a record were left out, because they are damaged or missing."""


def read_events(
    path: str | os.PathLike[str], report: Callable[[str], None] | None = None
) -> Iterator[Recorded]:
    """Yield the events recorded in a file, in order.

    Args:
      path: A metrics.jsonl; a missing file has no events.
      report: Given one line about what is damaged and left out; None warns (`DamagedRecord`).

    Yields:
      Each event with its time and step.

    Raises:
      RunError: The file cannot be read.
      VersionError: It was written by a later luthier.

    Example:
      >>> import json
      >>> from luthier import records
      >>> record = records.encode_event(records.Step(10, {"loss": 2.5}), time=0.0, step=10)
      >>> with open("metrics.jsonl", "w") as file:
      ...     print(json.dumps(record), file=file)
      >>> [recorded.event for recorded in records.read_events("metrics.jsonl")]
      [Step(step=10, values={'loss': 2.5})]
    """
    reader = LineReader(path, accepts=_is_event)
    for line in reader.lines():
        try:
            recorded = decode_event(line.record)
        except RunError:  # JSON, but of no event: from before lines had checksums
            reader.leave_out(line)
            continue
        if recorded is not None:
            yield recorded
    _report(reader, report)


def read_metrics(
    path: str | os.PathLike[str],
    evaluation: str | None = None,
    report: Callable[[str], None] | None = None,
) -> list[dict[str, float]]:
    """Return the steps (or one evaluation set's results) as rows, ready for `pandas.DataFrame`.

    Args:
      path: A metrics.jsonl.
      evaluation: The name of an evaluation set, or None for the training steps.
      report: Is given one line about damaged lines, which are left out; None warns.

    Returns:
      One dict per row: `step`, `time` and the values by name.

    Example:
      >>> import json
      >>> from luthier import records
      >>> record = records.encode_event(records.Step(10, {"loss": 2.5}), time=0.0, step=10)
      >>> with open("metrics.jsonl", "w") as file:
      ...     print(json.dumps(record), file=file)
      >>> records.read_metrics("metrics.jsonl")
      [{'step': 10, 'time': 0.0, 'loss': 2.5}]
    """
    rows = []
    for at, step, event in read_events(path, report):
        wanted = (
            isinstance(event, Step)
            if evaluation is None
            else (isinstance(event, Evaluation) and event.name == evaluation)
        )
        if wanted:
            rows.append({"step": step, "time": at, **event.values})  # type: ignore[union-attr]
    return rows


def cut_back(path: str | os.PathLike[str], step: int) -> CutBack:
    """Drop every line that was recorded after `step`, and whatever is torn, atomically.

    Called before a restart from a checkpoint of `step`, it makes the file what it was when that
    checkpoint was saved. Where a line inside the file is damaged, the file is kept as
    `metrics.jsonl.damaged` too (or `.damaged-2`, where there is such a copy already).

    Args:
      path: A metrics.jsonl; a missing file is fine.
      step: The restored step; -1 drops everything.

    Returns:
      How many lines were kept and dropped.

    Raises:
      RunError: The file cannot be read or written.

    Example:
      >>> import json
      >>> from luthier import records
      >>> with open("metrics.jsonl", "w") as file:
      ...     for step in (10, 20):
      ...         record = records.encode_event(records.Step(step, {"loss": 2.5}), 0.0, step)
      ...         print(json.dumps(record), file=file)
      >>> records.cut_back("metrics.jsonl", step=10)
      CutBack(kept=1, dropped=1, damaged=0)
    """
    path = pathlib.Path(path)
    try:
        return _cut_back(path, step)
    except FileNotFoundError:
        return CutBack(0, 0, 0)
    except OSError as error:
        raise run_error("cut back", path, error) from error


def _cut_back(path: pathlib.Path, step: int) -> CutBack:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
    reader = LineReader(path, accepts=_is_event)
    # One pass finds out whether the dropped lines are a tail: `holes` says that a line which stays
    # begins behind one that goes.
    kept = whole = end = 0  # `end`: where the kept lines would end if only a tail were dropped
    holes = inner_damage = False
    for line in reader.lines():
        # Only damage that a whole line follows: a kill may leave a torn end.
        inner_damage = inner_damage or any(d.what != "missing" for d in reader.damage)
        whole += 1
        if line.record["step"] <= step:
            holes = holes or end != line.start
            kept += 1
            end = line.start + len(line.raw)
    # `missing` is a gap in the numbers: no bytes of it are in the file that could be dropped.
    damaged = sum(damage.count for damage in reader.damage if damage.what != "missing")
    damaged += reader.torn_bytes > 0
    dropped = whole - kept + damaged
    if end == size and not holes:
        return CutBack(kept, 0, 0)
    # Lines before the restored step are gone from the new file where they were damaged; what is
    # left of them stays readable for a person.
    if inner_damage:
        _keep_copy(path)
    # Usually the dropped lines are a tail, and truncating is one atomic call. Where damaged lines,
    # or lines of later steps, stand among those that stay, the file is written again, with new
    # numbers, or readers would report the gaps as missing lines.
    if holes:
        _rewrite(path, step)
    else:
        with open(path, "rb+") as file:
            file.truncate(end)
            os.fsync(file.fileno())
    return CutBack(kept, dropped, damaged)


def _keep_copy(path: pathlib.Path) -> None:
    """Copy a file to the first free name of `FILE.damaged`, `FILE.damaged-2` and so on."""
    # An earlier copy is the only place of what was dropped then.
    for number in itertools.count(1):
        copy = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))
        with contextlib.suppress(FileExistsError), open(copy, "xb") as file:
            file.write(path.read_bytes())
            file.flush()
            # On the disk before the original is cut.
            os.fsync(file.fileno())
            return


def _rewrite(path: pathlib.Path, step: int) -> None:
    kept = (
        line for line in LineReader(path, accepts=_is_event).lines() if line.record["step"] <= step
    )
    with replacing(path) as target:
        for number, line in enumerate(kept):
            target.write(renumber(line.raw, number))


def read_last(
    path: str | os.PathLike[str], kind: type, window_bytes: int = 1 << 18
) -> Recorded | None:
    """Return the last event of a type, looking first at the file's end.

    Args:
      path: A metrics.jsonl; a missing file has no events.
      kind: The event's class.
      window_bytes: Bytes of the end to look at first.

    Returns:
      The event with its time and step; None where there is no such event, or the file cannot be
      read.

    Example:
      >>> import json
      >>> from luthier import records
      >>> record = records.encode_event(records.Step(10, {"loss": 2.5}), time=0.0, step=10)
      >>> with open("metrics.jsonl", "w") as file:
      ...     print(json.dumps(record), file=file)
      >>> records.read_last("metrics.jsonl", records.Step).event
      Step(step=10, values={'loss': 2.5})
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - window_bytes))
            lines = file.read().splitlines(keepends=True)
    # Lists of runs go on without the line. A restart copies the file next, and that raises.
    except OSError:
        return None
    # The first one may be the end of a longer line, of which `parse` makes nothing: it is not JSON.
    for raw in reversed(lines):
        line = parse(raw)
        if (
            line is not None
            and line.record.get("kind") == _KIND_OF[kind]
            and _is_event(line.record)
        ):
            return decode_event(line.record)
    # Other kinds, such as histograms, may fill the end.
    return None if window_bytes >= size else read_last(path, kind, 8 * window_bytes)


def sample_steps(
    path: str | os.PathLike[str], most: int = 24, window_bytes: int = 1 << 13
) -> list[Step]:
    """Return some of the recorded steps, evenly spread over the file, in order.

    Of a long file it reads `most` short pieces and parses a line of each: a list of a thousand runs
    shows the curve of each of them.

    Args:
      path: A metrics.jsonl; of a missing file there are none.
      most: How many steps, at least 2.
      window_bytes: Bytes of a piece. A piece within one long line, such as a histogram, yields no
        step.

    Returns:
      At most `most` steps; fewer where pieces hold none.

    Example:
      >>> import json
      >>> from luthier import records
      >>> record = records.encode_event(records.Step(10, {"loss": 2.5}), time=0.0, step=10)
      >>> with open("metrics.jsonl", "w") as file:
      ...     print(json.dumps(record), file=file)
      >>> records.sample_steps("metrics.jsonl")
      [Step(step=10, values={'loss': 2.5})]
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size <= most * window_bytes:
                file.seek(0)
                lines = [raw for raw in file.read().splitlines(keepends=True) if _is_step(raw)]
                last = len(lines) - 1  # -1 before the first step
                places = {round(i * last / (most - 1)) for i in range(most)}
                chosen = [lines[place] for place in sorted(places) if 0 <= place <= last]
            else:
                chosen = []
                for index in range(most):
                    file.seek((size - window_bytes) * index // (most - 1))
                    piece = file.read(window_bytes).splitlines(keepends=True)
                    chosen += [raw for raw in piece if _is_step(raw) and raw.endswith(b"\n")][:1]
    except OSError:
        return []
    steps: dict[int, Step] = {}
    for raw in chosen:
        # A torn line and a damaged one are left out, as everywhere.
        if (line := parse(raw)) is not None and _is_event(line.record):
            with contextlib.suppress(RunError, KeyError):
                recorded = decode_event(line.record)
                if recorded is not None and isinstance(recorded.event, Step):
                    steps[recorded.step] = recorded.event
    return [steps[step] for step in sorted(steps)]


def read_evaluations(path: str | os.PathLike[str]) -> Iterator[Evaluation]:
    """Yield the evaluations of a record, in order, and parse no other line.

    Args:
      path: A metrics.jsonl; one that is missing or cannot be read has none.

    Yields:
      Each evaluation; damaged lines are left out.

    Example:
      >>> from luthier.records import metrics_file
      >>> list(metrics_file.read_evaluations("metrics.jsonl"))
      []
    """
    try:
        with open(path, "rb") as file:
            for raw in file:
                if not raw.startswith(b'{"kind": "evaluation"'):
                    continue
                if (line := parse(raw)) is not None and _is_event(line.record):
                    with contextlib.suppress(RunError, KeyError):
                        recorded = decode_event(line.record)
                        if recorded is not None and isinstance(recorded.event, Evaluation):
                            yield recorded.event
    except OSError:
        return


def _is_step(raw: bytes) -> bool:
    # As `encode_event` begins it; parsing every line would take the time of reading the record.
    return raw.startswith(b'{"kind": "step"')


# The sink that is the record: a thread appends events to metrics.jsonl, durably.

_POLL_SECONDS = 0.1
_PLAIN = {float, int}

_Entry = dict[str, Any] | tuple[Event, float, int]
"""A line's JSON object, or what `encode_event` makes it of."""


def _silent(text: str) -> None:
    del text


# The thread that trains must never wait for a disk, so `emit` queues, and one thread encodes,
# writes and syncs. Everything that is shared is guarded by one condition:
#
# `_pending` are events that were not taken yet; they are popped only after they are in the file's
# own memory (`LineWriter`), so that the capacity counts each once. `_requested` and `_completed`
# number the flushes: a flush is completed by the first sync that began after it was requested.
# `_error` is the present error of the disk; `_defect` ended the thread for good (a bug, or the lost
# lock), and every later call raises it.
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
        self._requested = self._completed = 0  # numbers of flushes
        self._error: OSError | None = None
        self._defect: BaseException | None = None
        self._closing = False
        self._step = 0
        self._file = LineWriter(self.path, fence)
        self._thread = threading.Thread(target=self._run, name="luthier-json-lines", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Queue an event.

        Args:
          event: The event.

        Raises:
          RunError: The disk has refused for so long that no more events fit into memory.
          LockLost: Another process writes here now.
          TypeError: A value of a step or an evaluation is not a number.
        """
        entry: _Entry
        # `set(map(type, ...))` runs in C: this line is executed for every step on the thread that
        # trains.
        if isinstance(event, Step) and set(map(type, event.values.values())) <= _PLAIN:
            # Nothing can be refused: the writer's thread encodes it.
            entry, step = (event, time.time(), event.step), event.step
        else:
            # Encoded here, so that a value that is no number raises at the line that emitted it,
            # and not in another thread; and so that arrays are not held until they are written.
            entry = encode_event(event, time.time(), self._step)
            step = entry["step"]
        self._step = max(self._step, step)
        with self._condition:
            self._check()
            # Back-pressure: a slow disk slows training down, one that refuses ends it. Dropping
            # lines would make a record that lies.
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
            self._requested += 1
            number = self._requested
            self._condition.notify_all()
            while self._completed < number:
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
                # A copy; the entries stay queued until `_answer`, which counts how many were taken.
                batch = list(self._pending)
                requested, closing = self._requested, self._closing
            error = self._append(batch)
            if self._file.num_unsynced and unsynced_since is None:
                unsynced_since = time.monotonic()
            if error is None and unsynced_since is not None:
                due = time.monotonic() - unsynced_since >= self._sync_seconds
                full = self._file.num_unsynced >= self._capacity
                # After a failure nothing is well again before a sync says so.
                if due or full or closing or requested > self._completed or self._error is not None:
                    error = self._tried(self._file.sync)
                    unsynced_since = None
            self._answer(requested, error, len(batch))
            if closing:
                return

    def _wait(self) -> None:
        """Sleep until there is something to do."""
        if self._requested == self._completed and not self._closing:
            # Not woken by every event: that would cost the training thread more than the event.
            self._condition.wait(_POLL_SECONDS if self._error is None else self._retry_seconds)

    def _answer(self, requested: int, error: OSError | None, num_taken: int) -> None:
        with self._condition:
            for _ in range(num_taken):
                self._pending.popleft()
            self._num_held = self._file.num_waiting
            waiting = len(self._pending) + self._num_held
            before, self._error = self._error, error
            self._completed = requested
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
