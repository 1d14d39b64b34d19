"""Masks: which parameters a rule of the optimizer is for, by regular expression over names.

Names do not tell scanned layers from unrolled ones in any place that matters: write patterns over
the end of a name (`mlp.up.kernel`), or over whole parts of it, and both match.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Protocol

from luthier.errors import BadInput, Problem


def _compile(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        what = f"{pattern!r} is no regular expression: {error}"
        raise BadInput(Problem(what, remedy="write it as Python's re.search takes it")) from error


class ParameterMask(Protocol):
    """A set of parameters."""

    def __call__(self, name: str) -> bool:
        """Return whether the parameter called `name` is in the set."""


@dataclasses.dataclass(frozen=True)
class Matching:
    """The parameters whose name has a match of the pattern anywhere in it.

    Args:
      pattern: A regular expression, as `re.search` takes it.

    Raises:
      BadInput: The pattern is no regular expression.
    """

    pattern: str

    def __post_init__(self) -> None:
        """Refuse what is no regular expression."""
        _compile(self.pattern)

    def __call__(self, name: str) -> bool:
        """Return whether the parameter called `name` matches."""
        return re.search(self.pattern, name) is not None


@dataclasses.dataclass(frozen=True)
class NotMatching:
    """The parameters whose name has no match of the pattern anywhere in it.

    Args:
      pattern: A regular expression, as `re.search` takes it.

    Raises:
      BadInput: The pattern is no regular expression.
    """

    pattern: str

    def __post_init__(self) -> None:
        """Refuse what is no regular expression."""
        _compile(self.pattern)

    def __call__(self, name: str) -> bool:
        """Return whether the parameter called `name` does not match."""
        return re.search(self.pattern, name) is None


UNDECAYED = r"(^|\.)(bias|scale|\w*norm|(\w+_)?embed(ding)?s?|table|positions?)(\.|$)"
"""Names that weight decay is not for: biases, all of a norm, and tables that are looked up in.

An output projection of its own (`unembedding.kernel`) is a matrix like others, and decays.
"""

DECAYED = NotMatching(UNDECAYED)
"""The default decay mask."""

EVERYTHING = Matching("")
"""All parameters."""

MATRICES = NotMatching(r"(^|\.)(\w*embed(ding)?s?|table|head|classifier)(\.|$)")
"""Where kernels are optimized as matrices, by default: not what reads tokens in, nor the output."""
