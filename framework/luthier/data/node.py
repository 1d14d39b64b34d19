"""The base of all data nodes: sizes, batches in a global order, every row once in evaluation."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from luthier.data.order import Order, Rows, Shuffled, host_positions
from luthier.errors import DataError, Problem

if TYPE_CHECKING:
    from luthier.data.loader import ShuffledIterator

Spec = dict[str, tuple[tuple[int, ...], np.dtype]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataNode(abc.ABC):
    """Batches of examples, for training in an endless global order and for evaluation.

    For arrays in memory, subclass `Table`. Any other data node of your own subclasses this class
    (as a frozen dataclass) and defines `rows`, which returns a `Rows`, `tokens_per_row`,
    `batch_spec`, `describe` and `__str__`. It is cheap to construct: nothing is
    read before the first use.

    Args:
      num_threads: Threads that assemble batches ahead of time; 0 assembles them on demand.
      prefetch_batches: Number of batches that are prepared ahead of time.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_threads": "0 <= x", "prefetch_batches": "1 <= x"}

    num_threads: int = 1
    prefetch_batches: int = 4

    # A property of the node and not an argument of the iterator: reading, tokenizing and packing
    # happen once, in a `cached_property` of the subclass, whichever of its users comes first.
    @property
    @abc.abstractmethod
    def rows(self) -> Rows:
        """The rows of an epoch, by number; reads the data."""

    @property
    @abc.abstractmethod
    def tokens_per_row(self) -> int:
        """The most targets that a row can have."""

    @abc.abstractmethod
    def batch_spec(self, global_batch_size: int) -> Mapping[str, tuple[tuple[int, ...], np.dtype]]:
        """Return shape and dtype of every entry of the global batch; no data is read.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Global shape and dtype of every entry.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the size of the data, by name, as JSON-able values.

        Returns:
          JSON values by name.
        """

    @property
    def num_rows(self) -> int:
        """The rows of an epoch."""
        rows = self.rows
        # Asked of the class first: `digest` may be a property that reads all data.
        members = ("num_rows", "num_examples", "digest", "gather")
        missing = [n for n in members if not hasattr(type(rows), n) and not hasattr(rows, n)]
        if missing:
            what = f"{type(self).__name__}.rows is a {type(rows).__name__}, not luthier.data.Rows"
            remedy = f"give it {', '.join(missing)} (see luthier.data.Rows)"
            raise DataError(Problem(what, remedy=remedy))
        return rows.num_rows

    def order(self, *, seed: int, global_batch_size: int) -> Order:
        """Return the order of rows in training.

        Args:
          seed: Seed of the order; any integer.
          global_batch_size: The rows of a step, for orders that change at a step.

        Returns:
          A function from positions to rows and epochs.
        """
        return Shuffled(self.num_rows, seed)

    def problems(self, global_batch_size: int) -> list[Problem]:
        """Return the problems of training on this data in batches of this size.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          The problems; none if training can start.
        """
        # An epoch shorter than a batch would put one row into a batch twice.
        if self.num_rows >= max(global_batch_size, 1):
            return []
        what = f"{self}, too few for a batch of {global_batch_size} rows"
        remedy = "add data, or lower the global batch size or the length"
        return [Problem(what, remedy=remedy)]

    def iterator(
        self,
        *,
        global_batch_size: int,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
        rows: np.ndarray | None = None,
    ) -> ShuffledIterator:
        """Return the endless training batches of one process.

        The global order depends on the data and the seed alone (`order`); the batch of step s is
        its rows [s * B, (s + 1) * B), and each process has an equal part, or any rows of it.

        Args:
          global_batch_size: B, the rows of all processes together.
          seed: Seed of the order of rows.
          process_index: Index of this process.
          process_count: Number of processes.
          rows: The numbers of its rows within the global batch, int64 [n], where they are not an
            equal part of it; they replace `process_index` and `process_count`.

        Returns:
          A Grain iterator, whose `get_state` is JSON-able and fits any number of processes.

        Raises:
          DataError: when B is not a multiple of the processes, rows are not of the batch, or an
            epoch has fewer than B rows.
        """
        problems = _check_sizes(global_batch_size, process_index, process_count, rows)
        problems += self.problems(global_batch_size)
        if problems:
            raise DataError(problems)
        # Imported here: Grain takes a second to import, which describing or checking data need not
        # pay.
        from luthier.data import loader

        # `rows` is for meshes on which the batch is not split by processes in their order: devices
        # of one process may hold any rows, or two processes the same ones.
        return loader.shuffled(
            self.rows,
            order=self.order(seed=seed, global_batch_size=global_batch_size),
            global_batch_size=global_batch_size,
            places=_places(global_batch_size, process_index, process_count, rows),
            num_threads=self.num_threads,
            prefetch_batches=self.prefetch_batches,
        )

    def batches(
        self,
        *,
        global_batch_size: int,
        process_index: int = 0,
        process_count: int = 1,
        rows: np.ndarray | None = None,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Return every row exactly once, in order, for evaluation; padding has weight 0.

        Args:
          global_batch_size: The rows of all processes together.
          process_index: Index of this process.
          process_count: Number of processes; each has as many batches as the others.
          rows: The numbers of its rows within the global batch, int64 [n], where they are not an
            equal part of it; they replace `process_index` and `process_count`.

        Returns:
          An iterator over batches: arrays [n, ...] by name, n being the rows of this process.

        Raises:
          DataError: when the batch is not a multiple of the processes, or rows are not of it.
        """
        # `problems` is not asked here: an evaluation set may be smaller than a batch, since its
        # last batch is padded anyway. Nor is there an order: metrics are sums, which need none.
        problems = _check_sizes(global_batch_size, process_index, process_count, rows)
        if problems:
            raise DataError(problems)
        from luthier.data import loader

        return loader.once(
            self.rows,
            global_batch_size=global_batch_size,
            places=_places(global_batch_size, process_index, process_count, rows),
            num_threads=self.num_threads,
            prefetch_batches=self.prefetch_batches,
        )


def spec(global_batch_size: int, **entries: tuple[tuple[int, ...], type[np.generic]]) -> Spec:
    """Return a batch spec from the shape of one row and the dtype of every entry.

    Args:
      global_batch_size: The rows of all processes together.
      **entries: Shape without the axis of rows, and dtype.

    Returns:
      Global shape and dtype of every entry of a batch.

    Example:
      >>> import numpy as np
      >>> from luthier import data
      >>> data.spec(8, tokens=((128,), np.int32), weights=((), np.float32))
      {'tokens': ((8, 128), dtype('int32')), 'weights': ((8,), dtype('float32'))}
    """
    return {
        name: ((global_batch_size, *shape), np.dtype(dtype))
        for name, (shape, dtype) in entries.items()
    }


def _places(
    global_batch_size: int, process_index: int, process_count: int, rows: np.ndarray | None
) -> np.ndarray:
    """Return the numbers of a process's rows within the global batch."""
    if rows is not None:
        return np.asarray(rows, np.int64)
    return host_positions(0, global_batch_size, process_index, process_count)


def _check_sizes(
    global_batch_size: int, process_index: int, process_count: int, rows: np.ndarray | None
) -> list[Problem]:
    if global_batch_size < 1:
        what = f"a global batch of {global_batch_size} rows"
        return [Problem(what, remedy="set it to 1 or more")]
    # All of these would otherwise show as arrays of unequal shapes on some hosts only.
    if rows is not None:
        outside = [int(row) for row in rows if not 0 <= row < global_batch_size]
        what = f"rows {outside[:3]} are outside a batch of {global_batch_size} rows"
        return [Problem(what, remedy="number them from 0")] if outside else []
    if global_batch_size % process_count:
        what = f"a global batch of {global_batch_size} rows cannot be split equally among "
        remedy = f"choose a multiple of {process_count}"
        return [Problem(f"{what}{process_count} processes", remedy=remedy)]
    if not 0 <= process_index < process_count:
        return [Problem(f"process {process_index} of {process_count} does not exist")]
    return []
