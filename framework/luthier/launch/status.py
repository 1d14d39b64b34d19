"""Job status of all launches: each queue is polled once, with a short timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from luthier.errors import LuthierError
from luthier.launch import settings
from luthier.launch.engine import Job, Standing
from luthier.launch.jobs import Launch

ANSWER_SECONDS = 10.0
"""The time limit for the answers of all queues together."""


def standings(
    launches: Iterable[Launch], seconds: float = ANSWER_SECONDS
) -> list[tuple[Launch, Job, Standing]]:
    """Return the jobs of launches, in their order, each with its status.

    Engines are polled at the same time, each once; those without a job are not.

    Args:
      launches: What was launched.
      seconds: After this long a job whose engine has not answered is `unknown`.

    Returns:
      (launch, job, status) for each job.

    Example:
      >>> from luthier import launch
      >>> launch.standings([])
      []
    """
    every = [(launch, job) for launch in launches for job in launch.jobs]
    asked = [
        _Question(name, [pair for pair in every if pair[1].engine == name])
        for name in dict.fromkeys(job.engine for _, job in every)
    ]
    # One deadline for all threads together: with a limit each, a command would take as long as the
    # sum of the queues that do not answer.
    deadline = time.monotonic() + seconds
    for question in asked:
        question.start()
    for question in asked:
        question.join(max(0.0, deadline - time.monotonic()))
    silence = Standing("unknown", f"the queue does not answer within {seconds:g} s")
    # An engine answers in the order of its jobs, so the answers are taken one by one; where they
    # run out, or never came, the status is unknown.
    standings_by_engine = {question.engine: iter(question.answer or ()) for question in asked}
    return [(launch, job, next(standings_by_engine[job.engine], silence)) for launch, job in every]


class _Question(threading.Thread):
    """A thread that polls one engine for all of its jobs.

    Args:
      engine: The engine's name.
      jobs: Its jobs, each with its launch.
    """

    def __init__(self, engine: str, jobs: Sequence[tuple[Launch, Job]]):
        # A daemon: a queue that does not answer must not keep the command from ending.
        super().__init__(daemon=True, name=f"luthier-queue-{engine}")
        self.engine, self._jobs = engine, jobs
        self.answer: Sequence[Standing] | None = None

    def run(self) -> None:
        """Ask, and keep the answer."""
        try:
            engine = settings.engine_of(self._jobs[0][0])
            self.answer = engine.standings([job for _, job in self._jobs])
        except (ImportError, KeyError, OSError, TypeError, LuthierError) as error:
            self.answer = [Standing("unknown", str(error))] * len(self._jobs)
