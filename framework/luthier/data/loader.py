"""Batches of rows through Grain, prefetched by threads and checkpointed with the model.

Grain is used for its prefetching threads only. Its source is indexed by the step, and an element is
the whole batch of this process: order, sharding and state are computed from the step, so a state is
one number that does not depend on the number of processes, threads or prefetched batches.

This is the only module that imports Grain, and it is imported at the first batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Iterator
from typing import Any

import grain
import numpy as np

from luthier.data.order import Order, Rows, Visit
from luthier.errors import DataError, Problem

Batch = dict[str, np.ndarray]
READ_AHEAD_BATCHES = 8
"""Batches after those that are assembled whose pieces are requested from an object store."""

_REMEDY = "restore the data that the run began with, or start a new run"


class _Batches:
    """The batches of one process: a random access source for Grain, whose index is the step."""

    def __init__(self, rows: Rows, global_batch_size: int, places: np.ndarray):
        self._rows = rows
        self._global_batch_size = global_batch_size
        self._places = places
        # Rows of an object store can be requested before they are wanted (`PackedRows.prefetch`).
        self._reader: Any = rows if getattr(rows, "reads_ahead", False) else None
        self._ahead = 0

    def __len__(self) -> int:
        raise NotImplementedError

    def _rows_of(self, step: int) -> np.ndarray:
        """Return the rows of a batch; -1 for padding."""
        raise NotImplementedError

    def _read_ahead(self, step: int) -> None:
        """Request the rows of the batches after this one, as far as that was not done yet."""
        if self._reader is None:
            return
        end = min(step + 1 + READ_AHEAD_BATCHES, len(self))
        # At the start and after a jump (`set_state`) all of them are new, and this batch itself is
        # the first that is requested. Grain's threads may come here together,
        # or in another order: a batch that is requested twice is on its way already.
        start = self._ahead if step < self._ahead <= end else step
        self._ahead = end
        # A mixture may end within these batches; that is reported when the batch is wanted.
        with contextlib.suppress(DataError):
            for later in range(start, end):
                if not self._reader.prefetch(self._rows_of(later)):
                    self._ahead = later  # the rest of it and what follows: before the next batch
                    break

    def _positions(self, step: int) -> np.ndarray:
        # `_places` are this process's rows within the global batch: with another number of
        # processes the same global rows are read by others.
        return int(step) * self._global_batch_size + self._places


class _Ordered(_Batches):
    def __init__(self, rows: Rows, order: Order, global_batch_size: int, places: np.ndarray):
        super().__init__(rows, global_batch_size, places)
        self._order = order

    def __len__(self) -> int:
        # Grain wants a length; positions must stay below 2**63.
        return sys.maxsize // self._global_batch_size

    def _rows_of(self, step: int) -> np.ndarray:
        return self._order(self._positions(step))[0]

    # A pure function of the step: Grain's threads call it in any order.
    def __getitem__(self, step: int) -> Batch:
        self._read_ahead(step)
        rows, epochs = self._order(self._positions(step))
        return self._rows.gather(rows, Visit(epochs, self._order.seed))


class _Once(_Batches):
    # Rounded up: every process has as many batches as the others, the last of them padded, because
    # evaluation steps are collective and a process that stopped early would leave the rest waiting.
    def __len__(self) -> int:
        return -(-self._rows.num_rows // self._global_batch_size)

    def _rows_of(self, step: int) -> np.ndarray:
        rows = self._positions(step)
        return np.where(rows < self._rows.num_rows, rows, -1)

    def __getitem__(self, step: int) -> Batch:
        self._read_ahead(step)
        return self._rows.gather(self._rows_of(step))


class ShuffledIterator(grain.DatasetIterator):
    """Endless batches in the global order, whose state fits any number of processes.

    The state is the number of rows consumed by all processes together, together with a check that
    it fits: the seed, and the digest of the rows and of the rule of their order.
    """

    def __init__(
        self, parent: grain.DatasetIterator, rows: Rows, order: Order, global_batch_size: int
    ):
        super().__init__(parent)
        self._steps = parent
        self._order = order
        self._global_batch_size = global_batch_size
        self._rows = rows

    @property
    def _data(self) -> str:
        return self._rows.digest + self._order.rule

    def __next__(self) -> Batch:
        return next(self._steps)

    def get_state(self) -> dict[str, Any]:
        """Return the position of the iterator, as JSON-able values; the same on every process."""
        # Grain counts what was taken out, not what its threads have prefetched. `next_index` is
        # all of Grain's state here, since its dataset neither shuffles nor repeats.
        step = self._steps.get_state()["next_index"]
        rows = step * self._global_batch_size
        return {"rows": rows, "seed": self._order.seed, "data": self._data}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state, saved by any number of processes.

        Raises:
          DataError: when the data or the seed is different, or the rows consumed are not a whole
            number of batches.
        """
        # Rows and not steps, so that the global batch size may change between runs where the number
        # divides. Everything else must be equal: a position means a row only under one order.
        problems = []
        if state["data"] != self._data:
            what = "the training data is not what it was at the checkpoint (text, tokens or rows)"
            problems.append(Problem(what, remedy=_REMEDY))
        if state["seed"] != self._order.seed:
            what = f"the data was shuffled with seed {state['seed']}, not {self._order.seed}"
            problems.append(Problem(what, remedy=_REMEDY))
        step, rest = divmod(state["rows"], self._global_batch_size)
        if rest:
            size = self._global_batch_size
            what = f"{state['rows']} rows consumed are not a whole number of batches of {size} rows"
            problems.append(Problem(what, remedy="resume with the previous global batch size"))
        if problems:
            raise DataError(problems)
        self._steps.set_state({"next_index": step})

    async def load(self, directory: Any) -> Awaitable[None]:
        """Read the state that any process saved (Grain wants as many processes as there were)."""

        async def read() -> None:
            # All processes save the same state, so any of the files will do; Grain would look for
            # its own process's.
            files = sorted(directory.glob("process_*.json"))
            if not files:
                what = f"{directory}: no state of the data iterator"
                raise DataError(Problem(what, remedy="choose another checkpoint"))
            self.set_state(json.loads(await asyncio.to_thread(files[0].read_text)))

        return read()


def shuffled(
    rows: Rows,
    *,
    order: Order,
    global_batch_size: int,
    places: np.ndarray,
    num_threads: int,
    prefetch_batches: int,
) -> ShuffledIterator:
    """Return the endless iterator of one process over rows in a global order.

    Args:
      rows: The rows of an epoch.
      order: The order of the rows.
      global_batch_size: The rows of all processes together.
      places: The numbers of this process's rows within the global batch, int64 [n].
      num_threads: Threads that assemble batches ahead of time.
      prefetch_batches: Number of batches that are prepared ahead of time.
    """
    source = _Ordered(rows, order, global_batch_size, places)
    parent = _iterate(source, num_threads, prefetch_batches)
    return ShuffledIterator(parent, rows, order, global_batch_size)


def once(
    rows: Rows,
    *,
    global_batch_size: int,
    places: np.ndarray,
    num_threads: int,
    prefetch_batches: int,
) -> Iterator[Batch]:
    """Return the batches of one process over all rows, in order; the last is padded.

    Args:
      rows: The rows of an epoch.
      global_batch_size: The rows of all processes together.
      places: The numbers of this process's rows within the global batch, int64 [n].
      num_threads: Threads that assemble batches ahead of time.
      prefetch_batches: Number of batches that are prepared ahead of time.
    """
    source = _Once(rows, global_batch_size, places)
    return _iterate(source, num_threads, prefetch_batches)


# `MapDataset.source` with an element per batch: Grain's own batching and sharding are not used.
def _iterate(source: _Batches, num_threads: int, prefetch_batches: int) -> grain.DatasetIterator:
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=prefetch_batches)
    return iter(grain.MapDataset.source(source).to_iter_dataset(options))
