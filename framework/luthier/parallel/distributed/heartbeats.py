"""Heartbeats: the progress of each process of a run, and which processes are silent.

Every process regularly writes its progress to the key-value store of JAX's coordination service.
The primary reads all of these, and writes one summary, which the others read: N + 1 keys, and no
process but the primary reads more than one.
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
    """Liveness of the processes of a run, as the primary saw it last.

    Args:
      progress: Reported progress by process: a list of numbers that grow.
      silent: Processes without a recent heartbeat.
    """

    progress: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    silent: tuple[int, ...] = ()

    @property
    def behind(self) -> tuple[int, ...]:
        """The silent processes; where there are none, those whose progress is behind another's."""
        if self.silent or not self.progress:
            return self.silent
        furthest = max(self.progress.values())
        return tuple(sorted(i for i, place in self.progress.items() if place < furthest))


class Judge:
    """Failure detector: a process is silent if its heartbeat has not changed for too long.

    Heartbeats carry a counter, not a time, and are timed by the clock of the detector alone: clocks
    of hosts differ, and may jump.

    Args:
      count: Number of processes.
      now: The clock, in seconds.
    """

    def __init__(self, count: int, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._seen: dict[int, tuple[str, float]] = {i: ("", now()) for i in range(count)}

    def judge(self, heartbeats: dict[int, str]) -> Liveness:
        """Update the detector, and return the liveness.

        Args:
          heartbeats: The last heartbeat of each process that has sent one: JSON of a counter and
            its progress.
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

    A thread, because the main one waits in collectives just when others want to know about it.

    Args:
      at: Returns the progress of this process: numbers that grow.
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
        """Start the thread."""
        self._answered = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, without waiting long for a coordinator that does not answer."""
        self._stopped.set()
        self._thread.join(2 * HEARTBEAT_SECONDS)

    def standing(self) -> Liveness:
        """Return the liveness; process 0 counts as silent when it does not answer this process."""
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
            # The counter changes with every heartbeat, so that a process whose progress stands
            # still (it compiles, it reads data) is not taken for a silent one.
            heartbeat = json.dumps({"number": number, "at": list(self._at())})
            try:
                # One key per process, overwritten: the store must not grow with the run.
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
                continue  # `standing` reports how long the coordinator has not answered

    def _read(self, client: Any) -> None:
        # Blocking, with a time limit: at first there is no summary yet, and a coordinator that is
        # gone must not hold up the thread. Only a read that succeeds counts as an answer of the
        # coordinator.
        summary = json.loads(client.blocking_key_value_get(_STANDING, _TIMEOUT_MILLISECONDS))
        progress = {int(i): list(place) for i, place in summary["progress"].items()}
        self._standing = Liveness(progress, tuple(summary["silent"]))
        self._answered = time.monotonic()


def _written(number: int, standing: Liveness) -> str:
    progress = {str(index): place for index, place in standing.progress.items()}
    return json.dumps({"number": number, "progress": progress, "silent": standing.silent})
