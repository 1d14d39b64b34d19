"""The timeline of a study: which trial was on which device group and when, and what it reported."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from luthier.study.driver.journal import NAME as JOURNAL
from luthier.study.driver.journal import read_journal


@dataclasses.dataclass(slots=True)
class Span:
    """A trial on a slice.

    Args:
      trial: Its number.
      slice: The number of the slice.
      start: When it began, in seconds of driving.
      end: When it was over; for one that runs, when the journal ends.
      outcome: How it ended: an outcome of a trial, `lost` with its worker, `paused`, or `running`.
    """

    trial: int
    slice: int
    start: float
    end: float
    outcome: str = "running"


@dataclasses.dataclass
class Timeline:
    """The events of a study by time, without the time in which no driver ran.

    Args:
      spans: Trials on slices, in the order in which they began.
      slices: The names of the slices, by their number.
      assignments: What the sampler chose, by the number of the setting.
      reports: Values of the first objective by step, by the number of the trial, as evaluated.
      rungs: Steps at which trials reached a rung, by the number of the rung, from one on.
      seconds: How long the study was driven.
    """

    spans: list[Span] = dataclasses.field(default_factory=list)
    slices: dict[int, str] = dataclasses.field(default_factory=dict)
    assignments: dict[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    reports: dict[int, dict[int, float]] = dataclasses.field(default_factory=dict)
    rungs: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


def read_timeline(directory: pathlib.Path) -> Timeline:
    """Read the timeline of the study in a folder.

    Args:
      directory: The study's folder.

    Raises:
      RunError: Its journal is damaged.
    """
    return timeline_of(read_journal(directory / JOURNAL))


def timeline_of(lines: Iterable[Mapping[str, Any]]) -> Timeline:
    """Build a timeline from the lines of a journal.

    Args:
      lines: The lines.
    """
    found = Timeline()
    begun: dict[int, Span] = {}
    last = idle = noted = None
    is_driven = False
    for line in lines:
        kind, at = line["kind"], line["at"]
        if last is None or idle is None:
            last = idle = at
        # The clock of the timeline stops between two drivers: from the last line of the one to the
        # line `opened` of the next. That one notes before it opens what is edited and what runs
        # again, and one that is killed leaves no line `closed`: so a note counts only if the same
        # driver wrote a line after it, or if it is the end of the journal.
        if kind == "retried":
            found.reports.pop(line["trial"], None)  # of the attempt that failed
        if kind in ("noted", "retried", "reopened"):
            is_driven = is_driven and kind == "noted"
            noted = at
            continue
        noted = None
        is_driven = kind == "opened" or (is_driven and kind != "closed")
        if kind == "opened":
            # May be negative where the clock was set back; `seconds` below never falls.
            idle += at - last
            found.slices |= {info["index"]: info["name"] for info in line["slices"]}
        last = max(last, at)  # clocks may be set back
        found.seconds = max(found.seconds, at - idle)
        if kind == "asked":
            found.assignments[line["setting"]] = line["assignment"]
        elif kind == "leased":
            span = Span(line["trial"], line["slice"], found.seconds, found.seconds)
            begun[line["trial"]] = span
            found.spans.append(span)
        elif kind == "reported":
            # A trial that was lost reports the steps after its checkpoint once more.
            found.reports.setdefault(line["trial"], {})[line["step"]] = line["value"]
        elif kind == "promoted" and line.get("restarts"):
            found.reports.pop(line["trial"], None)  # of its run to the rung
        elif kind == "reached":
            found.rungs.setdefault(line["rung"], set()).add(line["step"])
        # A trial that never ran, or that ends while it is paused, has no span that is open.
        elif kind in ("ended", "lost", "paused") and line["trial"] in begun:
            span = begun.pop(line["trial"])
            span.end, span.outcome = found.seconds, line.get("outcome", kind)
    if is_driven and noted is not None and idle is not None:
        found.seconds = max(found.seconds, noted - idle)
    for span in begun.values():
        span.end = found.seconds
    return found


def seconds_of(timeline: Timeline) -> dict[int, float]:
    """Return how long each trial was on device groups, in seconds, by its number.

    Args:
      timeline: The timeline of the study.
    """
    found: dict[int, float] = {}
    for span in timeline.spans:
        found[span.trial] = found.get(span.trial, 0.0) + span.end - span.start
    return found
