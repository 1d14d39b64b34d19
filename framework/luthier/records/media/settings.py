"""What a run shows beside its scalars, and how often; all of it is off unless asked for."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from luthier.durations import Duration


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histograms:
    """How the entries of parameters are distributed; counted on the devices, in one call.

    Args:
      every: How often.
      num_bins: Bins of one width between the least and the greatest entry.
      pattern: Which parameters: a regular expression that is searched for in their names.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_bins": "1 <= x <= 512"}

    every: Duration
    num_bins: int = 64
    pattern: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """Text that the language model continues: at the end of the run, and during training.

    Args:
      every: How often during training, all prompts each time; None shows the first prompt at the
        end of the run only.
      prompts: Texts to continue; an empty one lets the model begin.
      num_tokens: Tokens to draw for each.
      temperature: Of the draws; 0 takes the likeliest token.
      seed: Of the draws, the same every time.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_tokens": "1 <= x", "temperature": "0 <= x"}
    READ_WHEN: ClassVar[dict[str, str]] = {"seed": "temperature > 0"}

    every: Duration | None = None
    prompts: tuple[str, ...] = ("",)
    num_tokens: int = 200
    temperature: float = 0.8
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """Rows of the training batch that are images, side by side.

    Args:
      every: How often.
      entry: The entry of the batch: [rows, height, width, channels].
      num_rows: How many of its first rows.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_rows": "1 <= x"}

    every: Duration
    entry: str = "inputs"
    num_rows: int = 16
