"""Where the time of a device goes, from a trace of JAX's profiler."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CATEGORIES = (
    ("attention", r"fmha|sdpa|flash|cudnn_generated.*(fprop|bprop|dot_product)|attention"),
    ("collective", r"nccl|all-?reduce|all-?gather|reduce-?scatter|all-?to-?all|collective|permute"),
    ("matmul", r"gemm|nvjet|cutlass|cublas|xmma|wgmma|(^|[_ .])dot([_.\d]|$)|matmul|^ynn_fusion"),
    ("copy", r"memcpy|memset|copy|transpose|^bitcast"),
    ("fusion", r"fusion|loop_|input_|wrapped_|triton|reduce|scatter|sort|broadcast|convert"),
)
OTHER = "other"


class Event(NamedTuple):
    """Something that ran on a device.

    Args:
      name: Names of the kernel and of the operation, for its category.
      line: The stream or the thread.
      start: Nanoseconds.
      end: Nanoseconds.
    """

    name: str
    line: str
    start: float
    end: float


def category(name: str) -> str:
    """Return what an event is, by its names."""
    for found, pattern in CATEGORIES:
        if re.search(pattern, name, re.IGNORECASE):
            return found
    return OTHER


def read(folder: Path) -> list[Event]:
    """Return what ran on the devices of a trace: all of a GPU's streams, or a CPU's operations.

    Args:
      folder: What `jax.profiler.trace` was given.
    """
    from jax.profiler import ProfileData

    (file,) = folder.rglob("*.xplane.pb")
    with warnings.catch_warnings():
        # Of JAX 0.12 on Python 3.12, at the first use of its types: as an error, it aborts.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _events(ProfileData.from_file(str(file)))


def _events(profile: Any) -> list[Event]:
    planes = list(profile.planes)
    devices = [plane for plane in planes if re.match(r"/device:(GPU|TPU):\d+$", plane.name)]
    events = []
    for plane in devices[:1] or [plane for plane in planes if plane.name == "/host:CPU"]:
        for number, line in enumerate(plane.lines):
            if devices and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                operation = dict(event.stats).get("hlo_op")
                if (operation is None and not devices) or event.name.startswith("end: "):
                    continue
                end = event.start_ns + event.duration_ns
                name = f"{event.name} {operation or ''}".strip()
                events.append(Event(name, f"{number} {line.name}", event.start_ns, end))
    return events


def shares(events: Sequence[Event]) -> dict[str, float]:
    """Return the share of the time that each category took, and that nothing ran (`idle`).

    Of an event that others ran within, only its own time counts. Where lines ran at a time, shares
    are of the sum of all lines, and idle is when none ran.
    """
    if not events:
        return {}
    begin, end = min(e.start for e in events), max(e.end for e in events)
    idle = 1 - _covered(events) / max(end - begin, 1e-9)
    spent: dict[str, float] = {}
    for line in {event.line for event in events}:
        for event, own in _own_time([e for e in events if e.line == line]):
            found = category(event.name)
            spent[found] = spent.get(found, 0.0) + own
    total = sum(spent.values()) or 1.0
    ordered = sorted(spent.items(), key=lambda pair: -pair[1])
    return {name: (1 - idle) * own / total for name, own in ordered} | {"idle": idle}


def longest(events: Sequence[Event], number: int = 48) -> list[tuple[str, str, float]]:
    """Return the operations that took most time: category, name, share of all events' time."""
    spent: dict[str, float] = {}
    for line in {event.line for event in events}:
        for event, own in _own_time([e for e in events if e.line == line]):
            spent[event.name] = spent.get(event.name, 0.0) + own
    total = sum(spent.values()) or 1.0
    ordered = sorted(spent.items(), key=lambda pair: -pair[1])[:number]
    return [(category(name), name[:80], own / total) for name, own in ordered]


def _covered(events: Iterable[Event]) -> float:
    """Return for how long anything ran."""
    total, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: e.start):
        total += max(0.0, event.end - max(event.start, until))
        until = max(until, event.end)
    return total


def _own_time(events: Sequence[Event]) -> list[tuple[Any, float]]:
    """Return the events of a line, each with its time without those within it."""
    own: list[list[Any]] = []
    stack: list[int] = []
    for event in sorted(events, key=lambda e: (e.start, -e.end)):
        while stack and own[stack[-1]][0].end <= event.start:
            stack.pop()
        if stack:
            own[stack[-1]][1] -= min(event.end, own[stack[-1]][0].end) - event.start
        stack.append(len(own))
        own.append([event, event.end - event.start])
    return [(event, max(time, 0.0)) for event, time in own]
