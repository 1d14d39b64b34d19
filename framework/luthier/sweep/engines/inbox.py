"""What the driver wants of a worker: read by a thread, taken by the thread that trains."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from typing import IO

from luthier.sweep.engines.pipes import Answer, Close, Refill, Stop, messages
from luthier.sweep.engines.trial import TrialWatcher
from luthier.sweep.protocol import TrialWork, Work

EXIT_ORPHANED = 3


@dataclasses.dataclass(frozen=True)
class Task:
    """A trial to be run.

    Args:
      work: What it belongs to.
      trial: Which one.
      watcher: Knows whether it is to be stopped, even before it begins.
    """

    work: Work
    trial: TrialWork
    watcher: TrialWatcher


class Inbox:
    """The trials that wait in a worker.

    A driver that dies without a word takes its workers with it, at once: another driver may want
    the directories of their trials.

    Args:
      stream: Where the driver's messages come from.
      make_watcher: From a trial, and whether it asks, to its watcher.
    """

    def __init__(self, stream: IO[bytes], make_watcher: Callable[[TrialWork, bool], TrialWatcher]):
        self._stream = stream
        self._make_watcher = make_watcher
        self._tasks: list[Task] = []
        self._watchers: dict[tuple[int, int], TrialWatcher] = {}
        self._last: Work | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="luthier-inbox", daemon=True)
        self._thread.start()

    def take(self, fits: Callable[[Task], bool] = lambda task: True) -> Task | None:
        """Return the first waiting trial that fits, without waiting for one; None without one."""
        with self._changed:
            self._tasks = [task for task in self._tasks if task.watcher.requested is None]
            for task in self._tasks:
                if fits(task):
                    self._tasks.remove(task)
                    return task
            return None

    def wait(self) -> bool:
        """Wait for a trial; return whether there is one, which is not so when the worker ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._closing)
            return not self._closing

    def close(self) -> None:
        """Have what runs saved, and no trial begun any more; from another thread."""
        with self._changed:
            self._heed(Close())
            self._changed.notify_all()

    @property
    def num_waiting(self) -> int:
        """How many trials wait."""
        return len(self._tasks)

    def _read(self) -> None:
        with self._stream:
            for message in messages(self._stream):
                with self._changed:
                    self._heed(message)
                    self._changed.notify_all()
        if not self._closing:
            os._exit(EXIT_ORPHANED)

    def _heed(self, message: object) -> None:
        if isinstance(message, Work):
            self._last = message
            for trial in message.trials:
                self._add(message, trial)
        elif isinstance(message, Refill) and self._last is not None:
            self._add(self._last, message.trial)
        elif isinstance(message, Answer | Stop):
            watcher = self._watchers.get((message.trial, message.fence))
            if watcher is not None and isinstance(message, Answer):
                watcher.answer(message.go_on)
            elif watcher is not None:
                watcher.stop()
        elif isinstance(message, Close):
            self._closing = True
            for watcher in self._watchers.values():
                watcher.stop()

    def _add(self, work: Work, trial: TrialWork) -> None:
        watcher = self._make_watcher(trial, work.asks)
        self._watchers[trial.trial, trial.fence] = watcher
        self._tasks.append(Task(work, trial, watcher))
