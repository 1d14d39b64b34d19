"""Masks: sets of parameters that a rule of the optimizer applies to, as regular expressions.

The names of scanned and of unrolled layers differ only by the number of the layer: write patterns
over the end of a name (`mlp.up.kernel`), or over whole parts of it, and both match.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Protocol

from luthier.errors import BadInput, Problem


def _compile(pattern: str) -> None:
    # Compiled when the mask is made, so that a typo is reported with its setting before anything is
    # traced, and thrown away: `re` keeps its own cache, and the frozen dataclass stays comparable
    # and printable by its pattern alone.
    try:
        re.compile(pattern)
    except re.error as error:
        what = f"{pattern!r} is not a regular expression: {error}"
        raise BadInput(Problem(what, remedy="write it as Python's re.search takes it")) from error


class ParameterMask(Protocol):
    """A set of parameters."""

    def __call__(self, name: str) -> bool:
        """Return whether the parameter called `name` is in the set.

        Args:
          name: The parameter's path, as `blocks.mlp.up.kernel`.

        Returns:
          True if it is.
        """


@dataclasses.dataclass(frozen=True)
class Matching:
    """The parameters whose name has a match of the pattern anywhere in it.

    Args:
      pattern: A regular expression, as `re.search` takes it.

    Raises:
      BadInput: The pattern is not a regular expression.

    Example:
      >>> from luthier import optim
      >>> mask = optim.Matching("norm")
      >>> mask("blocks.norm.scale"), mask("blocks.mlp.up.kernel")
      (True, False)
    """

    pattern: str

    def __post_init__(self) -> None:
        """Reject invalid regular expressions."""
        _compile(self.pattern)

    def __call__(self, name: str) -> bool:
        """Return whether the parameter called `name` matches.

        Args:
          name: The parameter's path, as `blocks.mlp.up.kernel`.

        Returns:
          True if it is in the set.
        """
        return re.search(self.pattern, name) is not None


@dataclasses.dataclass(frozen=True)
class NotMatching:
    """The parameters whose name has no match of the pattern anywhere in it.

    Args:
      pattern: A regular expression, as `re.search` takes it.

    Raises:
      BadInput: The pattern is not a regular expression.

    Example:
      >>> from luthier import optim
      >>> mask = optim.NotMatching("norm")
      >>> mask("blocks.norm.scale"), mask("blocks.mlp.up.kernel")
      (False, True)
    """

    pattern: str

    def __post_init__(self) -> None:
        """Reject invalid regular expressions."""
        _compile(self.pattern)

    def __call__(self, name: str) -> bool:
        """Return whether the parameter called `name` does not match.

        Args:
          name: The parameter's path, as `blocks.mlp.up.kernel`.

        Returns:
          True if it is in the set.
        """
        return re.search(self.pattern, name) is None


# By whole parts of a name, between dots or the ends, so that `scale` does not match a layer called
# `upscale`. The rest of a part is allowed for where names are composed: `query_norm`,
# `token_embedding`.
UNDECAYED = r"(^|\.)(bias|scale|\w*norm|(\w+_)?embed(ding)?s?|table|positions?)(\.|$)"
"""Names exempt from weight decay: biases, all of a norm, and lookup tables.

An output projection of its own (`unembedding.kernel`) is a matrix like others, and decays.
"""

DECAYED = NotMatching(UNDECAYED)
"""The default decay mask."""

EVERYTHING = Matching("")
"""All parameters."""

# Jordan et al. (2024, the source of `muon`) leave embeddings and the output layer to AdamW. Both
# are named by what they are in our models; a new family adds its names here or sets the mask.
MATRICES = NotMatching(r"(^|\.)(\w*embed(ding)?s?|table|head|classifier)(\.|$)")
"""Kernels that are optimized as matrices by default: neither embeddings nor output projections."""
