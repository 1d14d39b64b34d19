"""Moves batches to the devices, in a thread ahead of the step, as agreed with other processes."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from luthier import user_code
from luthier.errors import StoreUnavailable
from luthier.parallel import Share, distributed
from luthier.trainer.checks import check_token_ids
from luthier.trainer.processes import Agreed, Agreeing


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch on the devices.

    Args:
      arrays: The global batch.
      tokens: Targets that count, over all hosts.
      wait_seconds: Time that the step had to wait for it.
      agreed: Values agreed on with this batch; None for a single process.
    """

    arrays: Mapping[str, jax.Array]
    tokens: int
    wait_seconds: float
    agreed: Agreed | None = None


class KeptBatches:
    """The first batches of an iterator, as they were handed out, for other runs of one program.

    Runs that read the same rows in the same order, as the trials of a study do, read, check and
    place them once. Several feeds may use it at the same time, in threads of their own.

    Args:
      state: The position before the first batch.
      max_bytes: The most bytes that are kept.
    """

    def __init__(self, state: Any, max_bytes: int):
        self._states = [state]
        self._batches: list[tuple[Mapping[str, Any], int]] = []
        self._free_bytes = max_bytes
        self._lock = threading.Lock()

    def place(self, state: Any) -> int | None:
        """Return how many batches come before a position.

        Args:
          state: The position, as of `RowIterator.get_state`.

        Returns:
          The number; None where the position is not one of these.
        """
        with self._lock:
            return self._states.index(state) if state in self._states else None

    def get(self, place: int) -> tuple[Mapping[str, Any], int, Any] | None:
        """Return a batch, if it is here.

        Args:
          place: How many batches come before it.

        Returns:
          Its arrays, the number of its targets that count, and the position after it; or None.
        """
        with self._lock:
            if place >= len(self._batches):
                return None
            return *self._batches[place], self._states[place + 1]

    def put(
        self, place: int, batch: Mapping[str, Any], tokens: int, state: Any
    ) -> Mapping[str, Any]:
        """Keep a batch, if it is the next one and there is room for it.

        Args:
          place: How many batches come before it.
          batch: Its arrays, which nobody may donate.
          tokens: The number of its targets that count.
          state: The position after it.

        Returns:
          The batch to hand out; nobody can write to its arrays, which others will get.
        """
        batch = {name: _read_only(array) for name, array in batch.items()}
        # An array takes more than its numbers: an object, and an allocation on the device.
        num_bytes = sum(max(array.nbytes, _LEAST_BYTES) for array in batch.values())
        with self._lock:
            if place == len(self._batches) and num_bytes <= self._free_bytes:
                self._batches.append((batch, tokens))
                self._states.append(state)
                self._free_bytes -= num_bytes
        return batch


_LEAST_BYTES = 4096


def _read_only(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        array = array.view()
        array.flags.writeable = False
    return array


class RowIterator(Protocol):
    """An endless iterator over the rows of one process, whose position can be saved."""

    def __next__(self) -> Mapping[str, Any]:
        """Return the next host batch."""

    def get_state(self) -> Any:
        """Return the position, as JSON values."""

    def set_state(self, state: Any) -> None:
        """Go to a position that `get_state` returned."""


# A thread and not a process: the arrays that it makes are on the devices of this process, and
# pipelines have threads of their own (`num_threads`). The thread also carries the exchange with the
# other processes, so that it is over before the step asks for its batch.
class Feed:
    """Fetches batches in a thread and puts them on the devices before they are asked for.

    `get_state` and `set_state` speak of the batches that were handed out, not of those that were
    fetched ahead, so a checkpoint holds the position of the step.

    Args:
      iterator: The rows of the share.
      share: The rows that this process reads.
      batch: Shape, dtype and sharding of every entry that is wanted.
      count_tokens: From a host batch to the number of its targets that count.
      depth: Batches that may lie ready.
      agreeing: Agrees with the other processes on every batch; None where there are none.
      check: Raises for a host batch that must not be trained on; None accepts all.
      vocab_size: A batch with a token that is not below it is refused; None looks at no tokens.
      on_host: Whether batches stay NumPy arrays, for a step that places those of several runs
        together.
      kept: Batches of earlier runs, which the iterator need not read again; not with `agreeing`.
    """

    def __init__(
        self,
        iterator: RowIterator,
        share: Share,
        batch: Mapping[str, jax.ShapeDtypeStruct],
        count_tokens: Callable[[Mapping[str, Any]], Any],
        depth: int = 2,
        agreeing: Agreeing | None = None,
        check: Callable[[Mapping[str, Any]], None] | None = None,
        vocab_size: int | None = None,
        on_host: bool = False,
        kept: KeptBatches | None = None,
    ):
        self._check = check
        self._on_host = on_host
        self._kept = kept
        self._share = share
        self._iterator = iterator
        self._entries = batch
        self._count_tokens = count_tokens
        self._depth = depth
        self._vocab_size = vocab_size
        self.agreeing = agreeing
        # The position as of the last batch that was handed out, never that of the iterator, which
        # is up to `depth` batches and one fetch ahead.
        self._state = self._iterator.get_state()
        self._queue: queue.Queue[Any] = queue.Queue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def next(self) -> Batch:
        """Return the next batch, waiting for it if need be.

        Returns:
          Arrays by name, on the devices unless they stay on the host.

        Raises:
          StoreUnavailable: The store of the data does not answer a process; in all of them.
        """
        if self._thread is None:
            self._start()
        start = time.perf_counter()
        item = self._queue.get()
        # What the step waited for data. It is near zero as long as the pipeline keeps up.
        wait = time.perf_counter() - start
        if isinstance(item, BaseException):
            raise item
        # Each batch carries the state of the iterator after it: the thread is batches ahead, and
        # its own state would skip them after a resume.
        batch, tokens, agreed, self._state = item
        return Batch(batch, tokens, wait, agreed)

    def get_state(self) -> Any:
        """Return the position after the last batch that was handed out.

        Returns:
          A position, for `set_state`.
        """
        return self._state

    def set_state(self, state: Any) -> None:
        """Go to a position that `get_state` returned.

        Args:
          state: The position.
        """
        self.close()
        self._iterator.set_state(state)
        self._state = state

    def close(self) -> None:
        """Stop fetching; a later `next` starts again at the position of the step."""
        if self._thread is None:
            return
        self._stop.set()
        # The thread may wait for room in the queue; emptying it lets it see `_stop`.
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=0.01)
        self._thread.join()
        self._thread = None
        self._iterator.set_state(self._state)

    def _start(self) -> None:
        self._queue = queue.Queue(maxsize=self._depth)
        self._stop = threading.Event()
        # Given as arguments, so that a thread that is slow to end never touches those of its
        # successor.
        arguments = (self._queue, self._stop)
        self._thread = threading.Thread(
            target=self._fetch, args=arguments, name="luthier-feed", daemon=True
        )
        self._thread.start()

    def _fetch(self, ready: queue.Queue[Any], stop: threading.Event) -> None:
        kept = self._kept
        place = None if kept is None else kept.place(self._state)
        # Where the iterator is to go before it is asked for a batch that is not kept.
        target = None
        try:
            while not stop.is_set():
                if kept is not None and place is not None and (found := kept.get(place)):
                    batch, tokens, target = found
                    place += 1
                    self._put(ready, stop, (batch, tokens, None, target))
                    continue
                if target is not None:
                    self._iterator.set_state(target)
                    target = None
                start = time.perf_counter()
                try:
                    batch = self._next()
                except StoreUnavailable as error:
                    if self.agreeing is not None:
                        # All processes leave at this batch, in order: one that left alone would
                        # break the next collective of the others, which could then save nothing.
                        self.agreeing(0, stop.is_set, missing=f"{error}")
                    raise
                # The checks look at host arrays, before they are moved: on a device an id outside
                # the vocabulary is no error, but a NaN or another row of the table.
                if self._check is not None:
                    self._check(batch)
                check_token_ids(batch, self._vocab_size)
                tokens, agreed = int(self._count_tokens(self._share.count_in(batch))), None
                if self.agreeing is not None:
                    seconds = time.perf_counter() - start
                    # Blocks until all processes have this batch. `stop.is_set` lets `close` end the
                    # wait: otherwise a process that leaves the loop could hang in an exchange that
                    # the others never join.
                    agreed = self.agreeing(tokens, stop.is_set, seconds)
                    if agreed.missing:
                        raise StoreUnavailable(agreed.missing)
                    tokens = agreed.tokens
                # Right after the batch was drawn, and before anything else can draw from the
                # iterator.
                state = self._iterator.get_state()
                if self._on_host:
                    batch = {name: np.asarray(batch[name]) for name in self._entries}
                else:
                    batch = self._share.global_batch(batch, self._entries)
                if kept is not None and place is not None:
                    batch = kept.put(place, batch, tokens, state)
                    place += 1
                self._put(ready, stop, (batch, tokens, agreed, state))
        except distributed.GaveUp:
            return
        # Raised by `next`, in the thread that trains.
        except BaseException as error:
            self._put(ready, stop, error)

    def _next(self) -> Mapping[str, Any]:
        try:
            return next(self._iterator)
        except Exception as error:
            user_code.locate(error, "data")
            raise

    @staticmethod
    def _put(ready: queue.Queue[Any], stop: threading.Event, item: Any) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return
