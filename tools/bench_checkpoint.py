"""Measure how long a save blocks the step loop, against bare Orbax; and memory over many saves.

* `blocking`: the time in which `Store.save` keeps the caller, over that of Orbax's own
  `save_checkpointables_async` with the same arrays and the same small JSON state. Both sides take
  turns in one process: each saves twice, and the second is measured, which finds memory and disk as
  the side's own save left them. Each save is waited for outside of the measured time. Medians are
  compared: in wall time, and in CPU time of the calling thread, which other programs do not touch.
  Orbax has here what spares it TensorStore's JSON (`luthier.checkpoint.tensorstore_json`), too.
* `memory`: resident memory after each of many saves, and how many small objects Python has more
  after each; each side in a process of its own, Orbax as it comes.

Command: python tools/bench_checkpoint.py [--mebibytes 64] [--arrays 100] [--rounds 30]
  [--saves 200] [--profile] [--json FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import json
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from luthier.checkpoint import Checkpoints, Store
from tools.bench import report

SIDES = ("luthier", "orbax")
POSITION = {"progress": {"steps": 100, "tokens": 10_000, "epochs": 0.1, "seconds": 9.5}}


class Position:
    """A data iterator, as far as a save sees it."""

    def get_state(self) -> dict:
        """Return the position."""
        return POSITION


def make_state(mebibytes: float, num_arrays: int) -> dict[str, jax.Array]:
    """Return arrays by name, of the given size together."""
    each = max(int(mebibytes * 2**20 / 4 / num_arrays), 1)
    draw = np.random.default_rng(0)
    arrays = {
        f"layer_{number}/kernel": jax.device_put(draw.standard_normal(each, np.float32))
        for number in range(num_arrays)
    }
    return jax.block_until_ready(arrays)


def timed(call: Callable[[], object]) -> tuple[float, float, object]:
    """Return wall seconds, CPU seconds of this thread, and what the call returned."""
    wall, cpu = time.perf_counter(), time.thread_time()
    result = call()
    return time.perf_counter() - wall, time.thread_time() - cpu, result


def measure_blocking(state: dict[str, jax.Array], folder: Path, rounds: int) -> list[dict]:
    """Let both sides save in turns, each twice, as its own save before leaves memory and disk."""
    store = Store(folder / "luthier", Checkpoints(keep_latest=1))
    numbers = itertools.count()

    def ours() -> tuple[float, float]:
        step = next(numbers)
        *seconds, _ = timed(lambda: store.save(step, state, Position(), {"position": POSITION}))
        store.wait()
        return tuple(seconds)

    def bare() -> tuple[float, float]:
        path = folder / f"orbax-{next(numbers)}"
        items = {"arrays": state, "rest": {"iterator": POSITION, "extra": {"position": POSITION}}}
        *seconds, pending = timed(lambda: ocp.save_checkpointables_async(path, items))
        pending.result()
        shutil.rmtree(path)
        return tuple(seconds)

    sides = {"luthier": ours, "orbax": bare}
    seconds: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides) if number % 2 else reversed(sides):
            sides[side]()
            seconds[side].append(sides[side]())
    store.close()
    return [
        row(
            f"blocking a save, {kind}, ms",
            *(1e3 * statistics.median(s[place] for s in seconds[side]) for side in SIDES),
            "ratio <= 1.1",
        )
        for place, kind in enumerate(("wall", "CPU of the thread"))
    ]


def row(what: str, ours: float, bare: float, limit: str | None = None) -> dict:
    """Return a row of the table; what is about zero has no ratio."""
    ratio = ours / bare if ours >= 0 and bare > 0 else None
    return {"what": what, "luthier": ours, "bare Orbax": bare, "ratio": ratio, "limit": limit}


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_memory(num_arrays: int, folder: Path, saves: int) -> list[dict]:
    """Let each side save again and again; compare the second quarter with the last."""
    told = {}
    for side in SIDES:
        command = [sys.executable, __file__, "--arrays", str(num_arrays), "--saves", str(saves)]
        command += ["--folder", str(folder), "--memory-of", side]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        told[side] = json.loads(done.stdout)
    whats = (
        ("early_mib", f"resident memory, second quarter of {saves} saves, MiB"),
        ("late_mib", "resident memory, last quarter, MiB"),
        ("growth_kib", "resident memory left by a save, KiB"),
        ("blocks", "small objects left by a save"),
    )
    return [row(what, *(told[side][key] for side in SIDES)) for key, what in whats]


def memory_of(side: str, num_arrays: int, folder: Path, saves: int) -> dict[str, float]:
    """Save with one side in this process."""
    state = make_state(4, num_arrays)
    sizes, blocks = np.zeros(saves), np.zeros(saves)
    saving = luthier_saves if side == "luthier" else orbax_saves
    for step, _ in zip(range(saves), saving(state, folder), strict=False):
        gc.collect()
        sizes[step], blocks[step] = resident_bytes(), sys.getallocatedblocks()
    quarter = max(saves // 4, 1)
    early, late = (
        np.median(sizes[at]) for at in (slice(quarter, 2 * quarter), slice(-quarter, None))
    )
    return {
        "early_mib": early / 2**20,
        "late_mib": late / 2**20,
        "growth_kib": (late - early) / 2**10 / (2 * quarter),
        "blocks": (blocks[-1] - blocks[quarter - 1]) / max(saves - quarter, 1),
    }


def luthier_saves(state: dict[str, jax.Array], folder: Path) -> Iterator[None]:
    """Save for ever; yield after each save."""
    with Store(folder / "luthier-memory", Checkpoints(keep_latest=1)) as store:
        for step in itertools.count():
            store.save(step, state, Position(), {"position": POSITION})
            store.wait()
            store.committed()
            yield


def orbax_saves(state: dict[str, jax.Array], folder: Path) -> Iterator[None]:
    """Save for ever; yield after each save."""
    for step in itertools.count():
        path = folder / f"orbax-memory-{step}"
        items = {"arrays": state, "rest": {"iterator": POSITION, "extra": {"position": POSITION}}}
        ocp.save_checkpointables_async(path, items).result()
        shutil.rmtree(path)
        yield


def profile(state: dict[str, jax.Array], folder: Path) -> None:
    """Print where the calling thread spends the time of a save."""
    profiler = cProfile.Profile()
    with Store(folder / "profile", Checkpoints(keep_latest=1)) as store:
        store.save(0, state, Position(), {})
        store.wait()
        for step in range(1, 11):
            profiler.enable()
            store.save(step, state, Position(), {"position": POSITION})
            profiler.disable()
            store.wait()
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(45)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=float, default=64)
    parser.add_argument("--arrays", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--saves", type=int, default=200)
    parser.add_argument("--folder", help="where to save (default: a temporary folder)")
    parser.add_argument("--profile", action="store_true", help="only tell where the time goes")
    parser.add_argument("--json", type=Path, help="also write the table here")
    parser.add_argument("--memory-of", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder, num_arrays, saves = Path(name), arguments.arrays, arguments.saves
        if arguments.memory_of:
            print(json.dumps(memory_of(arguments.memory_of, num_arrays, folder, saves)))
            return 0
        state = make_state(arguments.mebibytes, num_arrays)
        if arguments.profile:
            profile(state, folder)
            return 0
        rows = measure_blocking(state, folder, arguments.rounds)
        del state
        if saves:
            rows += measure_memory(num_arrays, folder, saves)
    settings = {"mebibytes": arguments.mebibytes, "arrays": num_arrays, "saves": saves}
    notes = (
        f"{num_arrays} arrays of {arguments.mebibytes:g} MiB together where time is measured, of "
        "4 MiB where memory is.",
        "What blocks is measured in turns in one process, memory in a process for each side.",
    )
    made = report.Report("checkpoint", settings, rows, notes)
    print(report.table(made))
    if arguments.json:
        report.write(made, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
