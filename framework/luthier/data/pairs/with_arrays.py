"""Precomputed numbers as further entries of a data node's batches."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from luthier.data.node import DataNode, Spec, spec
from luthier.data.order import Order, Visit
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem

if TYPE_CHECKING:
    from luthier.data.loader import Batch
    from luthier.data.order import Rows


@dataclasses.dataclass(frozen=True, eq=False)
class ExtendedRows:
    """The rows of another node with further entries, one number an example.

    Args:
      rows: The rows, whose batches have the entry `examples`.
      arrays: By name, the number of each example; each float32 [examples].
    """

    rows: Rows
    arrays: Mapping[str, np.ndarray]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.rows.num_rows

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        return self.rows.num_examples

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all rows: equal digests, equal rows."""
        hasher = hashlib.blake2b(self.rows.digest.encode(), digest_size=16)
        for name, array in self.arrays.items():
            hasher.update(name.encode() + array.tobytes())
        return hasher.hexdigest()

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> Batch:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: In training, what random augmentation draws from; None in evaluation.
        """
        # By the number of the example and not of the row: the numbers survive another packing or
        # order. Examples count from 1; index -1 of padding reads the last entry, which is dropped.
        batch = self.rows.gather(rows, visit)
        examples = batch["examples"]
        further = {
            name: np.where(examples > 0, array[examples - 1], np.float32(0))
            for name, array in self.arrays.items()
        }
        return {**batch, **further}


@dataclasses.dataclass(frozen=True)
class WithArrays(DataNode):
    """The batches of another data node with further entries, float32 [B].

    This is how log probabilities under a reference model, computed once, come to preferences: the
    file holds `chosen_log_probabilities` and `rejected_log_probabilities`.

    Args:
      data: A data node whose batches have the entry `examples`.
      path: A file of `numpy.savez` with one array for each name, [examples].
      names: The entries.

    Raises:
      DataError: at first use, when the file is unreadable, lacks a name, or has another number of
        examples than the data.
    """

    data: DataNode
    path: str
    names: Sequence[str]

    def __str__(self) -> str:
        return f"{self.data}"

    # Everything but the entries is that of the inner node, also what commands look up by name.
    @property
    def tokenizer(self) -> Tokenizer | None:
        """That of the data, or None."""
        return getattr(self.data, "tokenizer", None)

    @functools.cached_property
    def rows(self) -> ExtendedRows:
        """The rows of an epoch, by number; reads the data and the file."""
        # Loaded whole: one float for each example is small beside the data. A count that differs is
        # an error, since numbers computed on other data would be assigned to the wrong examples.
        rows = self.data.rows
        try:
            with np.load(os.path.expanduser(self.path)) as file:
                arrays = {n: np.asarray(file[n], np.float32) for n in self.names if n in file}
        except (OSError, ValueError, EOFError) as error:
            what = f"{self.path}: cannot be read: {error}"
            raise DataError(Problem(what, remedy="write it with `numpy.savez`")) from None
        problems = [
            Problem(f"{self.path}: no array {name!r}") for name in self.names if name not in arrays
        ]
        problems += [
            Problem(f"{self.path}: {name!r} is {array.shape}, not ({rows.num_examples},)")
            for name, array in arrays.items()
            if array.shape != (rows.num_examples,)
        ]
        if problems:
            raise DataError(problems)
        return ExtendedRows(rows, arrays)

    @property
    def tokens_per_row(self) -> int:
        """Those of the data."""
        return self.data.tokens_per_row

    def order(self, *, seed: int, global_batch_size: int) -> Order:
        """Return the order of the data.

        Args:
          seed: Seed of the order; any integer.
          global_batch_size: The rows of all processes together.

        Returns:
          A function from positions to rows and epochs.
        """
        return self.data.order(seed=seed, global_batch_size=global_batch_size)

    def problems(self, global_batch_size: int) -> list[Problem]:
        """Return the problems of training on the data in batches of this size.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          The problems; none if training can start.
        """
        return self.data.problems(global_batch_size)

    def batch_spec(self, global_batch_size: int) -> Spec:
        """Return shape and dtype of every entry of the global batch; no data is read.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Global shape and dtype of every entry.
        """
        further = spec(global_batch_size, **dict.fromkeys(self.names, ((), np.float32)))
        return {**self.data.batch_spec(global_batch_size), **further}

    def describe(self) -> dict[str, Any]:
        """Return the description of the data, and the `mean` of each further entry.

        Returns:
          JSON values by name.
        """
        means = {name: float(array.mean()) for name, array in self.rows.arrays.items()}
        return {**self.data.describe(), "means": means}
