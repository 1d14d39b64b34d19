"""How long a device takes for a small work of its own, in which it waits for no other host.

The steps of a run take equally long on all hosts: the fast ones wait for the slow one in every sum
over devices. What a host needs for itself shows in such a work only. It is put behind a step that
is on its way, and a thread waits for both, so that training goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_NUM_PRODUCTS = 4


class Probe:
    """Times the work on the devices of this process.

    Args:
      found: Is given the seconds that the slowest device took; called by another thread.
    """

    def __init__(self, found: Callable[[float], None]):
        self._found = found
        self._works: list[tuple[Callable[..., Any], jax.Array]] = []
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._busy = False
        self._thread: threading.Thread | None = None

    def start(self, vector: jax.Array) -> None:
        """Put the work behind a step; nothing happens while an earlier one is being timed.

        Args:
          vector: What the step returns, on all devices.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._time, name="luthier-probe", daemon=True)
            self._thread.start()
        if self._busy:
            return
        self._busy = True
        if not self._works:
            self._queue.put(vector)  # the thread compiles
            return
        parts = [shard.data for shard in vector.addressable_shards]
        self._queue.put(
            [
                (part, work(values, part))
                for part, (work, values) in zip(parts, self._works, strict=False)
            ]
        )

    def close(self) -> None:
        """Let the thread end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _time(self) -> None:
        while (item := self._queue.get()) is not None:
            # A step that failed is told by the loop.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                if isinstance(item, list):
                    self._found(max(_seconds(*pair) for pair in item))
                else:
                    self._works = _compiled(item)
            self._busy = False


def _seconds(part: jax.Array, work: jax.Array) -> float:
    """Return what a work took that began when a part of a step was ready."""
    part.block_until_ready()
    start = time.perf_counter()
    work.block_until_ready()
    return time.perf_counter() - start


def _compiled(vector: jax.Array) -> list[tuple[Callable[..., Any], jax.Array]]:
    """Return the work and its values for each device; virtual devices of a CPU count as one."""
    works: list[tuple[Callable[..., Any], jax.Array]] = []
    for shard in vector.addressable_shards:
        is_cpu = shard.device.platform == "cpu"
        size, dtype = (384, jnp.float32) if is_cpu else (4096, jnp.bfloat16)
        values = jax.device_put(np.full((size, size), 1 / size, dtype), shard.device)
        work = jax.jit(_products).lower(values, shard.data).compile()
        work(values, shard.data).block_until_ready()
        works.append((work, values))
        if is_cpu:
            break
    return works


def _products(values: jax.Array, part: jax.Array) -> jax.Array:
    # It begins after the step, whose result it takes.
    start = values + 0 * part.ravel()[0].astype(values.dtype)
    return jax.lax.fori_loop(0, _NUM_PRODUCTS, lambda _, x: x @ values, start)
