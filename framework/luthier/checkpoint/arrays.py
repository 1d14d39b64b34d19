"""Reads and writes arrays through Orbax, and works around a leak of TensorStore.

TensorStore never frees the Python dicts that it makes of JSON: `KvStore.Spec.to_json` and
`experimental_collect_matching_metrics` keep a reference to each key and each value for ever
(TensorStore 0.1.84 to 0.1.86). Orbax calls the first once for each array of a save, to read back
the spec of a local folder that it has just made, and the second twice for each save, to log a rate.
Both calls are in functions of one private module, which no setting, leaf handler or type handler of
Orbax reaches. So that module gets a view of TensorStore that answers these two calls from what is
known; everything else goes to TensorStore itself.

Where a later Orbax is arranged differently nothing is changed, and
`tests/checkpoint/test_arrays.py` fails if its saves leak. A slow test there fails when
the view is no longer needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import logging
import math
import pathlib
import threading
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from luthier.errors import BadInput, CheckpointError, Problem

if TYPE_CHECKING:
    import jax

    from luthier.checkpoint.files import Folder


@functools.cache
def spare() -> None:
    """Give Orbax the view, for the rest of the process."""
    try:
        import tensorstore

        # A private module: both leaking calls stand in functions of it, and Orbax has no setting or
        # handler that is asked in between. Each attribute is replaced only where it is what we
        # know; where a later Orbax has moved it, the import or the test fails and Orbax stays as it
        # is.
        from orbax.checkpoint._src.serialization import tensorstore_utils as orbax
    except ImportError:
        return
    if getattr(orbax, "ts", None) is tensorstore:
        orbax.ts = _TensorStore(tensorstore)
    if callable(getattr(orbax, "get_tensorstore_raw_bytes", None)):
        orbax.get_tensorstore_raw_bytes = _RawBytes(tensorstore, orbax.get_tensorstore_raw_bytes)


class _TensorStore:
    """Proxy of the tensorstore module that wraps the specs of key-value stores."""

    def __init__(self, tensorstore: Any):
        self._tensorstore = tensorstore
        self.KvStore = _KvStore(tensorstore.KvStore)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensorstore, name)


class _KvStore:
    """`tensorstore.KvStore`, whose specs know what they were made of."""

    def __init__(self, kv_store: Any):
        self._kv_store = kv_store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv_store, name)

    def Spec(self, json: Any) -> Any:
        return _Spec(json, self._kv_store.Spec(json))

    def open(self, spec: Any, **options: Any) -> Any:
        # TensorStore is C++ and takes only its own specs.
        return self._kv_store.open(spec.own if isinstance(spec, _Spec) else spec, **options)


class _Spec:
    """A spec of TensorStore's own, and the JSON that it was made of."""

    def __init__(self, json: Any, own: Any):
        self._json = json
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def to_json(self, **options: Any) -> Any:
        """Return the JSON; for a local folder the very values that the spec was made of."""
        if not options and _is_local(self._json):
            return dict(self._json)
        return self.own.to_json(**options)


def _is_local(json: Any) -> bool:
    """Return whether `to_json` of TensorStore would return this JSON unchanged."""
    return (
        isinstance(json, Mapping)
        and json.keys() == {"driver", "path"}
        and json["driver"] == "file"
        and json["path"].startswith("/")
        and "\\" not in json["path"]  # becomes a slash
    )


# `experimental_collect_matching_metrics` returns dicts, which leak; the Prometheus text of the same
# metrics is a list of plain strings, which do not.
class _RawBytes:
    """The bytes that TensorStore has written or read: a sum over its text, which it frees."""

    def __init__(self, tensorstore: Any, original: Any):
        self._tensorstore = tensorstore
        self.original = original

    def __call__(self, direction: Any = None) -> int:
        suffix = "_bytes_read" if getattr(direction, "value", None) == "read" else "_bytes_written"
        collect = self._tensorstore.experimental_collect_prometheus_format_metrics
        total = 0.0
        for line in collect("/tensorstore/kvstore/"):
            name, _, value = line.rpartition(" ")
            if not line.startswith("#") and name.partition("{")[0].endswith(suffix):
                total += float(value)
        return int(total)


# Host memory: a restore takes no more than the state and a few arrays on their way.
#
# Two things would double it. Orbax reads all arrays at once, if nobody bounds what is on its way.
# And glibc keeps freed buffers for itself once it has seen a large one freed, in every thread that
# read: what was read stays resident beside the arrays made of it. Many saves scatter what it keeps,
# too.

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
# glibc raises its threshold for mmap whenever a mapped block is freed, up to 32 MiB. From then on
# buffers below it come from the heap, which keeps the pages. So a restore, which frees one buffer
# for each array, would hold the state twice. Setting the threshold by `mallopt` also ends its
# growth.
_AT_ONCE_BYTES = 1 << 17  # glibc's own, until it has seen larger ones freed
_USUAL_BYTES = 1 << 25  # the largest that glibc itself goes to
_SHARE = 16


@contextlib.contextmanager
def returned() -> Iterator[None]:
    """Return freed buffers to the system at once within the `with` block (glibc only)."""
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, _AT_ONCE_BYTES)
    try:
        yield
    finally:
        # There is no way back to the automatic threshold, so it is set to the value that the
        # automatic one reaches; glibc ties the trim threshold to twice that.
        libc.mallopt(_MMAP_THRESHOLD, _USUAL_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _USUAL_BYTES)
        libc.malloc_trim(0)


def trim() -> None:
    """Give what glibc keeps of freed memory back to the system, in a few milliseconds."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    # The symbols of the running program itself; musl and macOS have no `malloc_trim`.
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def on_the_way(arrays: Iterable[jax.ShapeDtypeStruct]) -> int:
    """Return how many bytes Orbax may be reading at a time: a sixteenth, and any one array.

    Args:
      arrays: Shape, dtype and sharding of what is read.
    """
    own, largest = 0, 0
    for array in arrays:
        sharding, size = array.sharding, array.dtype.itemsize
        devices = len(sharding.addressable_devices)
        # What this process holds counts for the sixteenth. Any single array must fit, whole:
        # Orbax's byte limiter raises ValueError for a request that is not smaller than its limit,
        # hence also the `+ 1`.
        own += math.prod(sharding.shard_shape(array.shape)) * size * devices
        largest = max(largest, math.prod(array.shape) * size)
    return max(own // _SHARE, largest) + 1


# Arrays and iterators to and from a directory, through Orbax.

_ARRAYS = "arrays"
_ITERATOR = "iterator"


class Pending(Protocol):
    """A save that is running in the background."""

    def result(self) -> None:
        """Wait until everything is written, and raise what went wrong."""


# Grain's own handler writes a file for each process, named `process_I-of-N`, which ties a
# checkpoint to the number of processes. Our iterators have one state for all of them.
class _StateFile:
    """Gives Orbax an iterator that only has `get_state` and `set_state`: one file for all hosts."""

    def __init__(self, iterator: Any):
        self._iterator = iterator

    # Orbax's protocol in two parts: what is awaited here runs before `save` returns, so that the
    # iterator may move on; the returned coroutine runs in the background.
    async def save(self, directory: Any) -> Awaitable[None]:
        """Take the state now; the result writes it."""
        state = json.dumps(self._iterator.get_state())

        async def write() -> None:
            path = await directory.await_creation()
            if process_index() == 0:
                await asyncio.to_thread((path / "state.json").write_text, state)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Return the coroutine that reads and sets the state."""

        async def read() -> None:
            text = await asyncio.to_thread((directory / "state.json").read_text)
            self._iterator.set_state(json.loads(text))

        return read()


def _committing(path: Folder, context: Any = None) -> Any:
    """Return an Orbax context in which a path is finished as the place that it is on allows."""
    from orbax.checkpoint import v1 as ocp

    context = ocp.Context() if context is None else context
    if not isinstance(path, pathlib.Path):
        # Orbax chooses the commit file for gs:// by itself, and for s3:// the rename, which is a
        # copy and a deletion of every object there.
        context.atomicity.mode = ocp.options.AtomicityMode.COMMIT_FILE
    return context


# Orbax numbers its saves by a counter of the process, which a save reads several times while it
# begins: two that begin at a time, in two threads, mix up their folders. A study saves the last
# state of a trial beside the first ones of the next.
_STARTING = threading.Lock()


def save(
    path: Folder, arrays: Mapping[str, jax.Array], iterator: Any = None, context: Any = None
) -> Pending:
    """Begin to write arrays and the iterator's state; return once both may change.

    Orbax has copied the arrays to the host by then. Where host memory is the device's own (CPU) it
    holds views of the buffers, and XLA does not reuse a donated buffer that has views: donation
    is safe in either case (tested).
    """
    from orbax.checkpoint import v1 as ocp

    spare()
    # Arrays without elements are left out: there is nothing to write, and `load` makes them anew
    # from their shape.
    items: dict[str, Any] = {_ARRAYS: {k: v for k, v in arrays.items() if math.prod(v.shape)}}
    if iterator is not None:
        items[_ITERATOR] = _checkpointable(iterator)
    with _committing(path, context), _STARTING:
        return ocp.save_checkpointables_async(path, items)


def load(
    path: Folder, abstract: Mapping[str, jax.ShapeDtypeStruct], context: Any = None
) -> dict[str, jax.Array]:
    """Read the named arrays straight into their shardings; the others are not read."""
    import jax
    import jax.numpy as jnp
    from orbax.checkpoint import v1 as ocp

    spare()
    placed = {}
    for name, array in abstract.items():
        # Orbax would otherwise restore with the sharding that is recorded in the checkpoint, which
        # may name devices that this machine does not have. The first device is for callers outside
        # of a run; the arrays of a run's state all have shardings.
        sharding = array.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
        placed[name] = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
    stored = {name: array for name, array in placed.items() if math.prod(array.shape)}
    context = _committing(path, context)
    # Otherwise Orbax insists on the whole tree; what is left over is our own `compare`'s to refuse.
    context.pytree.loading.partial_load = True
    # Orbax has no limit by itself, and would hold all of the files beside the arrays made of them.
    context.memory.read_concurrent_bytes = on_the_way(stored.values())
    # `returned`, because the buffers of the reads, once freed, would else stay with the process for
    # as long as it trains. `save` left out arrays without elements: Orbax would not find them.
    with returned(), context:
        arrays = ocp.load_checkpointables(path, {_ARRAYS: stored})[_ARRAYS] if stored else {}
    return {
        name: arrays[name]
        if name in stored
        else jnp.zeros(array.shape, array.dtype, device=array.sharding)
        for name, array in placed.items()
    }


def load_iterator(path: Folder, iterator: Any) -> None:
    """Set the iterator to its saved state.

    Raises:
      BadInput: The iterator rejects the state.
      CheckpointError: The iterator cannot read the state.
    """
    from orbax.checkpoint import v1 as ocp

    try:
        with without_logs(), _committing(path):
            ocp.load_checkpointables(path, {_ITERATOR: _checkpointable(iterator)})
    except Exception as error:
        # Orbax wraps what the iterator raises, several times; the reason that the user can act on
        # is at the end of the chain.
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, BadInput):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        what = f"the data iterator does not take its state from {path}: {error}"
        raise CheckpointError(
            Problem(what, remedy="restore the data and the version of grain")
        ) from error


def compare(
    saved: Mapping[str, tuple[tuple[int, ...], str]],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    partial: bool,
) -> list[Problem]:
    """Return every array that is missing, left over, or of another shape or dtype.

    Args:
      saved: Shape and dtype name of what the checkpoint holds.
      wanted: The requested arrays.
      partial: Whether the checkpoint may hold more.
    """
    problems = []
    for name, array in wanted.items():
        shape, dtype = tuple(array.shape), str(array.dtype)
        # Types are compared as well: a restore that casts would change the bits of a resumed run.
        want = _describe(shape, dtype)
        if name not in saved:
            problems.append(Problem(f"{name} {want} is not in the checkpoint"))
        elif saved[name] != (shape, dtype):
            there = _describe(*saved[name])
            problems.append(Problem(f"{name} is {there} in the checkpoint, not {want}"))
    if not partial:
        for name in sorted(set(saved) - set(wanted)):
            there = _describe(*saved[name])
            problems.append(Problem(f"{name} {there} of the checkpoint has no place to go"))
    return problems


def _describe(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}{list(shape)}"


@contextlib.contextmanager
def without_logs() -> Iterator[None]:
    """Silence the tracebacks that Orbax logs of errors that we raise and report in one line."""

    def is_not_orbax(record: logging.LogRecord) -> bool:
        return "orbax" not in pathlib.Path(record.pathname).parts

    # A filter on the logger by the path of the file that logs: Orbax logs through absl, and so do
    # others whose messages must stay.
    logger = logging.getLogger("absl")
    logger.addFilter(is_not_orbax)
    try:
        yield
    finally:
        logger.removeFilter(is_not_orbax)


def process_index() -> int:
    """Return which process this is; 0 is the one that commits and deletes."""
    import jax

    return jax.process_index()


def barrier(name: str) -> None:
    """Wait for every process; safe in a thread. `name` must be new each time."""
    import jax

    if jax.process_count() > 1:
        from orbax.checkpoint import v1 as ocp

        asyncio.run(ocp.multihost.sync_global_processes(name, operation_id="luthier"))


def _checkpointable(iterator: Any) -> Any:
    return iterator if hasattr(iterator, "load") else _StateFile(iterator)
