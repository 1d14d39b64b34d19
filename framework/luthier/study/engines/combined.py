"""The engine that combines others, so that one study has device groups of different sizes."""

from __future__ import annotations

import collections
import dataclasses
import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from luthier.errors import BadInput, Problem
from luthier.study.protocol import Event, SliceInfo, TrialEngine, TrialWork, Verdict, Work

POLL_SECONDS = 0.05
"""How long one engine is waited for, before the next one is asked for its events."""

_T = TypeVar("_T")


class Combined:
    """Runs the trials of a study on the device groups of several engines.

    The groups may differ in their number of devices and processes, and in the kind and memory of
    the devices: a trial is leased to a group of a kind that the study's gate has accepted it for.
    Each engine is opened before the study starts, which waits for the first group of each.

    Args:
      engines: The engines. Their device groups are numbered in this order.
    """

    def __init__(self, engines: Sequence[TrialEngine]):
        if not engines:
            remedy = "name at least one, such as luthier.study.Local()"
            raise BadInput(Problem("has no engine", "engine.engines", remedy=remedy))
        self._engines = list(engines)
        self._firsts: list[int] = []  # the number of each engine's first group
        self._turn = 0

    def open(self, directory: str) -> Sequence[SliceInfo]:
        """Start the workers of all engines; return their device groups.

        Args:
          directory: The directory of the study.

        Returns:
          The device groups, in the order of the engines.
        """
        # Side by side: a job may be in a queue for hours, and imports take seconds.
        answers = _begin([functools.partial(engine.open, directory) for engine in self._engines])
        infos: dict[int, Sequence[SliceInfo]] = {}
        try:
            for _ in self._engines:
                number, answer = answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                infos[number] = answer
        except BaseException:
            # Also those that are still being opened, which end with an error that nobody awaits.
            self.close()
            raise
        found: list[SliceInfo] = []
        self._firsts = []
        for number in range(len(self._engines)):
            self._firsts.append(len(found))
            found += infos[number]
        names = collections.Counter(info.name for info in found)
        numbers: collections.Counter[str] = collections.Counter()
        for index, info in enumerate(found):
            name = info.name
            # Engines name their groups without knowing of each other.
            if names[name] > 1:
                name = f"{name}.{numbers[name]}"
                numbers[info.name] += 1
            found[index] = dataclasses.replace(info, index=index, name=name)
        return found

    def start(self, slice: int, work: Work) -> None:
        """Start work on a device group.

        Args:
          slice: Number of the device group.
          work: The trials, and how they run.
        """
        engine, own = self._at(slice)
        engine.start(own, work)

    def refill(self, slice: int, trial: TrialWork) -> None:
        """Put one more trial on a free lane of the work that a device group is busy with.

        Args:
          slice: Number of the device group.
          trial: The trial.
        """
        engine, own = self._at(slice)
        engine.refill(own, trial)

    def answer(self, slice: int, trial: int, fence: int, verdict: Verdict) -> None:
        """Answer a report of work that `asks`.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
          verdict: Whether the trial continues, is pruned or pauses.
        """
        engine, own = self._at(slice)
        engine.answer(own, trial, fence, verdict)

    def stop(self, slice: int, trial: int, fence: int) -> None:
        """End a trial at its next step: it is saved, and comes back as nothing.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
        """
        engine, own = self._at(slice)
        engine.stop(own, trial, fence)

    def events(self, timeout: float) -> Sequence[Event]:
        """Return new events of all engines; wait up to `timeout` seconds for the first.

        Args:
          timeout: The longest time to wait, in seconds.

        Returns:
          The events in order; none where the time has passed.
        """
        deadline = time.monotonic() + timeout
        found = [event for number in range(len(self._engines)) for event in self._of(number, 0.0)]
        # By turns and not in threads: an engine is called from one thread only, and what the driver
        # wants to send must not wait for an engine that waits for events.
        while not found and (left := deadline - time.monotonic()) > 0:
            self._turn = (self._turn + 1) % len(self._engines)
            found += self._of(self._turn, min(left, POLL_SECONDS))
        return found

    def close(self) -> None:
        """End all workers; trials that run are saved first, so that they can be resumed."""
        # Side by side: saving may take minutes, in which the groups of the others would train on.
        answers = _begin([engine.close for engine in self._engines])
        errors = [error for _ in self._engines if (error := answers.get()[1]) is not None]
        if errors:
            raise errors[0]

    def _at(self, slice: int) -> tuple[TrialEngine, int]:
        """Return the engine of a device group, and the number that the group has there."""
        number = max(i for i, first in enumerate(self._firsts) if first <= slice)
        return self._engines[number], slice - self._firsts[number]

    def _of(self, number: int, timeout: float) -> list[Event]:
        first = self._firsts[number]
        events = self._engines[number].events(timeout)
        return [dataclasses.replace(event, slice=event.slice + first) for event in events]


def _begin(
    calls: Sequence[Callable[[], _T]],
) -> queue.SimpleQueue[tuple[int, _T | BaseException]]:
    """Begin calls in threads of their own; return the queue of their numbers and results."""
    answers: queue.SimpleQueue[tuple[int, _T | BaseException]] = queue.SimpleQueue()

    def run(number: int, call: Callable[[], _T]) -> None:
        try:
            answers.put((number, call()))
        except BaseException as error:
            answers.put((number, error))

    for number, call in enumerate(calls):
        # Daemons: one that waits for a queue must not keep a driver alive that was interrupted.
        threading.Thread(
            target=run, args=(number, call), daemon=True, name="luthier-combined"
        ).start()
    return answers
