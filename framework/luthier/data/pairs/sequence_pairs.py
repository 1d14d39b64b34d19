"""Pairs of sequences, and their packing into the rows of a batch."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from luthier.data.node import DataNode, Spec, spec
from luthier.data.order import Visit
from luthier.data.pairs.sources import PairSource
from luthier.data.sources.source import Corruption, Fail
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem


class PairPacking(abc.ABC):
    """Assigns pairs to rows, which have room for S input tokens and T targets."""

    @abc.abstractmethod
    def rows(
        self, input_lengths: np.ndarray, target_lengths: np.ndarray, room: tuple[int, int]
    ) -> np.ndarray:
        """Return the row of each pair, from 0 without a gap; int64 [pairs].

        Args:
          input_lengths: The input tokens of each pair, at most S; int64 [pairs].
          target_lengths: The targets of each pair, at most T; int64 [pairs].
          room: S and T.

        Returns:
          Numbers of rows from 0 without a gap; int64 [pairs].
        """


@dataclasses.dataclass(frozen=True)
class OnePair(PairPacking):
    """One pair a row: the reference for the other way."""

    def rows(
        self, input_lengths: np.ndarray, target_lengths: np.ndarray, room: tuple[int, int]
    ) -> np.ndarray:
        """Return the row of each pair.

        Args:
          input_lengths: The input tokens of each pair, at most S; int64 [pairs].
          target_lengths: The targets of each pair, at most T; int64 [pairs].
          room: S and T.

        Returns:
          Numbers of rows from 0 without a gap; int64 [pairs].
        """
        return np.arange(len(input_lengths))


@dataclasses.dataclass(frozen=True)
class PackPairs(PairPacking):
    """Each pair in the first row with room for both of its sides, of the last rows begun.

    Args:
      open_rows: Number of rows that are considered; older ones count as full.

    Source: Johnson 1973, Near-optimal bin packing algorithms (first fit), in two dimensions.
    """

    RANGES: ClassVar[dict[str, str]] = {"open_rows": "1 <= x"}

    open_rows: int = 64

    def rows(
        self, input_lengths: np.ndarray, target_lengths: np.ndarray, room: tuple[int, int]
    ) -> np.ndarray:
        """Return the row of each pair.

        Args:
          input_lengths: The input tokens of each pair, at most S; int64 [pairs].
          target_lengths: The targets of each pair, at most T; int64 [pairs].
          room: S and T.

        Returns:
          Numbers of rows from 0 without a gap; int64 [pairs].
        """
        # Both sides are one vector of needs: a row fits if each of its rooms does. A slot that was
        # never opened has the number -1 and no room, so that it never fits.
        needs = np.stack([input_lengths, target_lengths], axis=1)
        left = np.zeros((self.open_rows, 2), np.int64)
        numbers = np.full(self.open_rows, -1)
        placed = np.empty(len(needs), np.int64)
        begun = 0
        for pair, need in enumerate(needs):
            # Only the last rows begun are open, in a ring: first fit over all rows would take time
            # in the square of the pairs.
            fits = np.flatnonzero(np.all(left >= need, axis=1) & (numbers >= 0))
            if len(fits):
                # The earliest row that fits; slots of the ring are not in the order of rows.
                slot = fits[np.argmin(numbers[fits])]
            else:
                slot = begun % self.open_rows
                left[slot], numbers[slot], begun = room, begun, begun + 1
            left[slot] -= need
            placed[pair] = numbers[slot]
        return placed


# Pairs of token sequences as rows: the data node for sequence-to-sequence models.
#
# Shapes: B rows, S input tokens in a row, T targets in a row.

_BLOCK = 1024
INPUT_ENTRIES = ("inputs", "input_segments", "input_positions")
TARGET_ENTRIES = (
    "decoder_inputs",
    "targets",
    "segments",
    "positions",
    "documents",
    "target_bytes",
)


@dataclasses.dataclass(frozen=True, eq=False)
class PairRows:
    """Rows of one or several pairs.

    Args:
      inputs: The input tokens of each pair, with the end token; each int32 [s].
      targets: The target tokens of each pair, with the end token; each int32 [t].
      pairs: The pairs of each row, in order.
      byte_lengths: The bytes that each target token stands for, int32 [V].
      start: The token from which the first target is predicted.
      prefix_bytes: The bytes that the first token of a target counts too many.
      room: S and T.
    """

    inputs: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]
    pairs: Sequence[Sequence[int]]
    byte_lengths: np.ndarray
    start: int
    prefix_bytes: int
    room: tuple[int, int]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.pairs)

    @property
    def num_examples(self) -> int:
        """The number of pairs."""
        return len(self.inputs)

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all rows: equal digests, equal rows."""
        # Lengths in front of tokens, and a mark behind each row: without them, pairs that are cut
        # differently would have the same bytes one after another.
        hasher = hashlib.blake2b(f"{self.room} {self.start}".encode(), digest_size=16)
        for row in self.pairs:
            for pair in row:
                for tokens in (self.inputs[pair], self.targets[pair]):
                    hasher.update(len(tokens).to_bytes(4, "little") + tokens.tobytes())
            hasher.update(b"row")
        return hasher.hexdigest()

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Ignored: text is the same in every epoch.

        Returns:
          The entries that `SequencePairs` documents.
        """
        # Both sides of a pair get the same segment number, so that cross attention can be masked to
        # the pair's own inputs by comparing numbers. The sides fill up at different speeds: each
        # has a cursor of its own.
        size, (inputs, targets) = len(rows), self.room
        batch = {name: np.zeros((size, inputs), np.int32) for name in INPUT_ENTRIES}
        batch |= {name: np.zeros((size, targets), np.int32) for name in TARGET_ENTRIES}
        batch["weights"] = np.zeros((size, targets), np.float32)
        for place, row in enumerate(rows.tolist()):
            first_input = first_target = 0
            for segment, pair in enumerate(self.pairs[row] if row >= 0 else (), 1):
                tokens = self.inputs[pair]
                here = (place, slice(first_input, first_input + len(tokens)))
                batch["inputs"][here] = tokens
                batch["input_segments"][here] = segment
                batch["input_positions"][here] = np.arange(len(tokens))
                first_input += len(tokens)
                tokens = self.targets[pair]
                here = (place, slice(first_target, first_target + len(tokens)))
                batch["decoder_inputs"][here] = np.append(self.start, tokens[:-1])
                batch["targets"][here] = tokens
                batch["segments"][here] = segment
                batch["positions"][here] = np.arange(len(tokens))
                batch["documents"][here] = pair + 1
                # A copy by the index, so that the first one may be changed: the space that some
                # tokenizers put in front of a text is no byte of it. An empty text is the end token
                # alone, which has no bytes to subtract from: hence the `max`.
                lengths = self.byte_lengths[tokens]
                lengths[0] = max(lengths[0] - self.prefix_bytes, 0)
                batch["target_bytes"][here] = lengths
                batch["weights"][here] = 1
                first_target += len(tokens)
        return batch


@dataclasses.dataclass(frozen=True)
class SequencePairs(DataNode):
    """Pairs of texts, tokenized and packed into rows.

    A batch is int32 [B, S]: `inputs` (the text's tokens, then the end token), `input_segments`
    (from 1 in each row), `input_positions`; int32 [B, T]: `decoder_inputs` (the start token, then
    the targets but the last), `targets` (the tokens, then the end token), `segments`, `positions`,
    `documents` (the number of the pair, from 1), `target_bytes`; and `weights`, float32 [B, T].
    Padding is 0 in all of them. Targets look at inputs of their own segment only.

    Args:
      source: The pairs.
      tokenizer: Turns texts and targets into tokens.
      input_length: S, the number of input tokens in a row.
      target_length: T, the number of targets in a row.
      packing: Assigns pairs to rows.
      too_long: The treatment of pairs with a side that does not fit: `Fail()` or `Skip()`.

    Raises:
      DataError: at first use, when pairs cannot be read, one does not fit and `too_long` does not
        tolerate it, or none is left.
    """

    RANGES: ClassVar[dict[str, str]] = {
        **DataNode.RANGES,
        "input_length": "1 <= x",
        "target_length": "1 <= x",
    }

    source: PairSource
    tokenizer: Tokenizer
    input_length: int
    target_length: int
    packing: PairPacking
    too_long: Corruption = dataclasses.field(default_factory=Fail)

    def __str__(self) -> str:
        return f"{self.source} has {self.num_rows} rows"

    @functools.cached_property
    def _tokens(self) -> tuple[list[np.ndarray], list[np.ndarray], list[Problem]]:
        """The inputs and the targets that have room, and the problems of those that have not."""
        # Too long is an error or a loss that is counted, never a silent cut: a translation whose
        # end is missing teaches to stop early. The end token of each side needs a place as well.
        inputs: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        problems: list[Problem] = []
        room = (self.input_length, self.target_length)
        for first in range(0, len(self.source), _BLOCK):
            indices = range(first, min(first + _BLOCK, len(self.source)))
            pairs = [self.source[index] for index in indices]
            sides = [self.tokenizer.encode_many([pair[side] for pair in pairs]) for side in (0, 1)]
            for index, *tokens in zip(indices, *sides, strict=True):
                needs = [len(side) + 1 for side in tokens]
                if any(need > has for need, has in zip(needs, room, strict=True)):
                    what = f"{self.source.name(index)}: {needs[0]} input tokens and {needs[1]} "
                    what += f"targets do not fit into {room[0]} and {room[1]}"
                    remedy = "raise the lengths, or set `too_long` to `Skip()`"
                    problems.append(Problem(what, remedy=remedy))
                    self.too_long.tolerate(problems)
                    continue
                for store, side in zip((inputs, targets), tokens, strict=True):
                    store.append(np.append(side, self.tokenizer.eos).astype(np.int32))
        # An empty source, or one of whose pairs all were too long within the limit of `Skip`.
        if not inputs:
            raise DataError(Problem(f"{self.source} has no pairs", remedy="give it some"))
        return inputs, targets, problems

    @functools.cached_property
    def rows(self) -> PairRows:
        """The rows of an epoch, by number; reads and tokenizes the pairs."""
        inputs, targets, _ = self._tokens
        room = (self.input_length, self.target_length)
        lengths = [np.array([len(tokens) for tokens in side]) for side in (inputs, targets)]
        placed = self.packing.rows(lengths[0], lengths[1], room)
        # From the row of each pair to the pairs of each row, in the order of the source.
        order = np.argsort(placed, kind="stable")
        starts = np.flatnonzero(np.diff(placed[order], prepend=-1))
        pairs = [part.tolist() for part in np.split(order, starts[1:])]
        return PairRows(
            inputs,
            targets,
            pairs,
            self.tokenizer.byte_lengths,
            self.tokenizer.bos,
            self.tokenizer.prefix_bytes,
            room,
        )

    @property
    def tokens_per_row(self) -> int:
        """The most targets that a row can have."""
        return self.target_length

    def batch_spec(self, global_batch_size: int) -> Spec:
        """Return shape and dtype of every entry of the global batch; no data is read.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Global shape and dtype of every entry.
        """
        return spec(
            global_batch_size,
            **dict.fromkeys(INPUT_ENTRIES, ((self.input_length,), np.int32)),
            **dict.fromkeys(TARGET_ENTRIES, ((self.target_length,), np.int32)),
            weights=((self.target_length,), np.float32),
        )

    def describe(self) -> dict[str, Any]:
        """Return the size of the data.

        Returns:
          `pairs`, `too_long` (left out), `rows`, `input_tokens` and `targets` (end tokens
          included), `vocab_size`, and `fill`: the part of the places for targets that is used.
        """
        inputs, targets, problems = self._tokens
        num_targets = sum(map(len, targets))
        return {
            "pairs": len(inputs),
            "too_long": len(problems),
            "rows": self.num_rows,
            "input_tokens": sum(map(len, inputs)),
            "targets": num_targets,
            "vocab_size": self.tokenizer.vocab_size,
            "fill": num_targets / (self.num_rows * self.target_length),
        }
