"""Decides when something that happens at an interval is due."""

from __future__ import annotations

import math

from luthier.durations import Duration, Progress


def is_due(every: Duration | None, before: Progress, now: Progress) -> bool:
    """Return whether a multiple of `every` was reached between two moments.

    Depends on the progress alone, so a resumed run keeps the rhythm of the one that was stopped.

    Args:
      every: The interval; None is never due.
      before: Progress at the previous step.
      now: Progress at this step.

    Returns:
      True at the first step at which a further multiple is reached.

    Example:
      >>> from luthier import durations, trainer
      >>> before, now = durations.Progress(steps=99), durations.Progress(steps=100)
      >>> trainer.is_due(durations.Steps(50), before, now)
      True
    """
    if every is None:
        return False
    # Multiples that were passed, and not a remainder of 0: tokens, epochs and seconds advance by
    # more than one unit a step and would jump over it.
    passed = math.floor(every.measure(now) / every.count)
    return passed > math.floor(every.measure(before) / every.count)


def is_over(stop: Duration | None, now: Progress) -> bool:
    """Return whether a duration has passed; None never does.

    Args:
      stop: The duration after which training ends; None has no end.
      now: The progress of the run.

    Returns:
      True from the first step on at which the duration is reached.

    Example:
      >>> from luthier import durations, trainer
      >>> trainer.is_over(durations.Steps(100), durations.Progress(steps=100))
      True
    """
    return stop is not None and stop.measure(now) >= stop.count
