"""Parses command lines: options anywhere, all problems at once, nearest names.

Built on argparse. Differences: an error is raised as `BadInput` instead of exiting, options are not
abbreviated, and unknown options are returned as problems, to be reported together with all others.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from luthier.errors import BadInput, Problem, UserCodeError
from luthier.terminal import has_colors, styled


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A help formatter that keeps the paragraphs of a command's docstring.

    Args:
      prog: The command.
    """

    def __init__(self, prog: str):
        # Long lines are hard to read, so a wide terminal is not filled.
        width = min(shutil.get_terminal_size((100, 24)).columns, 100) - 2
        super().__init__(prog, max_help_position=30, width=width)


@dataclasses.dataclass(frozen=True)
class Action:
    """A command below a command, as `prepare` of `luthier data prepare`.

    Args:
      usage: Its command line.
      about: Its description and examples.
    """

    usage: str
    about: str


# A heading; the name of an option, an argument or a command at the beginning of its line.
_HEADING = re.compile(r"^(usage:|\w[\w ,]*:$)", re.MULTILINE)
_NAME = re.compile(r"^(  )(-\S.*?|[A-Z][^\s]*|[a-z][a-z-]*)(?=  |$)", re.MULTILINE)


def colored(text: str) -> str:
    """Return the help of a command with colors: headings bold, names of options cyan."""
    text = _NAME.sub(lambda found: found[1] + styled(found[2], "cyan"), text)
    return _HEADING.sub(lambda found: styled(found[1], "bold"), text)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `BadInput` and knows the nearest option.

    Args:
      actions: Parsers that show the help of the commands below this one, by name.
      **settings: Arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, actions: Mapping[str, Parser] | None = None, **settings: Any):
        # Python 3.14 has colors of its own, which would mix with those of `print_help`.
        if sys.version_info >= (3, 14):
            settings = {"color": False} | settings
        # Without abbreviations: --dev would silently become --devices, and break when a release
        # adds another option that begins in the same way.
        super().__init__(allow_abbrev=False, **settings)
        self._also: Sequence[str] = ()
        self.actions = actions or {}
        self._helped: argparse.ArgumentParser = self

    def format_help(self) -> str:
        """Return the help, as plain text."""
        text = super().format_help()
        return text.replace("\npositional arguments:\n", "\narguments:\n", 1)

    def print_help(self, file: Any = None) -> None:
        """Print the help of the command line that is parsed; in color on a terminal.

        Args:
          file: Where to; None is the standard output.
        """
        stream = file or sys.stdout
        text = self._helped.format_help()
        stream.write(colored(text) if has_colors(stream) else text)

    def error(self, message: str) -> NoReturn:
        """Raise `message` as `BadInput` instead of exiting."""
        raise BadInput(Problem(message, remedy=f"see `{self.prog} --help`"))

    def parse(
        self, words: Sequence[str], also: Sequence[str] = ()
    ) -> tuple[argparse.Namespace, list[Problem]]:
        """Parse `words`, options mixed with positionals in any order.

        Args:
          words: The arguments after the command.
          also: Options that were taken out of them before, for suggestions.

        Returns:
          The parsed arguments, and one problem for each option that does not exist.
        """
        # Unknown options are taken out first, because argparse would take their values for
        # positionals. "Intermixed", because plain argparse assigns positionals in one go: in
        # `train REF --run 3f seed=1` it would not take the override after the option.
        self._also = also
        # `luthier data prepare --help` shows the options of `prepare` only. One parser reads the
        # options of all actions, so that those of another action are reported by their name.
        named = next((word for word in words if word in self.actions), None)
        self._helped = self if named is None else self.actions[named]
        kept, problems = self._without_unknown(list(words))
        parsed, left = self.parse_known_intermixed_args(kept)
        return parsed, problems + [self._unknown(word) for word in left]

    def takes(self, argument: str) -> bool:
        """Return whether the command has an argument of this name."""
        # `_actions` and `_option_string_actions` are argparse's own names: it has no public way to
        # list the options of a parser.
        return argument in {action.dest for action in self._actions}

    def _without_unknown(self, words: list[str]) -> tuple[list[str], list[Problem]]:
        """Take out unknown options, together with the value that was meant for them.

        Returns:
          The other arguments, and a problem for each unknown option.
        """
        # The value matters: of `--devcies cpu:8`, argparse would take `cpu:8` for an override and
        # report it as a second mistake. Whether the next word is a value is a guess: it is if it is
        # a number, or if the nearest known option takes one. Everything after `--` is left alone,
        # and so are words with one dash: `-1` may be a value, and argparse returns an unknown `-x`
        # itself (see `parse`).
        kept, problems = [], []
        end = words.index("--") if "--" in words else len(words)
        waiting = iter(range(end))
        for index in waiting:
            word = words[index]
            name, _, value = word.partition("=")
            if not word.startswith("--") or name in self._option_string_actions:
                kept.append(word)
                continue
            following = words[index + 1] if index + 1 < end and not value else ""
            is_value = bool(_VALUE.fullmatch(following))
            problem = self._unknown(word, following if is_value else "")
            problems.append(problem)
            takes_value = bool(problem.nearest) and self._takes_value(problem.nearest[0])
            if is_value or (takes_value and following and not following.startswith("-")):
                next(waiting)
        return kept + words[end:], problems

    def _takes_value(self, option: str) -> bool:
        # An option without an action is a flag of another framework (`also`), and all of these
        # take a value.
        action = self._option_string_actions.get(option)
        return action is None or action.nargs != 0

    def _unknown(self, word: str, value: str = "") -> Problem:
        remedy = f"see `{self.prog} --help`"
        if not word.startswith("-"):
            return Problem(f"unexpected argument {word!r}", remedy=remedy)
        name, _, written = word.partition("=")
        options = [*self._option_string_actions, *self._also]
        nearest = difflib.get_close_matches(name, options, n=2, cutoff=0.6)
        if name in _MULTIRUN:
            remedy = "to run several settings, write `luthier sweep REF --space PATH=choice(A,B)`"
        what = f"unknown option {name!r}"
        if name in _EVALUATIONS:
            return Problem(what, remedy="to evaluate a run, write `luthier evaluate RUN`")
        value = value or written
        return UnknownOption(what, remedy=remedy, nearest=nearest, option=name, value=value)


@dataclasses.dataclass(frozen=True)
class UnknownOption(Problem):
    """A word with dashes that is no option of the command, but may be meant as an override.

    Args:
      option: The word, as `--lr`.
      value: The value that was written with it, as `1e-3`; empty where there is none.
    """

    option: str = ""
    value: str = ""


# A word after an unknown option that can only be its value.
_VALUE = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|true|false|none", re.IGNORECASE)
_MULTIRUN = ("-m", "--multirun")  # of Hydra
_EVALUATIONS = ("--mode", "--eval_on_test", "--eval_only", "--eval-only")  # of Pax and others


class Problems:
    """Collects the problems of a command line, so that all of them are reported at once.

    Args:
      problems: The problems already known.
    """

    def __init__(self, problems: Sequence[Problem] = ()):
        self._problems = list(problems)
        self._failed: UserCodeError | None = None

    def __len__(self) -> int:
        return len(self._problems)

    def add(self, what: str, remedy: str = "", nearest: Sequence[str] = ()) -> None:
        """Add one problem: a description, its `remedy`, and the `nearest` valid names."""
        self._problems.append(Problem(what, remedy=remedy, nearest=tuple(nearest)))

    def revise(self, function: Callable[[Problem], Problem]) -> None:
        """Replace each problem by the result of a function of it."""
        self._problems = list(map(function, self._problems))

    def extend(self, problems: Sequence[Problem]) -> None:
        """Add several problems."""
        self._problems.extend(problems)

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Run a block, and collect the problems of a `BadInput` that it raises."""
        try:
            yield
        except BadInput as error:
            self.note(error)
            self._problems.extend(error.problems)

    def note(self, error: BadInput) -> None:
        """Remember the error whose problems are added, for its details if it stays the only one."""
        if isinstance(error, UserCodeError):
            self._failed = error

    def raise_any(self) -> None:
        """Raise all problems as one `BadInput`, if there are any."""
        if self._failed is not None and len(self._problems) == 1:
            raise self._failed
        if self._problems:
            raise BadInput(self._problems)


def positive(text: str) -> int:
    """Parse a positive integer, for argparse's `type=`.

    Args:
      text: The argument as it was typed.
    """
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above zero")
    return number


def whole(text: str) -> int:
    """Parse a non-negative integer, for argparse's `type=`.

    Args:
      text: The argument as it was typed.
    """
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below zero")
    return number


def number_within(low: float, high: float, above: bool = False) -> Callable[[str], float]:
    """Return a parser of numbers within limits, for argparse's `type=`.

    Args:
      low: The least number allowed.
      high: The greatest number allowed.
      above: Whether `low` itself is excluded.
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


def token_ids(text: str) -> list[int]:
    """Parse token ids between commas or blanks, for argparse's `type=`.

    Args:
      text: The argument as it was typed.
    """
    ids = [whole(part) for part in text.replace(",", " ").split()]
    if not ids:
        raise argparse.ArgumentTypeError("it holds no token")
    return ids
