"""Decisions that all processes take alike at every batch, checks between them, and slow hosts.

Decisions such as "save and stop after this step" must fall at the same step in every process, or
one would wait in a collective that the others never join. They are exchanged with each batch over
JAX's coordination service, by the thread that feeds batches, ahead of the step. So the compiled
step needs no collective for it, and the exchange costs no time on the devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import platform
import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from luthier import graph as graphs
from luthier.errors import LockLost, RunError
from luthier.graph import Graph
from luthier.parallel import distributed
from luthier.records import read_facts
from luthier.storage import LineWriter, run_error

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Agreed:
    """Values that all processes agree on at a batch, so that they take the same decisions.

    Args:
      tokens: Targets that count, over all hosts.
      seconds: Seconds that the run has trained, by the clock of the primary.
      stop: Reason to save and leave the run after this batch, or None.
      missing: Why a process has no rows of this batch, so that no process trains on it; or empty.
    """

    tokens: int
    seconds: float
    stop: str | None
    missing: str = ""


class Agreeing:
    """Agrees with the other processes on every batch, beside the steps.

    Args:
      requested: Returns why this process wants to stop, or None.
      times: Measures how long this process takes.
    """

    def __init__(self, requested: Callable[[], str | None], times: Times):
        self.times = times
        self._requested = requested
        # The same processes may train one run after another, as a worker of a sweep does.
        # Exchanges are found by name in a store that lives as long as the processes do, so each run
        # needs names of its own.
        number = distributed.from_primary(lambda: next(_numbers))
        self._rounds = distributed.Rounds(f"batches/{number}")
        self.seconds = 0.0
        self.batches = 0

    def __call__(
        self,
        tokens: int,
        give_up: Callable[[], bool],
        batch_seconds: float = 0.0,
        missing: str = "",
    ) -> Agreed:
        """Agree on the next batch. Raises as `luthier.parallel.distributed.Rounds`.

        Args:
          tokens: Targets that count in the rows of this process.
          give_up: Whether nobody waits for the batch any more.
          batch_seconds: Seconds taken to make these rows.
          missing: Why this process has no rows; empty if it has them.

        Returns:
          The result of all processes, the same in each.
        """

        def decide(
            messages: Sequence[tuple[int, str | None, dict[str, Any] | None, str]],
        ) -> tuple[int, float, str | None, str]:
            # One process that was asked to stop stops all.
            stop = next((reason for _, reason, *_ in messages if reason), None)
            missing = next((why for *_, why in messages if why), "")
            # `decide` runs in the primary only, with the messages of all processes in their order;
            # its result is what every process returns. So the decision cannot differ, even where
            # clocks and signals do.
            if times := [own for *_, own, _ in messages if own is not None]:
                self.times.take_in(times)
            # The seconds are the primary's: intervals in seconds are due at the same step
            # everywhere.
            return sum(count for count, *_ in messages), self.seconds, stop, missing

        self.batches += 1
        # JSON values, because they travel through the key-value store of JAX's coordination
        # service.
        mine = (tokens, self._requested(), self.times.mine(batch_seconds), missing)
        return Agreed(*self._rounds.exchange(mine, decide, give_up))


# What must be the same in all processes before the first step.

_DIGITS = 12


def check_same(graph: Graph, packages: Sequence[str] = ()) -> None:
    """Compare the experiment, the versions and the source with all other processes.

    No backend is started for it, so that processes of other versions never meet on devices.

    Args:
      graph: The experiment graph.
      packages: The user's modules that it may name.

    Raises:
      BadInput: Processes differ; one line for each that differs from the first.
    """
    if not distributed.is_several():
        return
    # The record fingerprint shows any difference, the program fingerprint those that would compile
    # other programs, which hang in their first collective instead of failing.
    recorded, program = (
        graphs.fingerprint(graph, kind=kind)[:_DIGITS] for kind in ("record", "program")
    )
    facts = {"the experiment": f"{recorded} (program {program})"}
    distributed.agree(facts | read_facts(packages))


def check_devices() -> None:
    """Compare the number and kind of the devices of this process with all others; starts them.

    Raises:
      BadInput: Processes differ.

    Example:
      >>> from luthier import trainer
      >>> trainer.check_devices()  # in a single process, there is nothing to compare with
    """
    if distributed.is_several():
        local = jax.local_devices()
        distributed.agree({"its devices": f"{len(local)} x {local[0].device_kind}"})


# How long a device takes for a small work of its own, in which it waits for no other host.
#
# The steps of a run take equally long on all hosts: the fast ones wait for the slow one in every
# sum over devices. What a host needs for itself shows in such a work only. It is put behind a step
# that is on its way, and a thread waits for both, so that training continues meanwhile.

_NUM_PRODUCTS = 4


# The time of a step says nothing about who is slow: every host waits for the slowest in its
# collectives. So a few products without a collective are queued behind a step on each device, and a
# thread measures from the moment at which the step's result is ready to that at which the products
# are.
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
          vector: The scalars of the step, on all devices.
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
        # `0 * part` ties the work to the step: without a dependency the device could run it at any
        # time.
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
            # A step that failed is raised by the loop.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                if isinstance(item, list):
                    self._found(max(_seconds(*pair) for pair in item))
                else:
                    self._works = _compiled(item)
            self._busy = False


def _seconds(part: jax.Array, work: jax.Array) -> float:
    """Return the seconds of a work that began when a part of a step was ready."""
    part.block_until_ready()
    start = time.perf_counter()
    work.block_until_ready()
    return time.perf_counter() - start


def _compiled(vector: jax.Array) -> list[tuple[Callable[..., Any], jax.Array]]:
    """Return the work and its values for each device; virtual devices of a CPU count as one."""
    works: list[tuple[Callable[..., Any], jax.Array]] = []
    for shard in vector.addressable_shards:
        # Long enough to be measured, and short beside a step. All virtual devices of a CPU share
        # its cores, so the first one stands for all of them.
        is_cpu = shard.device.platform == "cpu"
        size, dtype = (384, jnp.float32) if is_cpu else (4096, jnp.bfloat16)
        # Rows sum to one, so that repeated products neither overflow nor vanish, which could change
        # the time that they take.
        values = jax.device_put(np.full((size, size), 1 / size, dtype), shard.device)
        work = jax.jit(_products).lower(values, shard.data).compile()
        # Once for warm-up: the first call of a program also loads it.
        work(values, shard.data).block_until_ready()
        works.append((work, values))
        if is_cpu:
            break
    return works


def _products(values: jax.Array, part: jax.Array) -> jax.Array:
    # It begins after the step, whose result it takes.
    start = values + 0 * part.ravel()[0].astype(values.dtype)
    return jax.lax.fori_loop(0, _NUM_PRODUCTS, lambda _, x: x @ values, start)


# How long each host takes, and which of them the others wait for.

HOSTS_FILE = "hosts.jsonl"
"""The file of the hosts' times, in the run's directory: a line for every exchange."""

EVERY_STEPS = 100
"""Interval at which hosts exchange their times."""

PROBE_STEPS = 20
"""Interval at which a device is timed by itself."""

# Devices are timed by one fixed product of matrices, batches by work that differs from one to the
# next, hence the wider margin of batches. A step that waits for data takes a little longer than the
# batch that it waits for, hence a part of it below 1.
_SLOW_BATCH, _SLOW_DEVICE = 1.5, 1.3
_LIMITING = 0.8


@dataclasses.dataclass(frozen=True)
class HostTimes:
    """The recent times of one process.

    Args:
      process: Index of the process, from 0.
      host: The name of its machine.
      step_seconds: Mean time from one step to the next, which is that of the slowest host.
      batch_seconds: Mean time to make its part of a batch, beside the steps.
      device_seconds: Median time of a small work on its slowest device; None before the first.
    """

    process: int
    host: str
    step_seconds: float
    batch_seconds: float
    device_seconds: float | None


class Times:
    """Measures this process; in the primary, compares all of them.

    Args:
      path: The file that gets a line of all hosts; written by the primary only.
      fence: Raises `LockLost` where another process writes here now; called before each write.
    """

    def __init__(self, path: str | os.PathLike[str], fence: Callable[[], None] = lambda: None):
        self._path, self._fence = path, fence
        self._file: LineWriter | None = None
        self._first_step = 0
        self._notify: Callable[[str], None] = lambda line: None
        self._batches: list[float] = []
        self._works: list[float] = []
        self._probe = Probe(self._works.append)
        self._number = 0
        self._steps = 0
        self._since = time.perf_counter()
        self._suspects: dict[int, str] = {}
        self._reported: set[int] = set()

    def begin(self, step: int, notify: Callable[[str], None]) -> None:
        """Note the step at which training starts or resumes.

        Args:
          step: Steps done.
          notify: Shows the user a line; may be called from any thread.
        """
        self._first_step, self._notify, self._since = step, notify, time.perf_counter()

    def stepped(self, vector: jax.Array) -> None:
        """Note a step that is on its way.

        Args:
          vector: The scalars of the step.
        """
        self._steps += 1
        if self._steps % PROBE_STEPS == 0:
            self._probe.start(vector)

    def mine(self, batch_seconds: float) -> dict[str, Any] | None:
        """Return the times that this process reports with a batch; None for most batches.

        Args:
          batch_seconds: Seconds taken to make the batch.

        Returns:
          Seconds by name, or None.
        """
        self._batches.append(batch_seconds)
        self._number += 1
        if self._number % EVERY_STEPS:
            return None
        now = time.perf_counter()
        # A copy, and a clear below: the thread of the probe may append between the two, which loses
        # one sample of a median.
        batches, works = self._batches, self._works[:]
        elapsed, self._since, self._batches = now - self._since, now, []
        self._works.clear()
        return dataclasses.asdict(
            HostTimes(
                process=distributed.process_index(),
                host=platform.node(),
                step_seconds=elapsed / len(batches),
                batch_seconds=statistics.fmean(batches),
                device_seconds=statistics.median(works) if works else None,
            )
        )

    def take_in(self, reports: Sequence[dict[str, Any]]) -> None:
        """Record the reports of all processes, and name those slow for the second time in a row.

        Args:
          reports: The results of `mine`, one per process.
        """
        line = {"step": self._first_step + self._number, "hosts": list(reports)}
        try:
            if self._file is None:
                self._file = LineWriter(self._path, self._fence)
            self._file.add(json.dumps(line))
            self._file.commit()
        except OSError as error:
            self._notify(f"{run_error('write', self._path, error)}; training continues")
        except (RunError, LockLost) as error:  # the metrics, which are essential, end the run
            self._notify(f"{error}; training continues")
        slow = stragglers([HostTimes(**each) for each in reports])
        # Twice in a row, and once until it was well again: a single slow interval is a garbage
        # collection or a checkpoint.
        for process in slow.keys() & self._suspects.keys() - self._reported:
            self._notify(slow[process])
        self._reported = (self._reported | self._suspects.keys()) & slow.keys()
        self._suspects = slow

    def close(self) -> None:
        """Stop measuring."""
        self._probe.close()
        if self._file is not None:
            self._file.close()


def stragglers(times: Sequence[HostTimes]) -> dict[int, str]:
    """Return the processes that the others wait for, with a line about each.

    Args:
      times: Those of all processes.

    Returns:
      Lines by the index of the process; empty where all are alike.

    Example:
      >>> from luthier import trainer
      >>> fast = trainer.HostTimes(0, "host-0", 1.0, 0.1, 0.01)
      >>> other = trainer.HostTimes(1, "host-1", 1.0, 0.1, 0.01)
      >>> slow = trainer.HostTimes(2, "host-2", 1.0, 0.9, 0.01)
      >>> list(trainer.stragglers([fast, other, slow]))
      [2]
    """
    lines = {}
    for own in times:
        others = [other for other in times if other is not own]
        who = f"process {own.process} of {len(times)} on {own.host} is slow"
        # The median of the others, because a mean would be moved by a second slow host.
        usual = statistics.median(other.batch_seconds for other in others)
        # Making batches slowly does not matter as long as it stays hidden behind the step.
        limiting = own.batch_seconds > _LIMITING * own.step_seconds
        if limiting and own.batch_seconds > _SLOW_BATCH * usual:
            lines[own.process] = (
                f"{who}: preparing its part of a batch takes {_short(own.batch_seconds)}, and "
                f"{_short(usual)} on the others; a step takes {_short(own.step_seconds)}"
            )
        known = [other.device_seconds for other in others if other.device_seconds is not None]
        if own.device_seconds is not None and known:
            usual = statistics.median(known)
            # In the place of a line about batches: one for each process, and slow devices hold up
            # every step, however fast its data come.
            if own.device_seconds > _SLOW_DEVICE * usual:
                lines[own.process] = (
                    f"{who}: a small computation takes {_short(own.device_seconds)} on its "
                    f"devices, and {_short(usual)} on the others"
                )
    return lines


def _short(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
