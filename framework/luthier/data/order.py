"""The order of rows, and random numbers, as functions of the seed, the epoch and the row alone.

A position in the endless order determines its row, so there is no shuffle buffer and no state but a
number: resuming is exact, on any number of processes. Grain's own shuffle is not used,
because it seeds an epoch with `seed + epoch`: the second epoch of seed 0 would be the first of
seed 1.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio


class Draws:
    """Random numbers for each of B examples.

    They are the same whatever batch, host or thread the example is in. A second call gives other
    numbers.

    Args:
      examples: The number of each example, int64 [B].
      visit: The epoch of each, and the seed of the run.
      salt: Distinguishes several uses for the same examples.
    """

    # NumPy's generators are made one by one, which for a batch of small draws costs more than the
    # draws, and a generator shared by a batch would make numbers depend on the batch. A hash of
    # (seed, salt, example, epoch, call, index) is vectorized over all of them and has no state.

    def __init__(self, examples: np.ndarray, visit: Visit, salt: int = 0):
        seed = np.array([visit.seed % 2**64], np.uint64)
        # An array, since NumPy warns where a scalar wraps around.
        # Seed, salt, example and epoch are mixed in one after another: a sum of them would give the
        # same numbers to example 1 in epoch 0 and example 0 in epoch 1. All arithmetic is modulo
        # 2**64.
        key = mix(mix(seed) + np.array([salt], np.uint64) * _GOLDEN)
        key = mix(key + np.asarray(examples).astype(np.uint64) * _GOLDEN)
        self._keys = mix(key + np.asarray(visit.epochs).astype(np.uint64) * _GOLDEN)
        self._calls = 0

    def uniform(self, *shape: int) -> np.ndarray:
        """Return numbers in [0, 1); float64 [B, *shape].

        Args:
          *shape: The shape for one example.

        Returns:
          Float64 [B, *shape].

        Source: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators
          (SplitMix64).
        """
        # The call is mixed into the key and the index added to the mixed stream, so that call 2,
        # index 1 is not call 1, index 2.
        self._calls += 1
        count = int(np.prod(shape, dtype=np.int64))
        streams = mix(self._keys + np.uint64(self._calls))
        counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        bits = mix(streams[:, None] + counters[None, :])
        # The upper 53 bits, as many as a double has: all numbers are exact, and 1.0 never comes.
        numbers = (bits >> np.uint64(11)) * 2.0**-53
        return numbers.reshape(len(self._keys), *shape)

    def normal(self, *shape: int) -> np.ndarray:
        """Return standard normal numbers; float64 [B, *shape].

        Args:
          *shape: The shape for one example.

        Returns:
          Float64 [B, *shape].

        Source: Box and Muller 1958, A note on the generation of random normal deviates.
        """
        # log(1 - u) and not log(u): u may be 0, and 1 - u may not. Box-Muller takes two uniform
        # numbers for one normal one and no rejection, so the count of draws is fixed.
        radius = np.sqrt(-2 * np.log1p(-self.uniform(*shape)))
        return radius * np.cos(2 * np.pi * self.uniform(*shape))


# The order of training rows: a pure function of seed and position, the same for any hosts.
#
# Epochs follow one another without a gap: position p of the endless order is place p % N of epoch p
# // N, and each epoch is a permutation of its own. The batch of step s is positions [s * B, (s + 1)
# * B), and process k of P holds the k-th of P equal parts of it, or any rows of it.

_ROUNDS = 6
_SALTS = [np.uint64(round_ * int(_GOLDEN) % 2**64) for round_ in range(_ROUNDS)]


@dataclasses.dataclass(frozen=True, eq=False)
class Visit:
    """The pass over the data in which rows are seen: the key of random augmentation.

    Args:
      epochs: The epoch of each row, int64 [B].
      seed: Seed of the order of rows.
    """

    epochs: np.ndarray
    seed: int


class Order(Protocol):
    """The endless order of rows in training."""

    @property
    def seed(self) -> int:
        """The seed of the order."""

    @property
    def rule(self) -> str:
        """A fingerprint of all that decides the order beside seed and rows; often empty."""

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows at positions of the order, and their epochs.

        Args:
          positions: Positions of the order, int64 [n].

        Returns:
          Two arrays, int64 [n].
        """


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """Epoch after epoch, each a permutation of its own (`shuffled_rows`).

    Args:
      num_rows: The rows of an epoch.
      seed: Seed of the order; any integer.

    Example:
      >>> import numpy as np
      >>> from luthier import data
      >>> rows, epochs = data.Shuffled(num_rows=4, seed=0)(np.arange(8))
      >>> print(epochs)
      [0 0 0 0 1 1 1 1]
      >>> sorted(rows[:4].tolist())
      [0, 1, 2, 3]
    """

    num_rows: int
    seed: int
    # Empty: this is the rule of all data nodes but mixtures, and states of checkpoints hold it.
    rule: str = dataclasses.field(default="", init=False)

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows at positions of the order, and their epochs.

        Args:
          positions: Positions of the order, int64 [n].

        Returns:
          Two arrays, int64 [n].
        """
        return shuffled_rows(positions, self.num_rows, self.seed), positions // self.num_rows


def host_positions(
    step: int, global_batch_size: int, process_index: int = 0, process_count: int = 1
) -> np.ndarray:
    """Return the positions in the global order that a process reads for a step.

    Args:
      step: The step, from 0.
      global_batch_size: B, the rows of all processes; a multiple of `process_count`.
      process_index: Index of the process.
      process_count: Number of processes.

    Returns:
      Positions int64 [B / process_count]; those of all processes, one after another, are the
      positions of the global batch.

    Example:
      >>> from luthier import data
      >>> print(data.host_positions(step=2, global_batch_size=4, process_index=1, process_count=2))
      [10 11]
    """
    rows = global_batch_size // process_count
    start = step * global_batch_size + process_index * rows
    return np.arange(start, start + rows, dtype=np.int64)


def shuffled_rows(positions: np.ndarray, num_rows: int, seed: int) -> np.ndarray:
    """Return the rows at positions of the endless shuffled order.

    Every epoch is a permutation of 0..num_rows - 1 computed place by place (a Feistel network
    over mixed radices with cycle walking), so that no order is stored however large the corpus.

    Args:
      positions: Positions p >= 0, int64 [n].
      num_rows: N, the rows of an epoch.
      seed: Seed of the order; any integer.

    Returns:
      Rows int64 [n].

    Example:
      >>> import numpy as np
      >>> from luthier import data
      >>> first, second = data.shuffled_rows(np.arange(8), num_rows=4, seed=0).reshape(2, 4)
      >>> sorted(first.tolist()), sorted(second.tolist())
      ([0, 1, 2, 3], [0, 1, 2, 3])

    Source: Black and Rogaway 2002, Ciphers with arbitrary finite domains (CT-RSA), methods 2
      and 3; the round function is the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
    """
    epochs, places = np.divmod(np.asarray(positions, np.int64), num_rows)
    # Two words, for seeds of more than 64 bits, and negative ones.
    seeds = np.array([seed % 2**64, seed // 2**64 % 2**64], np.uint64)
    key = mix(mix(seeds[:1]) + seeds[1:] * _GOLDEN)
    keys = mix(key + epochs.astype(np.uint64) * _GOLDEN)
    rows = _permute(places, num_rows, keys)
    # Cycle walking: the network permutes a*b >= N places. Applying it again to a place outside
    # leads, by the cycle of the permutation, back inside after finitely many rounds, and no two
    # rows meet. Since a*b is at most about N + sqrt(N), few places need it.
    outside = np.flatnonzero(rows >= num_rows)
    while outside.size:
        rows[outside] = _permute(rows[outside], num_rows, keys[outside])
        outside = outside[rows[outside] >= num_rows]
    return rows


def _permute(values: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Permute 0..a*b - 1, the smallest near-square that holds `size`."""
    # Mixed radices instead of powers of two: a domain of 4**k could be four times too large, and
    # then three of four places would have to walk.
    b = math.isqrt(size - 1) + 1
    a = -(-size // b)
    # A Feistel network: each round adds a hash of one half to the other half, modulo its radix,
    # which is undone by subtracting it, whatever the hash is; so every round, and the whole, is a
    # permutation. An even number of rounds changes both halves equally often.
    left, right = np.divmod(values.astype(np.uint64), np.uint64(b))
    for round_ in range(_ROUNDS):
        salted = keys + _SALTS[round_]
        if round_ % 2:
            right = (right + mix(salted ^ left) % np.uint64(b)) % np.uint64(b)
        else:
            left = (left + mix(salted ^ right) % np.uint64(a)) % np.uint64(a)
    return (left * np.uint64(b) + right).astype(np.int64)


def mix(values: np.ndarray) -> np.ndarray:
    """Return the SplitMix64 finalizer of each element of uint64 `values`."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Rows(Protocol):
    """Random access to the rows of an epoch: the protocol of what `DataNode.rows` returns.

    Rows are numbered from 0 within an epoch; `DataNode` shuffles and shards the numbers.
    """

    @property
    def num_rows(self) -> int:
        """The rows of an epoch."""

    @property
    def num_examples(self) -> int:
        """The largest number among the batch entries `documents` or `examples`."""

    @property
    def digest(self) -> str:
        """A fingerprint of the rows and their numbers."""

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Return rows as entries [B, ...].

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding, which is 0 everywhere.
          visit: In training, what random augmentation draws from; None in evaluation.

        Returns:
          Arrays [B, ...] by the names of the batch's entries.
        """
