"""Parses command lines: options anywhere, all problems at once, nearest names.

Built on argparse. Differences: an error is raised as `BadInput` instead of exiting, options are not
abbreviated, and unknown options come back as problems, so that they are told beside all others.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
from collections.abc import Iterator, Sequence
from typing import NoReturn

from luthier.errors import BadInput, Problem


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the paragraphs of a command's docstring."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `BadInput` and knows the nearest option.

    Args:
      **settings: What `argparse.ArgumentParser` takes.
    """

    def __init__(self, **settings):
        super().__init__(allow_abbrev=False, **settings)
        self._also: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Raise `message` as `BadInput` instead of exiting."""
        raise BadInput(Problem(message, remedy=f"`{self.prog} --help` tells the arguments"))

    def parse(
        self, words: Sequence[str], also: Sequence[str] = ()
    ) -> tuple[argparse.Namespace, list[Problem]]:
        """Parse `words`, options mixed with positionals in any order.

        Args:
          words: The words after the command.
          also: Options that were taken out of them before, for suggestions.

        Returns:
          The arguments, and one problem for each option that does not exist.
        """
        self._also = also
        kept, problems = self._without_unknown(list(words))
        parsed, left = self.parse_known_intermixed_args(kept)
        return parsed, problems + [self._unknown(word) for word in left]

    def takes(self, argument: str) -> bool:
        """Return whether the command has an argument of this name."""
        # `_actions` and `_option_string_actions` are argparse's own names: it has no public way to
        # list the options of a parser.
        return argument in {action.dest for action in self._actions}

    def _without_unknown(self, words: list[str]) -> tuple[list[str], list[Problem]]:
        """Take out the options that do not exist, with the value that was meant for them."""
        kept, problems = [], []
        end = words.index("--") if "--" in words else len(words)
        waiting = iter(range(end))
        for index in waiting:
            word = words[index]
            name, _, value = word.partition("=")
            if not word.startswith("--") or name in self._option_string_actions:
                kept.append(word)
                continue
            problem = self._unknown(word)
            problems.append(problem)
            takes_value = bool(problem.nearest) and self._takes_value(problem.nearest[0])
            if (
                takes_value
                and not value
                and index + 1 < end
                and not words[index + 1].startswith("-")
            ):
                next(waiting)
        return kept + words[end:], problems

    def _takes_value(self, option: str) -> bool:
        action = self._option_string_actions.get(option)
        return action is None or action.nargs != 0

    def _unknown(self, word: str) -> Problem:
        remedy = f"`{self.prog} --help` tells the arguments"
        if not word.startswith("-"):
            return Problem(f"unexpected argument {word!r}", remedy=remedy)
        name = word.split("=")[0]
        options = [*self._option_string_actions, *self._also]
        nearest = difflib.get_close_matches(name, options, n=2, cutoff=0.6)
        return Problem(f"unknown option {name!r}", remedy=remedy, nearest=nearest)


class Problems:
    """Collects what is wrong with a command line, so that all of it is told at once.

    Args:
      problems: The problems already known.
    """

    def __init__(self, problems: Sequence[Problem] = ()):
        self._problems = list(problems)

    def __len__(self) -> int:
        return len(self._problems)

    def add(self, what: str, remedy: str = "", nearest: Sequence[str] = ()) -> None:
        """Add one problem: `what` is wrong, its `remedy`, and the `nearest` valid names."""
        self._problems.append(Problem(what, remedy=remedy, nearest=tuple(nearest)))

    def extend(self, problems: Sequence[Problem]) -> None:
        """Add problems that are known already."""
        self._problems.extend(problems)

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Run a block; keep the problems of a `BadInput` that it raises, and go on after it."""
        try:
            yield
        except BadInput as error:
            self._problems.extend(error.problems)

    def raise_any(self) -> None:
        """Raise all the problems, if there are any."""
        if self._problems:
            raise BadInput(self._problems)


def positive(text: str) -> int:
    """Read a whole number above zero, for argparse's `type=`.

    Args:
      text: What was typed.
    """
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above zero")
    return number


def whole(text: str) -> int:
    """Read a whole number from zero, for argparse's `type=`.

    Args:
      text: What was typed.
    """
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below zero")
    return number


def number_within(low: float, high: float, above: bool = False):
    """Return a reader of numbers for argparse's `type=`.

    Args:
      low: The least number allowed.
      high: The greatest number allowed.
      above: Whether `low` itself is refused.
    """

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not (low <= number <= high) or (above and number == low):
            least = "above" if above else "at least"
            raise argparse.ArgumentTypeError(
                f"{text!r} is not {least} {low:g} and at most {high:g}"
            )
        return number

    return read
