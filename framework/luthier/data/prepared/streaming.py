"""Tokens of a corpus in an object store, which are read piece by piece as rows need them.

The tokens of a shard are one object, and are cut into pieces of `PIECE_BYTES`. A batch needs the
pieces that its rows lie in. They are taken from a cache of this machine (`storage.piece_cache`), or
read as ranges of the objects, those that follow one another in one request. Every piece is compared
with the checksum in the `shard.json` of its shard, so that neither a damaged transfer nor another
corpus at the same place reaches a batch.

The order of rows is known beforehand. So the pieces of later batches are requested
(`StreamedTokens.prefetch`) and stay on their way, in TensorStore's threads, while batches are
assembled. Whoever reads next puts those that have arrived into the cache.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import hashlib
import itertools
import os
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from luthier.data.prepared.plans import cache_folder
from luthier.data.prepared.shards import ShardedTokens, parse_pieces, store_errors
from luthier.errors import DataError, Problem, RunError, StoreError, StoreUnavailable
from luthier.storage import PieceCache
from luthier.storage.bucket import Bucket, PendingRead
from luthier.storage.transfer import OutOfRange

CACHE_VARIABLE = "LUTHIER_DATA_CACHE_BYTES"
CACHE_BYTES = 10 * 2**30
"""The most bytes that pieces of all corpora take on a machine, unless the variable is set."""

PATIENCE_SECONDS = 900.0
"""A store that has not answered for so long ends the run."""

_MOST_AHEAD = 512  # pieces that are on their way before they are wanted: 8 MiB
_MOST_TOGETHER = 64  # pieces in one request: 1 MiB
_MOST_TRIES = 3  # for a piece that differs from its checksum
_LOOK_SECONDS = 0.5
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_REMEDY = "prepare the corpus again with `luthier data prepare`"


@dataclasses.dataclass(frozen=True)
class StreamedShard:
    """A shard in an object store.

    Args:
      name: Its folder.
      digest: The digest of its arrays.
      num_tokens: The number of its tokens.
      dtype: Their dtype.
    """

    name: str
    digest: str
    num_tokens: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.num_tokens

    @property
    def num_bytes(self) -> int:
        """The bytes of its tokens."""
        return self.num_tokens * self.dtype.itemsize


class StreamedTokens(ShardedTokens):
    """The tokens of a corpus in an object store; it can be indexed by positions.

    Args:
      url: The folder of the corpus.
      shards: Its shards, in order; all of one dtype.
      vocab_size: Every token is below it.

    Raises:
      DataError: The store does not answer or refuses, the corpus has no pieces, or the cache cannot
        be written.
    """

    def __init__(self, url: str, shards: Sequence[StreamedShard], vocab_size: int):
        super().__init__(shards, vocab_size, url)
        self._pieces = Pieces(url, shards)
        self._starts = self._ends - [len(shard) for shard in shards]
        self._tokens_per_piece = self._pieces.num_bytes // self.dtype.itemsize

    def prefetch(self, first: np.ndarray, last: np.ndarray) -> bool:
        """Begin to read runs of tokens that will be wanted soon; what fails is read again then.

        Args:
          first: The position of the first token of each run, int64 [n].
          last: The position of the last token of each run, int64 [n].

        Returns:
          Whether there was room for all of them, see `Pieces.prefetch`.
        """
        # Pieces are numbered in the order of the stream, through all shards.
        end = len(self) - 1
        first, last = (self._locate(np.minimum(at, end))[0] for at in (first, last))
        runs = zip(first.tolist(), last.tolist(), strict=True)
        numbers = {number for start, stop in runs for number in range(start, stop + 1)}
        return self._pieces.prefetch(sorted(numbers))

    def _locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of the piece of each position, and the position within it."""
        shards = np.searchsorted(self._ends, positions, side="right")
        numbers, within = np.divmod(positions - self._starts[shards], self._tokens_per_piece)
        return self._pieces.firsts[shards] + numbers, within

    def _read(self, positions: np.ndarray) -> np.ndarray:
        tokens = np.empty(len(positions), self.dtype)
        if not len(positions):
            return tokens
        numbers, within = self._locate(positions)
        # Rows are runs of tokens, as in `ShardedTokens`; here a run ends with its piece.
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(positions)]
        own = numbers[edges[:-1]].tolist()
        pieces = self._pieces.read(sorted(set(own)))
        arrays = {number: np.frombuffer(data, self.dtype) for number, data in pieces.items()}
        for number, (start, stop) in zip(own, itertools.pairwise(edges), strict=True):
            tokens[start:stop] = arrays[number][within[start:stop]]
        return tokens


@dataclasses.dataclass(frozen=True, eq=False)
class _Request:
    """A request for pieces that follow one another in a shard."""

    numbers: range
    read: PendingRead
    since: float


class _Damaged(Exception):
    """A piece differs from its checksum."""


class Pieces:
    """Reads pieces of the tokens of a corpus, from the cache of this machine or from the store.

    Pieces are numbered from 0 through all shards, in their order. Several threads may read.

    Args:
      url: The folder of the corpus.
      shards: Its shards, in order.

    Raises:
      DataError: The store does not answer or refuses, the corpus has no pieces, or the cache cannot
        be written.
    """

    # The lock guards `_pending` and `_unread`. The cache needs none, and two threads that want one
    # piece find one request, wait for it together, and both put the same bytes into the cache.

    def __init__(self, url: str, shards: Sequence[StreamedShard]):
        self._bucket, self._shards = Bucket(url), shards
        self._details: dict[int, tuple[int, int, np.ndarray]] = {}
        self._pending: dict[int, _Request] = {}
        self._lock = threading.Lock()
        self._latest = threading.local()
        self._unread: dict[int, int] = {}
        self._num_requested = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="luthier-pieces")
        with store_errors():
            self._read_details({0})
        self.num_bytes = self._details[0][0]
        """The size of a piece; the last one of a shard may be smaller."""
        counts = [-(-shard.num_bytes // self.num_bytes) for shard in shards]
        self._firsts = [0, *itertools.accumulate(counts)]
        self.firsts = np.array(self._firsts)
        """The number of the first piece of each shard, and of all pieces; int64 [shards + 1]."""
        folder = cache_folder("pieces")
        try:
            self._cache = PieceCache(folder, cache_bytes(), self.num_bytes)
        except OSError as error:
            what = f"{folder}: pieces of {url} cannot be kept: {error.strerror or error}"
            remedy = "make room, or set XDG_CACHE_HOME to a larger disk"
            raise DataError(Problem(what, remedy=remedy)) from None

    def read(self, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return pieces by number, waiting for a store that does not answer for a while.

        Args:
          numbers: The pieces, rising.

        Raises:
          DataError: An object is gone, was cut short, or differs from its checksums.
          StoreUnavailable: The store has not answered for `PATIENCE_SECONDS`.
        """
        self._collect()
        # A batch reads its inputs and then its targets, which lie in the same pieces. By thread,
        # since several threads assemble batches: in a small cache, the pieces of another batch
        # could replace those of the inputs before the targets are read.
        latest: dict[int, bytes] = getattr(self._latest, "pieces", {})
        found = {number: latest[number] for number in numbers if number in latest}
        for number in numbers:
            if number not in found and number not in self._pending:
                data = self._cache.get(self._key(number))
                if data is not None:
                    found[number] = data
        missing = [number for number in numbers if number not in found]
        # All of them before the first is waited for: the time is that of the slowest, not the sum.
        with contextlib.suppress(RunError, OutOfRange):
            self._request(missing)
        for number in missing:
            if number not in found:
                found.update(self._wait(number))
        with self._lock:
            self._num_requested += len(missing)
            for number in numbers:
                self._unread.pop(number, None)
        self._latest.pieces = found
        return found

    def prefetch(self, numbers: Sequence[int]) -> bool:
        """Begin to read pieces that will be wanted soon.

        Args:
          numbers: The pieces, rising.

        Returns:
          Whether there was room for all of them; as many as fit were requested.
        """
        self._collect()
        new = [n for n in numbers if n not in self._pending and self._key(n) not in self._cache]
        # A cache that holds little must not lose pieces again before they are wanted: those that
        # arrived and were not read yet take room, too, unless so many were requested after them
        # that they are gone in any case (after a jump of the position, nobody reads them).
        with self._lock:
            self._unread = {
                number: place
                for number, place in self._unread.items()
                if self._num_requested - place < self._cache.num_places
            }
            # Only what is on its way is bounded by `_MOST_AHEAD`: in a large cache, the rest waits.
            ahead = self._unread.keys() | self._pending.keys()
            places = self._cache.num_places // 4
            room = max(min(_MOST_AHEAD - len(self._pending), places - len(ahead)), 0)
            for number in new[:room]:
                self._num_requested += 1
                self._unread[number] = self._num_requested
        # Nothing waits for these: what fails here is requested again by `read`, which reports it.
        with contextlib.suppress(RunError, DataError, OutOfRange):
            self._request(new[:room])
        return len(new) <= room

    def _wait(self, number: int) -> dict[int, bytes]:
        """Return a piece, and those that arrive with it."""
        pauses = itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1]))
        deadline, damaged = None, 0
        while True:
            try:
                request = self._pending.get(number)
                if request is not None:
                    self._stand_by(request)
                    return self._finish(request)
                # Another thread may have put it into the cache meanwhile.
                if (data := self._cache.get(self._key(number))) is not None:
                    return {number: data}
                self._request([number])
            except OutOfRange:
                what = f"{self._place(number)} is shorter than the manifest has it"
                raise DataError(Problem(what, remedy=_REMEDY)) from None
            except _Damaged:
                damaged += 1
                if damaged == _MOST_TRIES:
                    what = f"{self._place(number)} differs from its checksums"
                    raise DataError(Problem(what, remedy=_REMEDY)) from None
            except RunError as error:
                # From the first failure on, and not from the request: TensorStore repeats requests
                # by itself for up to a minute before it gives up.
                now = time.monotonic()
                deadline = now + PATIENCE_SECONDS if deadline is None else deadline
                if now >= deadline and _is_refusal(error):
                    raise DataError(error.problems) from None
                if now >= deadline:
                    # Of what is on its way, nothing is wanted any more; TensorStore would repeat
                    # it for minutes, and others would wait behind it.
                    with self._lock:
                        self._pending.clear()
                    what = f"{error.problems[0].what}, for {PATIENCE_SECONDS / 60:g} minutes now"
                    remedy = "rerun the command when the store can be reached again"
                    # A time-out makes it a fault of the place (`faults.classify`).
                    raise StoreUnavailable(Problem(what, remedy=remedy)) from TimeoutError(what)
                self._pause(min(next(pauses), max(deadline - now, 0.0)))

    def _stand_by(self, request: _Request) -> None:
        """Wait until a request is answered, or for as long as one may take."""
        deadline = time.monotonic() + self._bucket.stall_seconds
        while (left := deadline - time.monotonic()) > 0:
            if request.read.wait(min(left, _LOOK_SECONDS)):
                return
            self._check_ending()
        what = f"{self._place(request.numbers[0])}: no answer in {self._bucket.stall_seconds:g} s"
        self._forget(request)
        raise RunError(Problem(what))

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._check_ending()
            time.sleep(min(left, _LOOK_SECONDS))

    def _check_ending(self) -> None:
        """Raise if the process ends: it waits for Grain's threads, which wait here."""
        try:
            # Nothing else says it to a thread: an executor refuses work from that moment on.
            self._executor.submit(int)
        except RuntimeError:
            raise StoreUnavailable(Problem(f"{self._bucket.url}: the process ends")) from None

    def _request(self, numbers: Sequence[int]) -> None:
        """Send requests for pieces, unless they are on their way.

        Raises:
          RunError: The store does not answer, or refuses.
          DataError: The checksums of a shard are missing or damaged.
        """
        numbers = [number for number in numbers if number not in self._pending]
        shards = [self._shard_of(number) for number in numbers]
        self._read_details(set(shards))
        for shard, run in _runs(numbers, shards):
            piece_bytes, offset, _ = self._details[shard]
            first = self._firsts[shard]
            # Under the lock, or two threads would both find a piece that is not on its way.
            # Sending takes no time.
            with self._lock:
                if any(number in self._pending for number in run):
                    continue
                start, stop = ((edge - first) * piece_bytes for edge in (run.start, run.stop))
                stop = min(stop, self._shards[shard].num_bytes)
                name = f"{self._shards[shard].name}/tokens.npy"
                read = self._bucket.start_read(name, offset + start, offset + stop)
                request = _Request(run, read, time.monotonic())
                self._pending.update(dict.fromkeys(run, request))

    def _finish(self, request: _Request) -> dict[int, bytes]:
        """Wait for a request, and put its pieces into the cache; return them by number."""
        try:
            pieces = self._checked(request.numbers, request.read.result().data)
            for number, data in pieces.items():
                self._cache.put(self._key(number), data)
            return pieces
        finally:
            # After they are in the cache, so that no thread finds them nowhere. A request that
            # failed goes, too: `_wait` sends another.
            self._forget(request)

    def _forget(self, request: _Request) -> None:
        with self._lock:
            for number in request.numbers:
                if self._pending.get(number) is request:
                    del self._pending[number]

    def _checked(self, numbers: range, data: bytes | None) -> dict[int, bytes]:
        shard = self._shard_of(numbers[0])
        if data is None:
            what = f"{self._place(numbers[0])} does not exist any more"
            raise DataError(Problem(what, remedy=_REMEDY))
        piece_bytes, _, sums = self._details[shard]
        first = self._firsts[shard]
        end = min((numbers.stop - first) * piece_bytes, self._shards[shard].num_bytes)
        if len(data) != end - (numbers.start - first) * piece_bytes:
            raise _Damaged
        pieces = {
            number: data[i * piece_bytes : (i + 1) * piece_bytes]
            for i, number in enumerate(numbers)
        }
        if any(zlib.crc32(piece) != sums[number - first] for number, piece in pieces.items()):
            raise _Damaged
        return pieces

    def _collect(self) -> None:
        """Put requests that were answered into the cache, and forget those that were not."""
        with self._lock:
            requests = set(self._pending.values())
        for request in requests:
            if request.read.is_done:
                with contextlib.suppress(RunError, DataError, OutOfRange, _Damaged):
                    self._finish(request)
            # Nobody may want it any more, after a jump of the position. Without its last
            # reference the request is cancelled.
            elif time.monotonic() - request.since > 2 * self._bucket.stall_seconds:
                self._forget(request)

    def _read_details(self, shards: set[int]) -> None:
        """Read the checksums of shards, where that was not done yet.

        Raises:
          RunError: The store does not answer, or refuses.
          DataError: They are missing or damaged.
        """
        # At the first use of a shard, and kept: 4 bytes for a piece.
        names = {
            number: f"{self._shards[number].name}/shard.json"
            for number in shards - self._details.keys()
        }
        reads = {number: self._bucket.start_read(name) for number, name in names.items()}
        for number, read in reads.items():
            path = self._bucket.url + names[number]
            data = read.result().data
            if data is None:
                raise DataError(Problem(f"{path} does not exist", remedy=_REMEDY))
            details = parse_pieces(path, data, self._shards[number].num_bytes)
            if details[0] != self._details.get(0, details)[0]:
                what = f"{path}: its pieces are of another size than those of other shards"
                raise DataError(Problem(what, remedy=_REMEDY))
            self._details[number] = details

    def _shard_of(self, number: int) -> int:
        return bisect.bisect_right(self._firsts, number) - 1

    def _place(self, number: int) -> str:
        shard = self._shards[self._shard_of(number)]
        return f"{self._bucket.url}{shard.name}/tokens.npy"

    def _key(self, number: int) -> bytes:
        # The digest of the shard, so that a corpus that was prepared again at the same place does
        # not find pieces of the former one.
        shard = self._shard_of(number)
        own = self._shards[shard]
        name = f"{self._bucket.url}{own.name}@{own.digest}#{number - self._firsts[shard]}"
        return hashlib.blake2b(name.encode(), digest_size=16).digest()


def _runs(numbers: Sequence[int], shards: Sequence[int]) -> Iterator[tuple[int, range]]:
    """Yield runs of pieces that one request can hold, each with its shard."""
    start = 0
    for i in range(1, len(numbers) + 1):
        follows = (
            i < len(numbers)
            and numbers[i] == numbers[i - 1] + 1
            and shards[i] == shards[i - 1]
            and i - start < _MOST_TOGETHER
        )
        if not follows:
            yield shards[start], range(numbers[start], numbers[i - 1] + 1)
            start = i


def cache_bytes() -> int:
    """Return the most bytes that pieces of corpora may take on this machine.

    Raises:
      DataError: The environment variable holds something else than a number of bytes.
    """
    text = os.environ.get(CACHE_VARIABLE, "")
    if not text:
        return CACHE_BYTES
    if not (text.isascii() and text.isdecimal()):
        what = f"{CACHE_VARIABLE}={text!r} is not a number of bytes"
        raise DataError(Problem(what, remedy=f"write a whole number, such as {CACHE_BYTES}"))
    return int(text)


def _is_refusal(error: RunError) -> bool:
    """Return whether a store answers and refuses, as for credentials that have expired."""
    return isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)
