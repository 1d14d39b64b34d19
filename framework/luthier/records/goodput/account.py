"""The account of a run's time: what its processes spent, what was lost, and when nothing ran."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.records.goodput.stopwatch import COMPILE, DATA_WAIT, INIT, STEP

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
    """Where the time of a run went, over all its processes.

    Args:
      lifetimes: Its processes in order.
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
        """How often training went on after a process had ended."""
        return max(len(self.lifetimes) - 1, 0)


def account_of(lines: Sequence[Mapping[str, Any]], alive: bool = False) -> Account:
    """Return the account of a run's spans.

    Time is lost when a later process began at an earlier step: all that was done after that step,
    except for getting ready, is done again.

    Args:
      lines: The lines of its goodput.jsonl (`read_spans`).
      alive: Whether a process still trains: its last span is then not where it was killed.
    """
    processes = _processes(lines)
    restored = [process[0]["step"] for process in processes]
    lifetimes: list[Lifetime] = []
    for number, process in enumerate(processes):
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
    """Return what a process did, where a later one went on from step `until`."""
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
            for name, part in ((kind, value * (1 - lost)), (LOST, value * lost)):
                if part:
                    seconds[name] = seconds.get(name, 0.0) + part
    rest = end - began["time"] - sum(seconds.values())
    if rest > 1e-3:
        seconds[OTHER] = rest
    return Lifetime(began["time"], end, began["step"], reached, status, seconds)


def _lost_share(kind: str, first: int, last: int, until: int | None) -> float:
    """Return how much of a span was done again by a process that went on from step `until`."""
    if until is None or kind in _NEVER_LOST:
        return 0.0
    if kind in _STEPPING:
        last = max(last, first + 1)  # a step that was begun and never done
    if first == last:
        return float(first > until)
    return (last - min(max(first, until), last)) / (last - first)
