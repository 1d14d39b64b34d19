"""Prompts with two responses as rows: the data node for preferences.

Shapes: B rows, L tokens in a row.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from luthier.data.node import DataNode, Spec, spec
from luthier.data.order import Visit
from luthier.data.pairs.sources import PreferenceSource
from luthier.data.sources.source import Corruption, Fail
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem

SIDES = ("chosen", "rejected")
_BLOCK = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class PreferenceRows:
    """One prompt with its two responses a row.

    Args:
      tokens: For each row, the chosen and the rejected sequence: start token, prompt, response,
        end token; each int32.
      prompts: The tokens of each prompt, int64 [rows].
      length: L.
    """

    tokens: Sequence[tuple[np.ndarray, np.ndarray]]
    prompts: np.ndarray
    length: int

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.tokens)

    @property
    def num_examples(self) -> int:
        """The number of prompts."""
        return len(self.tokens)

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all rows: equal digests, equal rows."""
        hasher = hashlib.blake2b(f"{self.length}".encode(), digest_size=16)
        # The lengths of prompts too: the same tokens with another border train other targets.
        hasher.update(self.prompts.tobytes())
        for sides in self.tokens:
            for side in sides:
                hasher.update(len(side).to_bytes(4, "little") + side.tobytes())
        return hasher.hexdigest()

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Ignored: text is the same in every epoch.

        Returns:
          The entries that `Preferences` documents.
        """
        # A loop over rows, not the flat indexing of `PackedRows`: sequences are separate arrays,
        # and a batch of preferences has few rows.
        shape = (len(rows), self.length)
        batch = {
            f"{side}_{name}": np.zeros(shape, np.float32 if name == "weights" else np.int32)
            for side in SIDES
            for name in ("inputs", "targets", "segments", "positions", "weights")
        }
        for place, row in enumerate(rows.tolist()):
            if row < 0:
                continue
            for side, tokens in zip(SIDES, self.tokens[row], strict=True):
                count = len(tokens) - 1
                batch[f"{side}_inputs"][place, :count] = tokens[:-1]
                batch[f"{side}_targets"][place, :count] = tokens[1:]
                batch[f"{side}_segments"][place, :count] = 1
                batch[f"{side}_positions"][place, :count] = np.arange(count)
                # Target j is token j + 1 (the start token is no target), so that the prompt of P
                # tokens is targets 0..P - 1 and the response begins at P.
                batch[f"{side}_weights"][place, self.prompts[row] : count] = 1
        # Padding is row -1, so that its example is number 0.
        batch["examples"] = (rows + 1).astype(np.int32)
        batch["weights"] = (rows >= 0).astype(np.float32)
        return batch


@dataclasses.dataclass(frozen=True)
class Preferences(DataNode):
    """Prompts with a chosen and a rejected response, one prompt a row.

    For each of `chosen` and `rejected` a batch has `<side>_inputs`, `<side>_targets`,
    `<side>_segments` and `<side>_positions`, int32 [B, L], and `<side>_weights`, float32 [B, L],
    which is 1 on the targets of the response (the end token is one) and 0 on those of the prompt;
    further `examples` int32 [B] (from 1; 0 for padding) and `weights` float32 [B]. Prompt and
    response are tokenized one by one, so that a prompt has the same tokens as in sampling.

    Args:
      source: The prompts and responses.
      tokenizer: Tokenizer of the texts.
      length: L, the number of targets in a row.
      too_long: The treatment of prompts whose responses do not fit: `Fail()` or `Skip()`.

    Raises:
      DataError: at first use, when prompts cannot be read, one does not fit and `too_long` does
        not tolerate it, or none is left.
    """

    RANGES: ClassVar[dict[str, str]] = {**DataNode.RANGES, "length": "1 <= x"}

    source: PreferenceSource
    tokenizer: Tokenizer
    length: int
    too_long: Corruption = dataclasses.field(default_factory=Fail)

    def __str__(self) -> str:
        return f"{self.source} has {self.num_rows} prompts"

    # One property for both results, because the count of prompts left out is known only by reading.
    @functools.cached_property
    def _read(self) -> tuple[PreferenceRows, int]:
        """The rows, and how many prompts were left out."""
        # In blocks, as tokenizers are parallel over a list; all prompts at once would hold all
        # texts in memory. Both responses must fit: cutting one would train on an answer without its
        # end, and leaving out a side makes no preference.
        rows: list[tuple[np.ndarray, np.ndarray]] = []
        prompts: list[int] = []
        problems: list[Problem] = []
        bos, eos = self.tokenizer.bos, self.tokenizer.eos
        for first in range(0, len(self.source), _BLOCK):
            indices = range(first, min(first + _BLOCK, len(self.source)))
            texts = [self.source[index] for index in indices]
            parts = [self.tokenizer.encode_many([text[k] for text in texts]) for k in range(3)]
            for index, prompt, chosen, rejected in zip(indices, *parts, strict=True):
                # Targets are all tokens but the first (BOS), and the 1 is for the end token.
                need = len(prompt) + max(len(chosen), len(rejected)) + 1
                if need > self.length:
                    what = f"{self.source.name(index)}: {need} targets do not fit into a row of "
                    remedy = "raise `length`, or set `too_long` to `Skip()`"
                    problems.append(Problem(f"{what}{self.length}", remedy=remedy))
                    self.too_long.tolerate(problems)
                    continue
                chosen, rejected = (
                    np.concatenate([[bos], prompt, side, [eos]]).astype(np.int32)
                    for side in (chosen, rejected)
                )
                rows.append((chosen, rejected))
                prompts.append(len(prompt))
        # An empty source, or one of whose prompts all were too long within the limit of `Skip`.
        if not rows:
            raise DataError(Problem(f"{self.source} has no prompts", remedy="give it some"))
        return PreferenceRows(rows, np.array(prompts, np.int64), self.length), len(problems)

    @property
    def rows(self) -> PreferenceRows:
        """The rows of an epoch, by number; reads and tokenizes the prompts."""
        return self._read[0]

    @property
    def tokens_per_row(self) -> int:
        """The most targets that both responses together can have."""
        return 2 * self.length

    def batch_spec(self, global_batch_size: int) -> Spec:
        """Return shape and dtype of every entry of the global batch; no data is read.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Global shape and dtype of every entry.
        """
        sides: dict[str, Any] = {
            f"{side}_{name}": ((self.length,), np.float32 if name == "weights" else np.int32)
            for side in SIDES
            for name in ("inputs", "targets", "segments", "positions", "weights")
        }
        return spec(global_batch_size, **sides, examples=((), np.int32), weights=((), np.float32))

    def describe(self) -> dict[str, Any]:
        """Return the size of the data.

        Returns:
          `rows`, `too_long` (left out), `vocab_size`, and `prompt_tokens`, `chosen_targets` and
          `rejected_targets` in all, the end tokens included.
        """
        rows, too_long = self._read
        sums = [sum(len(sides[k]) - 1 for sides in rows.tokens) for k in (0, 1)]
        prompt_tokens = int(rows.prompts.sum())
        return {
            "rows": self.num_rows,
            "too_long": too_long,
            "vocab_size": self.tokenizer.vocab_size,
            "prompt_tokens": prompt_tokens,
            "chosen_targets": sums[0] - prompt_tokens,
            "rejected_targets": sums[1] - prompt_tokens,
        }
