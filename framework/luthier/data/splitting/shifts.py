"""How inputs and targets come from one row of tokens; swap the node.

Shapes: B rows, L length.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import numpy as np


class Shift(abc.ABC):
    """Makes inputs and targets of rows of tokens, so that each target is the next token.

    `LOST` is the number of tokens of a row that are no target.
    """

    LOST: ClassVar[int]

    @abc.abstractmethod
    def inputs(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the inputs.

        Args:
          tokens_BL: Tokens, 0 in padding; int32 [B, L].
          segments_BL: The segment of each token, from 1 in each row, 0 for padding; int32 [B, L].
        """

    @abc.abstractmethod
    def targets(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the targets; arguments are those of `inputs`."""

    @abc.abstractmethod
    def of_targets(self, values_BL: np.ndarray) -> np.ndarray:
        """Return what belongs to each token where that token is the target, else 0.

        Args:
          values_BL: One number for each token, 0 in padding, [B, L].
        """


@dataclasses.dataclass(frozen=True)
class ShiftRight(Shift):
    """Every token is a target; inputs are the tokens, one later, each segment after `start`.

    Args:
      start: What stands before the first token of a segment (`bos_id`).

    Source: seqio 0.0.17, `utils.make_autoregressive_inputs`, as `LanguageModelFeatures` of
      Paxml 1.4.0 has it without `reverse_bos_padding`.
    """

    LOST: ClassVar[int] = 0
    RANGES: ClassVar[dict[str, str]] = {"start": "0 <= x"}

    start: int = 0

    def inputs(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the tokens, one later; the start token begins each segment, 0 is padding."""
        before = np.zeros_like(segments_BL)
        before[:, 1:] = segments_BL[:, :-1]
        later = np.zeros_like(tokens_BL)
        later[:, 1:] = tokens_BL[:, :-1]
        return np.where(before == segments_BL, later, self.start) * (segments_BL > 0)

    def targets(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the tokens."""
        return tokens_BL

    def of_targets(self, values_BL: np.ndarray) -> np.ndarray:
        """Return the values."""
        return values_BL


@dataclasses.dataclass(frozen=True)
class ShiftLeft(Shift):
    """Inputs are the tokens, and targets the tokens one earlier: the first one is never a target.

    The last token of a segment predicts the first of the next one, with weight. A full row ends
    with the target `end`, which has no weight.

    Args:
      end: The last target of a row (`eos_id`).

    Source: Paxml 1.4.0, `seqio_input.LanguageModelFeatures` with `reverse_bos_padding`.
    Deviation: padding is 0 in all entries; there, a row of padding has one target, without weight.
    """

    LOST: ClassVar[int] = 1
    RANGES: ClassVar[dict[str, str]] = {"end": "0 <= x"}

    end: int = 1

    def inputs(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the tokens."""
        return tokens_BL

    def targets(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the tokens, one earlier, and the end at the end of each row."""
        earlier = self.of_targets(tokens_BL)
        earlier[:, -1] = np.where(segments_BL[:, 0] > 0, self.end, 0)
        return earlier

    def of_targets(self, values_BL: np.ndarray) -> np.ndarray:
        """Return the values, one earlier."""
        earlier = np.zeros_like(values_BL)
        earlier[:, :-1] = values_BL[:, 1:]
        return earlier
