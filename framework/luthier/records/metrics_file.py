"""The record of a run: one JSON object per line, every step exactly once, across restarts.

A line is `{"kind": "step", "step": 12, "time": 1767225600.1, "values": {"loss": 2.5}}`, with a
number and a checksum (`luthier.storage.json_lines`). JSON has no NaN and no infinities: in `values`
they stand as the strings "NaN", "Infinity" and "-Infinity". Every other float reads back as the
very same double.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from luthier.errors import Problem, RunError
from luthier.records.events import KINDS, Evaluation, Event, Step
from luthier.storage import LineReader, replacing, run_error
from luthier.storage.json_lines import parse, renumber

_KIND_OF = {cls: kind for kind, cls in KINDS.items()}
_IN_FILES = {"pixels"}  # of an image: its line tells the path of the file that has them
_FIELDS = {kind: {field.name for field in dataclasses.fields(cls)} for kind, cls in KINDS.items()}


class Recorded(NamedTuple):
    """An event with the time (seconds since 1970) and the step at which it was recorded."""

    time: float
    step: int
    event: Event


class CutBack(NamedTuple):
    """How many lines `cut_back` kept and dropped, and how many of the dropped were unreadable."""

    kept: int
    dropped: int
    damaged: int


def encode_number(value: Any) -> int | float | str:
    """Return a scalar as strict JSON holds it.

    Args:
      value: A bool, int, float, NumPy scalar or array without dimensions.

    Raises:
      TypeError: It is not a number.
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

    Raises:
      TypeError: A value of a step or an evaluation is not a number.
    """
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
    """Return the event of a line's JSON object, or None for a kind of a later version."""
    kind = record["kind"]
    if kind not in KINDS:
        return None
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

    Raises:
      RunError: The file cannot be read.
      VersionError: It was written by a later luthier.
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

    Raises:
      RunError: The file cannot be read.
      VersionError: It was written by a later luthier.
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
    `metrics.jsonl.damaged` too.

    Args:
      path: A metrics.jsonl; a missing file is fine.
      step: The restored step; -1 drops everything.

    Returns:
      How many lines were kept and dropped.

    Raises:
      RunError: The file cannot be read or written.
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
    kept = whole = end = 0  # `end`: where the kept lines would end if only a tail were dropped
    holes = inner_damage = False
    for line in reader.lines():
        inner_damage = inner_damage or bool(reader.damage)
        whole += 1
        if line.record["step"] <= step:
            holes = holes or end != line.start
            kept += 1
            end = line.start + len(line.raw)
    damaged = sum(damage.count for damage in reader.damage if damage.what != "missing")
    damaged += reader.torn_bytes > 0
    dropped = whole - kept + damaged
    if end == size and not holes:
        return CutBack(kept, 0, 0)
    if inner_damage:
        copy = path.with_name(path.name + ".damaged")
        copy.write_bytes(path.read_bytes())
    if holes:
        _rewrite(path, step)
    else:
        with open(path, "rb+") as file:
            file.truncate(end)
            os.fsync(file.fileno())
    return CutBack(kept, dropped, damaged)


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
      window_bytes: How much of the end to look at first.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - window_bytes))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return None
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
