"""How long each host takes, and which of them the others wait for."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from luthier.errors import LockLost, RunError
from luthier.parallel import distributed
from luthier.storage import LineWriter, run_error
from luthier.train.processes.probe import Probe

HOSTS_FILE = "hosts.jsonl"
"""What hosts took, in the run's directory: a line for every exchange."""

EVERY_STEPS = 100
"""Hosts tell each other their times so often."""

PROBE_STEPS = 20
"""A device is timed by itself so often."""

_SLOW_BATCH, _SLOW_DEVICE = 1.5, 1.3
_LIMITING = 0.8


@dataclasses.dataclass(frozen=True)
class HostTimes:
    """What one process took lately.

    Args:
      process: Which process of the run, from 0.
      host: The name of its machine.
      step_seconds: Mean time from one step to the next, which is that of the slowest host.
      batch_seconds: Mean time to make its part of a batch, beside the steps.
      device_seconds: Median time of a small work on its slowest device; None before the first.
    """

    process: int
    host: str
    step_seconds: float
    batch_seconds: float
    device_seconds: float | None


class Times:
    """Measures this process; in the primary, compares all of them.

    Args:
      path: The file that gets a line of all hosts; written by the primary only.
      fence: Raises `LockLost` where another process writes here now; called before each write.
    """

    def __init__(self, path: str | os.PathLike[str], fence: Callable[[], None] = lambda: None):
        self._path, self._fence = path, fence
        self._file: LineWriter | None = None
        self._first_step = 0
        self._tell: Callable[[str], None] = lambda line: None
        self._batches: list[float] = []
        self._works: list[float] = []
        self._probe = Probe(self._works.append)
        self._number = 0
        self._steps = 0
        self._since = time.perf_counter()
        self._suspects: dict[int, str] = {}
        self._told: set[int] = set()

    def begin(self, step: int, tell: Callable[[str], None]) -> None:
        """Say where training goes on.

        Args:
          step: Steps done.
          tell: Tells the user a line; callable from any thread.
        """
        self._first_step, self._tell, self._since = step, tell, time.perf_counter()

    def stepped(self, vector: jax.Array) -> None:
        """Take note of a step that is on its way.

        Args:
          vector: What it returns.
        """
        self._steps += 1
        if self._steps % PROBE_STEPS == 0:
            self._probe.start(vector)

    def mine(self, batch_seconds: float) -> dict[str, Any] | None:
        """Return what this process has to tell with a batch, which is nothing with most of them.

        Args:
          batch_seconds: What the batch took.
        """
        self._batches.append(batch_seconds)
        self._number += 1
        if self._number % EVERY_STEPS:
            return None
        now = time.perf_counter()
        batches, works = self._batches, self._works[:]
        elapsed, self._since, self._batches = now - self._since, now, []
        self._works.clear()
        return dataclasses.asdict(
            HostTimes(
                process=distributed.process_index(),
                host=platform.node(),
                step_seconds=elapsed / len(batches),
                batch_seconds=statistics.fmean(batches),
                device_seconds=statistics.median(works) if works else None,
            )
        )

    def take_in(self, said: Sequence[dict[str, Any]]) -> None:
        """Write down what all processes told, and name who is slow for the second time in a row.

        Args:
          said: What `mine` returned in each of them.
        """
        line = {"step": self._first_step + self._number, "hosts": list(said)}
        try:
            if self._file is None:
                self._file = LineWriter(self._path, self._fence)
            self._file.add(json.dumps(line))
            self._file.commit()
        except OSError as error:
            self._tell(f"{run_error('write', self._path, error)}; training goes on")
        except (RunError, LockLost) as error:  # the metrics, which are essential, end the run
            self._tell(f"{error}; training goes on")
        slow = laggards([HostTimes(**each) for each in said])
        for process in slow.keys() & self._suspects.keys() - self._told:
            self._tell(slow[process])
        self._told = (self._told | self._suspects.keys()) & slow.keys()
        self._suspects = slow

    def close(self) -> None:
        """Stop measuring."""
        self._probe.close()
        if self._file is not None:
            self._file.close()


def laggards(times: Sequence[HostTimes]) -> dict[int, str]:
    """Return the processes that the others wait for, with a line about each.

    Args:
      times: Those of all processes.
    """
    lines = {}
    for own in times:
        others = [other for other in times if other is not own]
        who = f"process {own.process} of {len(times)} on {own.host} is slow"
        usual = statistics.median(other.batch_seconds for other in others)
        limiting = own.batch_seconds > _LIMITING * own.step_seconds
        if limiting and own.batch_seconds > _SLOW_BATCH * usual:
            lines[own.process] = (
                f"{who}: its part of a batch takes {_short(own.batch_seconds)}, that of the others "
                f"{_short(usual)}, and a step {_short(own.step_seconds)}"
            )
        known = [other.device_seconds for other in others if other.device_seconds is not None]
        if own.device_seconds is not None and known:
            usual = statistics.median(known)
            if own.device_seconds > _SLOW_DEVICE * usual:
                lines[own.process] = (
                    f"{who}: its devices take {_short(own.device_seconds)} for what takes the "
                    f"others {_short(usual)}"
                )
    return lines


def _short(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
