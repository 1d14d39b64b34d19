"""Processes and their devices."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from luthier.errors import BadInput, Problem

_config: Any = jax.config
_GPUS = ("gpu", "cuda", "rocm")
_ORIGIN = "--devices"


def configure(devices: str | None) -> None:
    """Choose the devices to run on, before JAX starts its backends.

    Args:
      devices: `cpu`, `cpu:8` (8 virtual devices), `gpu`, `gpu:4` (the first 4), `cuda`, `rocm` or
        `tpu`; None leaves the choice to JAX. What fits the devices that are up is no error.

    Raises:
      BadInput: The text cannot be read, or other devices are up already.
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
    _config.update("jax_platforms", "cpu" if platform == "cpu" else f"{platform},cpu")


def devices() -> list[jax.Device]:
    """Return all devices of the run, of every process; starts JAX's backends.

    Raises:
      BadInput: The platform that was asked for has no device here.
    """
    wanted = (_config.jax_platforms or "").partition(",")[0]
    remedy = "choose others with --devices, or install the JAX plugin for these"
    try:
        found = list(jax.devices())
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0] or "JAX found none"
        raise BadInput(Problem(f"no {wanted} device: {reason}", _ORIGIN, remedy=remedy)) from error
    # Without a visible GPU, JAX passes over "cuda" in silence.
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
    """The rows of a global batch that one process reads: the `index`-th of `count` equal parts.

    Processes whose devices hold the same rows, as where a tensor or a sequence is shared out among
    processes, read the same part.

    Args:
      index: Which part.
      count: How many parts there are.
      counted: Which of its rows this process counts, bool [rows of the part]: every row of the
        batch is counted by one process.
    """

    index: int
    count: int
    counted: np.ndarray

    @classmethod
    def of(cls, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Share:
        """Return the share of this process.

        Args:
          batch: The entries of a global batch, [rows, ...] each, with their shardings.
        """
        (num_rows,) = {entry.shape[0] for entry in batch.values()}
        needed: dict[int, np.ndarray] = {}
        for entry in batch.values():
            assert entry.sharding is not None
            for device, place in entry.sharding.devices_indices_map(entry.shape).items():
                rows = needed.setdefault(device.process_index, np.zeros(num_rows, bool))
                rows[place[0]] = True
        mine = np.flatnonzero(needed[jax.process_index()])
        start, size = int(mine[0]), len(mine)
        if mine[-1] - start + 1 != size or num_rows % size or start % size:
            start, size = 0, num_rows  # no part by itself: what is needed is taken of all
        earlier = [rows for process, rows in needed.items() if process < jax.process_index()]
        counted = needed[jax.process_index()] & ~np.any([*earlier, np.zeros(num_rows, bool)], 0)
        return cls(start // size, num_rows // size, counted[start : start + size])

    def count_in(self, rows: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return those rows that this process counts.

        Args:
          rows: The entries of its part, [rows of the part, ...] each.
        """
        if self.counted.all():
            return rows
        return {name: array[self.counted] for name, array in rows.items()}

    def global_batch(
        self, rows: Mapping[str, np.ndarray], batch: Mapping[str, jax.ShapeDtypeStruct]
    ) -> dict[str, jax.Array]:
        """Put rows on the devices of this process, as part of global arrays.

        Args:
          rows: The entries of its part, [rows of the part, ...] each; there may be more of them.
          batch: The entries that are wanted, with their shardings.
        """
        return {name: self._global_array(rows[name], entry) for name, entry in batch.items()}

    def _global_array(self, rows: np.ndarray, entry: jax.ShapeDtypeStruct) -> jax.Array:
        rows = np.asarray(rows)
        if jax.process_count() == 1:
            return jax.make_array_from_process_local_data(entry.sharding, rows)
        first = self.index * len(self.counted)

        def part(place: Any) -> np.ndarray:
            start, stop, _ = place[0].indices(entry.shape[0])
            return rows[(slice(start - first, stop - first), *place[1:])]

        return jax.make_array_from_callback(entry.shape, entry.sharding, part)


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
    # JAX refuses to change the number of virtual devices from then on; it has no public question.
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
