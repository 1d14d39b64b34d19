"""Heartbeats: how far each process of a run is, and which one is silent.

Every process tells the store of the coordination service now and then how far it is; the primary
reads all of that, and writes down in one place how things stand, which the others read.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from luthier.parallel.distributed.messages import _state, process_count, process_index

HEARTBEAT_SECONDS = 2.0
SILENT_SECONDS = 6.0
"""After this long without a heartbeat a process counts as silent, before JAX gives it up."""

_HEARTBEATS = "luthier/heartbeats/"
_STANDING = "luthier/standing"
_TIMEOUT_MILLISECONDS = 2000


@dataclasses.dataclass(frozen=True)
class Liveness:
    """How the processes of a run stand, as the primary saw them last.

    Args:
      progress: What each process told of how far it is, a list of numbers, by its number.
      silent: The processes that were not heard of for a while.
    """

    progress: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    silent: tuple[int, ...] = ()

    @property
    def behind(self) -> tuple[int, ...]:
        """The silent processes; where there are none, those that are less far than another."""
        if self.silent or not self.progress:
            return self.silent
        furthest = max(self.progress.values())
        return tuple(sorted(i for i, place in self.progress.items() if place < furthest))


class Judge:
    """Tells which processes are silent: those whose heartbeat was seen to change too long ago.

    Only the judge's own clock counts.

    Args:
      count: How many processes there are.
      now: The clock, in seconds.
    """

    def __init__(self, count: int, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._seen: dict[int, tuple[str, float]] = {i: ("", now()) for i in range(count)}

    def judge(self, heartbeats: dict[int, str]) -> Liveness:
        """Return how things stand.

        Args:
          heartbeats: The last heartbeat of each process that ever had one: JSON of a counter and
            of how far it is.
        """
        now = self._now()
        for index, text in heartbeats.items():
            if self._seen[index][0] != text:
                self._seen[index] = (text, now)
        silent = [i for i, (_, since) in self._seen.items() if now - since > SILENT_SECONDS]
        progress = {index: json.loads(text)["at"] for index, text in heartbeats.items()}
        return Liveness(progress, tuple(sorted(silent)))


class Heartbeats:
    """Exchanges heartbeats in a thread of its own, between `start` and `stop`.

    Args:
      at: Returns how far this process is, numbers that grow.
    """

    def __init__(self, at: Callable[[], Sequence[int]]):
        self._at = at
        self._standing = Liveness()
        self._answered = time.monotonic()
        self._stopped = threading.Event()
        self._index = process_index()
        self._thread = threading.Thread(
            target=self._run,
            args=(_state().client, process_count()),
            name="luthier-heartbeats",
            daemon=True,
        )

    def start(self) -> None:
        """Begin."""
        self._answered = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Send no more; does not wait for a coordinator that does not answer."""
        self._stopped.set()
        self._thread.join(2 * HEARTBEAT_SECONDS)

    def standing(self) -> Liveness:
        """Return how the processes stand; process 0 is silent when it does not answer this one."""
        standing = self._standing
        quiet = time.monotonic() - self._answered
        if self._index != 0 and quiet > SILENT_SECONDS:
            return dataclasses.replace(standing, silent=(0,))
        return standing

    def _run(self, client: Any, count: int) -> None:
        index = self._index
        judge = Judge(count) if index == 0 else None
        number = 0
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            number += 1
            heartbeat = json.dumps({"number": number, "at": list(self._at())})
            try:
                client.key_value_set(f"{_HEARTBEATS}{index}", heartbeat, allow_overwrite=True)
                if judge is not None:
                    found = client.key_value_dir_get(_HEARTBEATS)
                    texts = {int(key.rpartition("/")[2]): text for key, text in found}
                    self._standing = judge.judge(texts)
                    text = _written(number, self._standing)
                    client.key_value_set(_STANDING, text, allow_overwrite=True)
                else:
                    self._read(client)
            except jax.errors.JaxRuntimeError:
                continue  # Whoever asks for the standing learns how long this has been so.

    def _read(self, client: Any) -> None:
        summary = json.loads(client.blocking_key_value_get(_STANDING, _TIMEOUT_MILLISECONDS))
        progress = {int(i): list(place) for i, place in summary["progress"].items()}
        self._standing = Liveness(progress, tuple(summary["silent"]))
        self._answered = time.monotonic()


def _written(number: int, standing: Liveness) -> str:
    progress = {str(index): place for index, place in standing.progress.items()}
    return json.dumps({"number": number, "progress": progress, "silent": standing.silent})
