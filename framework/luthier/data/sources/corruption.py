"""What happens at a document that cannot be read; swap the node."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from luthier.errors import DataError, Problem


class Corruption(abc.ABC):
    """Decides whether documents that cannot be read, or do not fit, end the work."""

    @abc.abstractmethod
    def tolerate(self, problems: Sequence[Problem]) -> None:
        """Return, or raise, after each document that cannot be used.

        Args:
          problems: All so far, one or more for each document.

        Raises:
          DataError: when it is too much.
        """


@dataclasses.dataclass(frozen=True)
class Fail(Corruption):
    """The first document that cannot be used is an error."""

    def tolerate(self, problems: Sequence[Problem]) -> None:
        """Raise the problems."""
        raise DataError(problems)


@dataclasses.dataclass(frozen=True)
class Skip(Corruption):
    """Documents that cannot be used are left out, counted, and named in the report.

    Args:
      at_most: How many; one more is an error.
    """

    RANGES: ClassVar[dict[str, str]] = {"at_most": "0 <= x"}

    at_most: int = 1000

    def tolerate(self, problems: Sequence[Problem]) -> None:
        """Return, unless there are more than `at_most`."""
        if len(problems) > self.at_most:
            what = f"more than {self.at_most} documents cannot be used; the last: {problems[-1]}"
            remedy = "look at the data, or raise `at_most` of `Skip`"
            raise DataError(Problem(what, remedy=remedy))
