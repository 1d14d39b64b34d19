"""Measure how long a save blocks the step loop, against bare Orbax; and memory over many saves.

* `blocking`: the time in which `Store.save` keeps the caller, over that of Orbax's own
  `save_checkpointables_async` with the same arrays and the same small JSON state. Both sides take
  turns in one process: each saves twice, and the second is measured, which finds memory and disk as
  the side's own save left them. Each save is waited for outside of the measured time. Medians are
  compared: in wall time, and in CPU time of the calling thread, which other programs do not touch.
  Orbax has here what spares it TensorStore's JSON (`luthier.checkpoint.arrays`), too.
* `commit` (with `--processes 4`): the time from the call of a save until it is committed, over that
  in which the slowest process has written its arrays, and what each process reads back meanwhile,
  by the kernel's count. The state is sharded over the processes, one device each.
* `memory`: resident memory after each of many saves, and how many small objects Python has more
  after each; each side in a process of its own, Orbax as it comes.

Command: python tools/bench/checkpoint.py [--mebibytes 64] [--arrays 100] [--rounds 20]
  [--saves 200] [--profile] [--json FILE]
python tools/bench/checkpoint.py --processes 4 --mebibytes 1024 [--rounds 5]
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
import socket
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from luthier.checkpoint import Checkpoints, Store
from luthier.checkpoint import arrays as arrays_lib
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
            "ratio <= 1.05",
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
    results = {}
    for side in SIDES:
        command = [sys.executable, __file__, "--arrays", str(num_arrays), "--saves", str(saves)]
        command += ["--folder", str(folder), "--memory-of", side]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        results[side] = json.loads(done.stdout)
    whats = (
        ("early_mib", f"resident memory, second quarter of {saves} saves, MiB"),
        ("late_mib", "resident memory, last quarter, MiB"),
        ("growth_kib", "resident memory left by a save, KiB"),
        ("blocks", "small objects left by a save"),
    )
    return [row(what, *(results[side][key] for side in SIDES)) for key, what in whats]


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


def measure_commit(mebibytes: float, num_processes: int, folder: Path, rounds: int) -> list[dict]:
    """Let several processes save one state; compare the commit with the slowest writer."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    command = [sys.executable, __file__, "--mebibytes", str(mebibytes), "--rounds", str(rounds)]
    command += ["--folder", str(folder), "--processes", str(num_processes), "--address", address]
    processes = [
        subprocess.Popen([*command, "--process", str(index)], stdout=subprocess.PIPE)
        for index in range(num_processes)
    ]
    results = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    rows = []
    for seconds in zip(*(one["seconds"] for one in results), strict=True):  # for each save
        rows.append((max(committed for _, committed in seconds), max(w for w, _ in seconds)))
    committed, written = (statistics.median(column) for column in zip(*rows, strict=True))
    table = [
        {
            "what": f"commit of {num_processes} processes over the slowest writer, s",
            "luthier": committed,
            "bare Orbax": written,
            "ratio": statistics.median(one / other for one, other in rows),
            "limit": "ratio <= 1.2",
        }
    ]
    for index, one in enumerate(results):
        own, read = one["own_mib"], one["read_mib"]
        what = f"MiB that process {index} reads back in a save, over those that it wrote"
        table.append(row(what, read, own, "ratio <= 1.05"))
    return table


def commit_of(arguments: argparse.Namespace, folder: Path) -> dict:
    """Save as one of several processes; return its times, and the bytes that it read back."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(arguments.address, arguments.processes, arguments.process)
    count, num_arrays = arguments.processes, 16
    mesh = jax.make_mesh((count,), ("data",))
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    rows = int(arguments.mebibytes * 2**20 / 4 / num_arrays / count) * count
    own = np.random.default_rng(arguments.process).standard_normal(rows // count, np.float32)
    state = {
        f"layer_{n}/kernel": jax.make_array_from_callback((rows,), sharding, lambda at: own)
        for n in range(num_arrays)
    }
    written = []
    save = arrays_lib.save

    class Timed:
        def __init__(self, pending: object):
            self._pending = pending

        def result(self) -> None:
            self._pending.result()
            written.append(time.perf_counter())

    arrays_lib.save = lambda *given: Timed(save(*given))
    seconds, read = [], []
    with Store(folder / "luthier", Checkpoints(keep_latest=1)) as store:
        for step in range(arguments.rounds + 1):
            begun, before = time.perf_counter(), read_bytes()
            store.save(step, state, Position(), {"position": POSITION})
            store.wait()
            seconds.append((written[-1] - begun, time.perf_counter() - begun))
            read.append(read_bytes() - before)
    return {
        "seconds": seconds[1:],  # the first one starts threads and opens files
        "read_mib": statistics.median(read[1:]) / 2**20,
        "own_mib": own.nbytes * num_arrays / 2**20,
    }


def read_bytes() -> int:
    """Return the bytes that this process has read by system calls, cached or not."""
    return int(Path("/proc/self/io").read_text().split()[1])


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
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--saves", type=int, default=200)
    parser.add_argument("--folder", help="where to save (default: a temporary folder)")
    parser.add_argument("--profile", action="store_true", help="only tell where the time goes")
    parser.add_argument("--processes", type=int, help="measure commits of so many processes")
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write the table here")
    parser.add_argument("--memory-of", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process is not None:
        print(json.dumps(commit_of(arguments, Path(arguments.folder))))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder, num_arrays, saves = Path(name), arguments.arrays, arguments.saves
        if arguments.memory_of:
            print(json.dumps(memory_of(arguments.memory_of, num_arrays, folder, saves)))
            return 0
        if arguments.processes:
            rows = measure_commit(
                arguments.mebibytes, arguments.processes, folder, arguments.rounds
            )
            return report_rows(arguments, rows, f"{arguments.mebibytes:g} MiB over all processes.")
        state = make_state(arguments.mebibytes, num_arrays)
        if arguments.profile:
            profile(state, folder)
            return 0
        rows = measure_blocking(state, folder, arguments.rounds)
        del state
        if saves:
            rows += measure_memory(num_arrays, folder, saves)
    return report_rows(
        arguments,
        rows,
        f"The state has {num_arrays} arrays. Their total size is {arguments.mebibytes:g} MiB "
        "in the measurement of the times and 4 MiB in that of the memory.",
        "The blocking times of both sides are measured in turn in one process. The memory is "
        "measured in a separate process per side.",
    )


def report_rows(arguments: argparse.Namespace, rows: list[dict], *notes: str) -> int:
    """Print the table, and write it where that was asked for."""
    names = ("mebibytes", "arrays", "saves", "processes", "rounds")
    settings = {name: getattr(arguments, name) for name in names}
    made = report.Report("checkpoint", settings, rows, notes)
    print(report.table(made))
    if arguments.json:
        report.write(made, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
