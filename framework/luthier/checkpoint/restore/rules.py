"""Rules of a warm start: an ordered list that decides where each parameter comes from.

The first rule whose pattern is found in a parameter's name claims it; a parameter that none claims
is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from luthier.errors import BadInput, CheckpointError, Problem

ADAPTERS = r"\.lora_[ab]$"
"""A pattern of the names of adapters, which matches no other parameters."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule for the parameters whose names contain a match of the pattern.

    Args:
      pattern: A regular expression, as `re.search` takes it.

    Raises:
      BadInput: The pattern is not a regular expression.
    """

    pattern: str = ""

    def __post_init__(self) -> None:
        """Reject an invalid pattern."""
        try:
            re.compile(self.pattern)
        except re.error as error:
            what = f"{self.pattern!r} is not a regular expression: {error}"
            remedy = "write it as Python's re.search takes it"
            raise BadInput(Problem(what, remedy=remedy)) from error

    def claims(self, name: str) -> bool:
        """Return whether the rule is for what is called `name`.

        Args:
          name: The name of a parameter.

        Returns:
          True if it is.
        """
        return re.search(self.pattern, name) is not None


@dataclasses.dataclass(frozen=True)
class Take(Rule):
    r"""Restores parameters from the source; one that the source lacks is an error.

    Args:
      pattern: Regular expression for their names; all parameters by default.
      source: Replacement for the match, which gives the name in the source, with `\1` for the first
        group; None where the source has the same name. `Take(r"^encoder\.", "")` restores
        `encoder.norm.scale` from `norm.scale`.

    Example:
      >>> from luthier import checkpoint
      >>> rule = checkpoint.Take("^encoder")
      >>> rule.claims("encoder.norm.scale"), rule.claims("head.kernel")
      (True, False)
    """

    source: str | None = None

    def __post_init__(self) -> None:
        """Refuse a template that refers to no group."""
        super().__post_init__()
        try:
            # A template that names a missing group fails at the first match, which may be deep in a
            # start; `sub` on an empty text parses it now.
            re.compile(self.pattern).sub(self.source or "", "")
        except (re.error, IndexError) as error:
            what = f"{self.source!r} does not go with the pattern {self.pattern!r}: {error}"
            raise BadInput(Problem(what)) from error

    def source_of(self, name: str) -> str:
        """Return the name in the source of the parameter called `name`.

        Args:
          name: The name of the parameter.

        Returns:
          A name in the source.
        """
        if self.source is None:
            return name
        # The first match only, as `claims` looks for one.
        return re.sub(self.pattern, self.source, name, count=1)


@dataclasses.dataclass(frozen=True)
class Resize(Take):
    """Restores parameters of which the source has more or fewer entries: those of a vocabulary.

    The first entries are those of the source, as far as both reach. What the source lacks is as a
    new model has it, and what it has too much is left unread. The dimension is found by its logical
    axis; a vector has only one. A parameter of the same shape is restored as `Take` does.

    Args:
      pattern: Regular expression for their names; all parameters by default.
      source: Their names in the source, as in `Take`.
      size: Number of entries of the source without its padding; None means all of them.
      axis: The logical axis along which entries are counted.

    Raises:
      BadInput: A size below 1.
    """

    RANGES: ClassVar[dict[str, str]] = {"size": "1 <= x"}

    size: int | None = None
    axis: str = "vocab"

    def __post_init__(self) -> None:
        """Refuse a size that no source has."""
        super().__post_init__()
        if self.size is not None and self.size < 1:
            raise BadInput(Problem(f"a size of {self.size} is less than 1", "size"))


@dataclasses.dataclass(frozen=True)
class Init(Rule):
    """Initializes parameters as a new model does: adapters, or others that the source lacks.

    Args:
      pattern: Regular expression for their names.
    """


@dataclasses.dataclass(frozen=True)
class Skip(Rule):
    """Leaves tensors of the source unread; parameters of that name are initialized.

    Unlike `Init` it is for what the source does have, such as a head for other classes: a tensor
    that goes nowhere is an error otherwise.

    Args:
      pattern: Regular expression for names of parameters and of tensors of the source.
    """


@dataclasses.dataclass(frozen=True)
class Claim:
    """A parameter and the rule that claims it.

    Args:
      rule: The rule.
      number: Its place in the list, from 1.
      source: Name of the parameter in the source.
    """

    rule: Rule
    number: int
    source: str

    def __str__(self) -> str:
        return f"{self.number} {type(self.rule).__name__.lower()}"


def claim(rules: Sequence[Rule], names: Iterable[str]) -> dict[str, Claim]:
    """Return the rule of every parameter.

    Args:
      rules: In order; the first that claims a name has it.
      names: Names of parameters.

    Raises:
      CheckpointError: Nobody claims some of them; all are listed.
    """
    # The order of the list is the only precedence, as in a routing table. Nothing is initialized by
    # omission: a parameter without a rule is more often a typo in a pattern than a wish.
    found, unclaimed = {}, []
    for name in names:
        for number, rule in enumerate(rules, 1):
            if rule.claims(name):
                source = rule.source_of(name) if isinstance(rule, Take) else name
                found[name] = Claim(rule, number, source)
                break
        else:
            unclaimed.append(name)
    if unclaimed:
        remedy = "add a rule: Take(pattern), Init(pattern) or Skip(pattern)"
        what = f"{len(unclaimed)} parameters are not matched by any rule"
        problems = [Problem(what, "restore.rules", remedy=remedy)]
        raise CheckpointError([*problems, *(Problem(name) for name in unclaimed)])
    return found
