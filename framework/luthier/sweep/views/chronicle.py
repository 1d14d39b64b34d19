"""What happened when: which trial was on which slice, read from a study's journal."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from luthier.sweep.driver.journal import NAME, read_journal


@dataclasses.dataclass(slots=True)
class Span:
    """A trial on a slice.

    Args:
      trial: Its number.
      slice: The number of the slice.
      start: When it began, in seconds of driving.
      end: When it was over; for one that runs, when the journal ends.
      outcome: How it ended: an outcome of a trial, `lost` with its worker, or `running`.
    """

    trial: int
    slice: int
    start: float
    end: float
    outcome: str = "running"


@dataclasses.dataclass
class Chronicle:
    """What happened when; time without a driver does not count.

    Args:
      spans: Trials on slices, in the order in which they began.
      slices: The names of the slices, by their number.
      assignments: What the sampler chose, by the number of the setting.
      seconds: How long the study was driven.
    """

    spans: list[Span] = dataclasses.field(default_factory=list)
    slices: dict[int, str] = dataclasses.field(default_factory=dict)
    assignments: dict[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


def read_chronicle(directory: pathlib.Path) -> Chronicle:
    """Return what happened in the study in a folder.

    Args:
      directory: The study's folder.

    Raises:
      RunError: Its journal is damaged.
    """
    return chronicle_of(read_journal(directory / NAME))


def chronicle_of(lines: Iterable[Mapping[str, Any]]) -> Chronicle:
    """Return what the lines of a journal tell.

    Args:
      lines: The lines.
    """
    found = Chronicle()
    begun: dict[int, Span] = {}
    last = idle = None
    for line in lines:
        kind, at = line["kind"], line["at"]
        if last is None or idle is None:
            last = idle = at
        if kind == "opened":
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
        elif kind in ("ended", "lost") and line["trial"] in begun:
            span = begun.pop(line["trial"])
            span.end, span.outcome = found.seconds, line.get("outcome", kind)
    for span in begun.values():
        span.end = found.seconds
    return found
