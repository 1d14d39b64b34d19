"""Measure how long a save blocks the step loop, against bare Orbax; and memory over many saves.

* `blocking`: the time in which `Store.save` keeps the caller, over that of Orbax's own
  `save_checkpointables_async` with the same arrays and the same small JSON state. Both sides take
  turns in one process, each save is waited for outside of the measured time, and medians are
  compared: in wall time, and in CPU time of the calling thread, which other programs do not touch.
* `memory`: resident memory after each of many saves, and how many small objects Python has more
  after each. TensorStore leaves some behind whenever it gives Python what was JSON, which Orbax
  asks for once for each array and twice for each save: that share is measured alone, beside it.

Command: python tools/bench_checkpoint.py [--mebibytes 64] [--arrays 100] [--rounds 30]
  [--saves 200] [--profile] [--json FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import tensorstore as ts
from orbax.checkpoint import v1 as ocp

from luthier.checkpoint import Checkpoints, Store

POSITION = {"progress": {"steps": 100, "tokens": 10_000, "epochs": 0.1, "seconds": 9.5}}


class Iterator:
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


def measure_blocking(state: dict[str, jax.Array], folder: Path, rounds: int) -> dict:
    """Let both sides save in turns."""
    seconds: dict[str, list[tuple[float, float]]] = {"luthier": [], "orbax": []}
    store = Store(folder / "luthier", Checkpoints(keep_latest=1))
    for step in range(rounds + 2):
        *ours, _ = timed(
            lambda step=step: store.save(step, state, Iterator(), {"position": POSITION})
        )
        store.wait()
        path = folder / f"orbax-{step}"
        items = {"arrays": state, "rest": {"iterator": POSITION, "extra": {"position": POSITION}}}
        *bare, pending = timed(
            lambda path=path, items=items: ocp.save_checkpointables_async(path, items)
        )
        pending.result()
        shutil.rmtree(path)
        if step >= 2:
            seconds["luthier"].append(tuple(ours))
            seconds["orbax"].append(tuple(bare))
    store.close()
    report: dict = {}
    for place, kind in enumerate(("wall", "cpu")):
        medians = {side: statistics.median(s[place] for s in seconds[side]) for side in seconds}
        ratio = medians["luthier"] / medians["orbax"]
        report[kind] = {f"{side}_ms": 1e3 * value for side, value in medians.items()}
        report[kind]["ratio"] = ratio
    return report


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_memory(state: dict[str, jax.Array], folder: Path, saves: int) -> dict:
    """Save again and again; compare the second quarter with the last."""
    sizes, blocks = [], []
    with Store(folder / "memory", Checkpoints(keep_latest=1)) as store:
        for step in range(saves):
            store.save(step, state, Iterator(), {"position": POSITION})
            store.wait()
            gc.collect()
            sizes.append(resident_bytes())
            blocks.append(sys.getallocatedblocks())
    quarter = max(saves // 4, 1)
    early, late = (
        statistics.median(sizes[quarter : 2 * quarter]),
        statistics.median(sizes[-quarter:]),
    )
    return {
        "saves": saves,
        "early_mib": early / 2**20,
        "late_mib": late / 2**20,
        "growth_kib_per_save": (late - early) / 2**10 / (2.5 * quarter),
        "blocks_per_save": (blocks[-1] - blocks[quarter - 1]) / max(saves - quarter, 1),
        "blocks_of_tensorstore": len(state) * left_by(_spec) + 2 * left_by(_metrics),
    }


def _spec() -> object:
    return ts.KvStore.Spec({"driver": "file", "path": "/tmp/checkpoint/"}).to_json()


def _metrics() -> object:
    return ts.experimental_collect_matching_metrics("/tensorstore/kvstore/")


def left_by(call: Callable[[], object], calls: int = 200) -> float:
    """Return how many blocks of memory Python has more after each call, whose result is dropped."""
    call()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(calls):
        call()
    gc.collect()
    return (sys.getallocatedblocks() - before) / calls


def profile(state: dict[str, jax.Array], folder: Path) -> None:
    """Print where the calling thread spends the time of a save."""
    profiler = cProfile.Profile()
    with Store(folder / "profile", Checkpoints(keep_latest=1)) as store:
        store.save(0, state, Iterator(), {})
        store.wait()
        for step in range(1, 11):
            profiler.enable()
            store.save(step, state, Iterator(), {"position": POSITION})
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
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    state = make_state(arguments.mebibytes, arguments.arrays)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.profile:
            profile(state, Path(folder))
            return 0
        report = {"mebibytes": arguments.mebibytes, "arrays": arguments.arrays}
        report |= measure_blocking(state, Path(folder), arguments.rounds)
        for kind in ("wall", "cpu"):
            figures = report[kind]
            print(
                f"blocking, {kind:<4}  luthier {figures['luthier_ms']:8.2f} ms   "
                f"orbax {figures['orbax_ms']:8.2f} ms   ratio {figures['ratio']:.3f}"
            )
        if arguments.saves:
            small = make_state(4, arguments.arrays)
            memory = report["memory"] = measure_memory(small, Path(folder), arguments.saves)
            print(
                f"memory over {memory['saves']} saves: {memory['early_mib']:.1f} MiB in the second "
                f"quarter, {memory['late_mib']:.1f} MiB in the last: "
                f"{memory['growth_kib_per_save']:+.1f} KiB a save"
            )
            print(
                f"small objects left by a save: {memory['blocks_per_save']:.0f}; by TensorStore's "
                f"own calls in it: {memory['blocks_of_tensorstore']:.0f}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
