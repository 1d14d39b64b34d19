"""Processes, their devices, and the rows of a batch that each process reads."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from luthier.errors import BadInput, Problem

_config: Any = jax.config  # `Any`, because its options are attributes that no type declares
_GPUS = ("gpu", "cuda", "rocm")
_ORIGIN = "--devices"


def configure(devices: str | None) -> None:
    """Choose the devices to run on, before JAX starts its backends.

    Args:
      devices: `cpu`, `cpu:8` (8 virtual devices), `gpu`, `gpu:4` (the first 4), `cuda`, `rocm` or
        `tpu`; None leaves the choice to JAX. Devices that run already may be chosen again.

    Raises:
      BadInput: The text is unreadable, or JAX runs on other devices already.
    """
    if devices is None:
        return
    platform, count = _parse(devices)
    if _backend_is_up():
        _check_running(devices, platform, count)
        return
    if platform == "gpu":
        # JAX reads "gpu" as every kind of GPU at once, and fails where one kind is not installed.
        platform = "rocm" if _has_rocm() else "cuda"
    if platform == "cpu" and count is not None:
        _config.update("jax_num_cpu_devices", count)
    elif count is not None:
        _config.update(f"jax_{platform}_visible_devices", ",".join(map(str, range(count))))
    # The CPU stays available as a second backend, because `jax.debug.print` and other callbacks
    # fail without one: outside of `jit` they put their arguments on a CPU device.
    _config.update("jax_platforms", "cpu" if platform == "cpu" else f"{platform},cpu")


def devices() -> list[jax.Device]:
    """Return all devices of the run, of every process; starts JAX's backends.

    Returns:
      The devices, in JAX's order.

    Raises:
      BadInput: The chosen platform has no device here.

    Example:
      >>> import jax
      >>> from luthier import parallel
      >>> parallel.devices() == jax.devices()
      True
    """
    wanted = (_config.jax_platforms or "").partition(",")[0]
    remedy = "choose others with --devices, or install the JAX plugin for these"
    try:
        found = list(jax.devices())
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0] or "JAX found none"
        raise BadInput(Problem(f"no {wanted} device: {reason}", _ORIGIN, remedy=remedy)) from error
    # Without a visible GPU, JAX silently skips "cuda" and falls back to the CPU.
    if wanted in _GPUS and found[0].platform != "gpu":
        raise BadInput(Problem("no GPU can be seen here", _ORIGIN, remedy=remedy))
    return found


def process_index() -> int:
    """Return which of the run's processes this is."""
    return jax.process_index()


def process_count() -> int:
    """Return how many processes the run has."""
    return jax.process_count()


def is_primary() -> bool:
    """Return whether this process is the one that writes records."""
    return jax.process_index() == 0


@dataclasses.dataclass(frozen=True, eq=False)
class Share:
    """The rows of a global batch that one process reads: any subset of them.

    They are those that its devices hold. The chips of a TPU host are neighbours in the torus, but
    not in the order of a mesh, so that their rows are often not contiguous. Processes whose devices
    hold the same rows, for example because a tensor or a sequence is sharded across processes, read
    the same rows.

    Args:
      rows: Indices of its rows within the global batch, ascending, int64 [n].
      counted: Which of its rows this process counts, bool [n]: each row of the batch is counted by
        exactly one process.
      num_rows: Number of rows of the global batch.
    """

    rows: np.ndarray
    counted: np.ndarray
    num_rows: int

    @classmethod
    def of(
        cls,
        batch: Mapping[str, jax.ShapeDtypeStruct],
        reader: Callable[..., Any] | None = None,
    ) -> Share:
        """Return the share of this process.

        Args:
          batch: The entries of a global batch, [rows, ...] each, with their shardings.
          reader: The method `iterator` or `batches` of a data node, to be called with `arguments`.
            One without an argument `rows` can read an equal part of the batch or all of it, and its
            share is the smaller of these that holds the rows of the devices. None means that it has
            the argument.

        Returns:
          The share.
        """
        # From the sharding, not from `process_index / process_count`: every process computes for
        # all of them which rows their devices hold, so that they agree, without a message, on which
        # one counts a row that several hold (the first).
        (num_rows,) = {entry.shape[0] for entry in batch.values()}
        needed: dict[int, np.ndarray] = {}
        for entry in batch.values():
            assert entry.sharding is not None
            for device, place in entry.sharding.devices_indices_map(entry.shape).items():
                rows = needed.setdefault(device.process_index, np.zeros(num_rows, bool))
                rows[place[0]] = True
        own = needed[jax.process_index()]
        rows = np.flatnonzero(own).astype(np.int64)
        # By the signature alone: what is behind `**others` may not know of rows either.
        by_number = reader is None or "rows" in inspect.signature(reader).parameters
        # One that reads equal parts only, while the rows are none, reads all; `at` picks from them.
        if not by_number and _part(rows, num_rows) is None:
            rows = np.arange(num_rows, dtype=np.int64)
        # The appended zeros are for process 0, before which there is no other.
        earlier = [held for process, held in needed.items() if process < jax.process_index()]
        counted = own & ~np.any([*earlier, np.zeros(num_rows, bool)], 0)
        return cls(rows, counted[rows], num_rows)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the reader: which of how many equal parts, or else the rows' indices."""
        part = _part(self.rows, self.num_rows)
        if part is None:
            return {"rows": self.rows}
        index, count = part
        return {"process_index": index, "process_count": count}

    def count_in(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the part of a batch that this process counts.

        Args:
          batch: The entries of this process's rows, [n, ...] each.

        Returns:
          Arrays by name.
        """
        if self.counted.all():
            return batch
        return {name: array[self.counted] for name, array in batch.items()}

    def global_batch(
        self, batch: Mapping[str, np.ndarray], entries: Mapping[str, jax.ShapeDtypeStruct]
    ) -> dict[str, jax.Array]:
        """Put rows on the devices of this process, as part of global arrays.

        Args:
          batch: The entries of this process's rows, [n, ...] each; other entries are ignored.
          entries: The entries of the global batch, with their shardings.

        Returns:
          Arrays [rows, ...] by name.
        """
        if jax.process_count() == 1:
            # All entries by one call: each takes a tenth of a millisecond, as long as some steps.
            rows = {name: np.asarray(batch[name]) for name in entries}
            return jax.device_put(rows, {name: entry.sharding for name, entry in entries.items()})
        return {name: self._global_array(batch[name], entry) for name, entry in entries.items()}

    def _global_array(self, rows: np.ndarray, entry: jax.ShapeDtypeStruct) -> jax.Array:
        rows = np.asarray(rows)
        # Each local device asks a callback for its piece, since the rows of a process are any
        # subset of the batch.
        assert len(rows) == len(self.rows), f"{len(rows)} rows for a share of {len(self.rows)}"
        assert entry.sharding is not None
        return jax.make_array_from_callback(
            entry.shape, entry.sharding, lambda place: self.at(rows, place)
        )

    def at(self, rows: np.ndarray, place: Any) -> np.ndarray:
        """Return the piece of a global array that a device of this process holds.

        Args:
          rows: The entry's rows that were read, [n, ...].
          place: Index of the piece within the global array: a tuple with a slice of every
            axis, as JAX has it.

        Returns:
          The piece [m, ...].
        """
        start, stop, _ = place[0].indices(self.num_rows)
        # All rows from start to stop were read, and rows ascend: so they are contiguous.
        first = int(np.searchsorted(self.rows, start))
        return rows[(slice(first, first + stop - start), *place[1:])]


def _part(rows: np.ndarray, num_rows: int) -> tuple[int, int] | None:
    """Return index and count of the equal part of a batch that rows are; None if they are none."""
    start, size = int(rows[0]), len(rows)
    if rows[-1] - start + 1 != size or num_rows % size or start % size:
        return None
    return start // size, num_rows // size


def _parse(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(cpu|gpu|cuda|rocm|tpu)(?::([1-9]\d{0,5}))?", text.strip())
    if match is None:
        remedy = "write cpu, cpu:8, gpu, gpu:4, cuda, rocm or tpu"
        raise BadInput(Problem(f"cannot read {text!r}", _ORIGIN, remedy=remedy))
    platform, count = match.groups()
    if platform == "tpu" and count:
        remedy = "write tpu: all chips of a slice run together"
        raise BadInput(Problem(f"cannot choose {count} chips of a TPU", _ORIGIN, remedy=remedy))
    return platform, int(count) if count else None


def _has_rocm() -> bool:
    return any(find_spec(f"jax_rocm{version}_plugin") for version in (7, 60))


def _backend_is_up() -> bool:
    # JAX has no public query for whether its backends have started. But from then on it refuses to
    # change the number of virtual devices: so that is tried, and undone.
    count = _config.jax_num_cpu_devices
    try:
        _config.update("jax_num_cpu_devices", 1 if count != 1 else 2)
    except RuntimeError:
        return True
    _config.update("jax_num_cpu_devices", count)
    return False


def _check_running(text: str, platform: str, count: int | None) -> None:
    running = jax.devices()
    kind = "gpu" if platform in _GPUS else platform
    if running[0].platform == kind and count in (None, len(running)):
        return
    what = f"{text} comes too late: JAX runs on {running[0].platform}:{len(running)}"
    remedy = "choose devices before the first array is made (in a notebook: restart the kernel)"
    raise BadInput(Problem(what, _ORIGIN, remedy=remedy))
