"""Arrays and iterators to and from a directory, through Orbax."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import pathlib
from collections.abc import Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from luthier.checkpoint import memory, tensorstore_json
from luthier.errors import BadInput, CheckpointError, Problem

if TYPE_CHECKING:
    import jax

_ARRAYS = "arrays"
_ITERATOR = "iterator"


class Pending(Protocol):
    """A save that goes on in the background."""

    def result(self) -> None:
        """Wait until everything is written, and raise what went wrong."""


class _StateFile:
    """Gives Orbax an iterator that only has `get_state` and `set_state`: one file for all hosts."""

    def __init__(self, iterator: Any):
        self._iterator = iterator

    async def save(self, directory: Any) -> Awaitable[None]:
        """Take the state now; the result writes it."""
        state = json.dumps(self._iterator.get_state())

        async def write() -> None:
            path = await directory.await_creation()
            if process_index() == 0:
                await asyncio.to_thread((path / "state.json").write_text, state)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Return what reads the state and sets it."""

        async def read() -> None:
            text = await asyncio.to_thread((directory / "state.json").read_text)
            self._iterator.set_state(json.loads(text))

        return read()


def save(path: pathlib.Path, arrays: Mapping[str, jax.Array], iterator: Any = None) -> Pending:
    """Begin to write arrays and the iterator's state; return once both may change.

    Orbax has copied the arrays to the host by then. Where host memory is the device's own (CPU) it
    holds views of the buffers, and XLA does not reuse a donated buffer that has views: donation
    is safe in either case (tested).
    """
    from orbax.checkpoint import v1 as ocp

    tensorstore_json.spare()
    items: dict[str, Any] = {_ARRAYS: {k: v for k, v in arrays.items() if math.prod(v.shape)}}
    if iterator is not None:
        items[_ITERATOR] = _checkpointable(iterator)
    return ocp.save_checkpointables_async(path, items)


def load(
    path: pathlib.Path, abstract: Mapping[str, jax.ShapeDtypeStruct], context: Any = None
) -> dict[str, jax.Array]:
    """Read the named arrays straight into their shardings; the others are not read."""
    import jax
    import jax.numpy as jnp
    from orbax.checkpoint import v1 as ocp

    tensorstore_json.spare()
    placed = {}
    for name, array in abstract.items():
        sharding = array.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
        placed[name] = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
    stored = {name: array for name, array in placed.items() if math.prod(array.shape)}
    context = ocp.Context() if context is None else context
    context.pytree.loading.partial_load = True
    context.memory.read_concurrent_bytes = memory.on_the_way(stored.values())
    with memory.returned(), context:
        arrays = ocp.load_checkpointables(path, {_ARRAYS: stored})[_ARRAYS] if stored else {}
    return {
        name: arrays[name]
        if name in stored
        else jnp.zeros(array.shape, array.dtype, device=array.sharding)
        for name, array in placed.items()
    }


def load_iterator(path: pathlib.Path, iterator: Any) -> None:
    """Set the iterator to its saved state.

    Raises:
      BadInput: What the iterator itself says against the state.
      CheckpointError: The iterator cannot read the state.
    """
    from orbax.checkpoint import v1 as ocp

    try:
        with without_logs():
            ocp.load_checkpointables(path, {_ITERATOR: _checkpointable(iterator)})
    except Exception as error:
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
      wanted: What is asked for.
      partial: Whether the checkpoint may hold more.
    """
    problems = []
    for name, array in wanted.items():
        shape, dtype = tuple(array.shape), str(array.dtype)
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
    """Keep Orbax from logging tracebacks of what is raised, and told in one line, anyway."""

    def is_not_orbax(record: logging.LogRecord) -> bool:
        return "orbax" not in pathlib.Path(record.pathname).parts

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
