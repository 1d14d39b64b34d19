"""What arrays of a training state are stored in: rules by regular expression over names."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax.numpy as jnp

from luthier.errors import BadInput, Problem

DType = Any

_SMALLEST_BITS = 16


@dataclasses.dataclass(frozen=True)
class StoredAs:
    """A rule: arrays whose name has a match of the pattern are stored in a type.

    Args:
      pattern: A regular expression, as `re.search` takes it; an empty one matches every name.
      dtype: A floating point type of 16 bits or more.

    Raises:
      BadInput: The pattern is no regular expression, or the type is none to store in.
    """

    pattern: str
    dtype: DType

    def __post_init__(self) -> None:
        """Refuse what is no regular expression, and types without the range to store in."""
        problems = []
        try:
            re.compile(self.pattern)
        except re.error as error:
            what = f"{self.pattern!r} is no regular expression: {error}"
            problems.append(Problem(what, "pattern"))
        kind = jnp.dtype(self.dtype)
        if not jnp.issubdtype(kind, jnp.floating) or jnp.finfo(kind).bits < _SMALLEST_BITS:
            what = f"nothing can be stored as {kind.name}, which has too small a range"
            remedy = "use bfloat16, float16, float32 or float64"
            problems.append(Problem(what, "dtype", remedy=remedy))
        if problems:
            raise BadInput(problems)

    def __call__(self, name: str) -> bool:
        """Return whether the rule is for the array called `name`."""
        return re.search(self.pattern, name) is not None
