"""All exceptions that luthier raises on purpose.

A message says what is wrong, where (a path of the graph, and the place that set the value), and how
to fix it. Errors of one kind are collected, so that a user sees all of them at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from luthier.terminal import printable

EXIT_DONE = 0
EXIT_FAILED = 1
"""Diverged, no complete trial, a lost lock, an error in the user's code, or our own bug."""
EXIT_BUG = EXIT_FAILED
EXIT_BAD_INPUT = 2
# EX_TEMPFAIL of sysexits.h: "try again later". Queues and our own launchers start the same command
# again.
EXIT_REQUEUE = 75
# What shells report for a program that SIGINT has ended: 128 + 2.
EXIT_INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem with the input, formatted as one line.

    Args:
      what: The problem, with the offending name or value in it.
      path: The path in the graph that it concerns (`optimizer.learning_rate`), or empty.
      origin: Where the value was set (`argument 3`, `configs/lm/quickstart.py:41`), or empty.
      remedy: How to fix it, or empty.
      nearest: Valid names that resemble the given one, best first.
    """

    what: str
    path: str = ""
    origin: str = ""
    remedy: str = ""
    nearest: Sequence[str] = ()

    def __str__(self) -> str:
        # One line, because logs, `status.json` and the parents of processes take an error apart by
        # lines. Escaped, because messages hold names and texts of files that somebody else may have
        # made.
        return printable(" ".join("".join(text for _, text in self.parts()).split()))

    def parts(self) -> list[tuple[str, str]]:
        """Return the text of the message in parts, each after the name of the field it is of."""
        parts = [("path", f"{self.path}: " if self.path else ""), ("what", self.what)]
        parts.append(("origin", f" [set by {self.origin}]" if self.origin else ""))
        names = f"; did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        parts += [("nearest", names), ("remedy", f"; {self.remedy}" if self.remedy else "")]
        return [(field, text) for field, text in parts if text]


MOST_LISTED = 12
"""Names of a list in a message, which should stay shorter than 200 characters."""


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Return names for a message, `a, b, c and 5 more`: a list that is cut says so."""
    text = ", ".join(names[:most])
    return f"{text} and {len(names) - most} more" if len(names) > most else text


class LuthierError(Exception):
    """The base class of all errors that luthier raises deliberately."""

    exit_code = EXIT_BUG


class BadInput(LuthierError):
    """The input is invalid; `problems` lists all reasons, one line each.

    Args:
      problems: The reasons.
      exit_code: The exit code, where it is not that of the class.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(self, problems: Problem | str | Iterable[Problem], exit_code: int | None = None):
        if exit_code is not None:
            self.exit_code = exit_code
        if isinstance(problems, str):
            problems = Problem(problems)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UserCodeError(BadInput):
    """The user's code raised an exception, which is the cause of this one.

    Args:
      problem: The message of the exception, with the path of the node whose code raised it.
      details: Lines about the place: frames with their source lines, and what was called.
    """

    # Input of the user, too, so that whoever handles several configs (a diff, a sweep) handles it;
    # but no value of the config is known to be wrong, hence the other exit code.
    exit_code = EXIT_FAILED

    def __init__(self, problem: Problem, details: Sequence[str] = ()):
        super().__init__(problem)
        self.details = tuple(details)


class UnknownReference(BadInput):
    """The experiment, object or run that you specified does not exist."""


class OverrideError(BadInput):
    """An override cannot be read or applied."""


class ValidationError(BadInput):
    """The config can be read, but it is incomplete or invalid and cannot be run."""


class RecordError(BadInput):
    """A config cannot be recorded, or a recorded config cannot be loaded."""


class ShardingError(BadInput):
    """The rules cannot shard the arrays over the mesh."""


class DataError(BadInput):
    """Data is missing, unreadable or too small."""


class CheckpointError(BadInput):
    """A checkpoint is missing, damaged, or does not fit the experiment."""


class RunError(BadInput):
    """A run directory is in use, finished, or cannot be resumed."""


class StoreError(RunError):
    """An object store refuses a request, for example because the credentials have expired."""


class StoreUnavailable(StoreError):
    """An object store does not respond, or limits the rate of requests."""

    # The cause is expected to pass by itself: the same command can succeed later.
    exit_code = EXIT_REQUEUE


class VersionError(BadInput):
    """A file has the format of another version of luthier, and is left as it is."""


class LockLost(LuthierError):
    """Another process has taken over the lock, so this process must not write any more."""


class TrainingStopped(LuthierError):
    """The loss is not finite, or too many steps in a row were skipped."""
