"""Measure what a save to an object store costs, against bare Orbax: time, memory, requests.

The store is an emulator on this machine, in a process of its own (`tests/object_stores.py`): it
shows what a save adds to Orbax, and nothing of how fast a real store is.

* `blocking`: the time in which a save keeps the caller, over that of Orbax's own
  `save_checkpointables_async` with the same arrays, paths and small JSON state; in one process, and
  in several that hold a part of every array each, where the slowest process counts. Both sides take
  turns; each saves twice, and the second is measured.
* `memory`: resident memory over 50 saves by each side, in a process of its own.
* `requests`: those of `luthier train`, from one commit to the next, with few and with many lines of
  the record in between.

Command: python tools/bench/bucket.py [--scheme gs|s3] [--mebibytes 64] [--arrays 100]
  [--rounds 10] [--processes 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests import object_stores
from tools.bench import report

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = """
import json, sys
sys.path.insert(0, {root!r})
from tests import object_stores
commits = []
def before_write(key):
    if key.endswith("/commit.json"):
        commits.append(len(requests))
with object_stores.serving({{"lab": {{}}}}, before_write=before_write) as (address, requests):
    print(json.dumps(address), flush=True)
    for line in sys.stdin:  # asks for what was counted since it asked last
        print(json.dumps([len(requests), commits]), flush=True)
        requests.clear()
        commits.clear()
"""
SMALL = (
    *("training.steps={steps}", "checkpoints.every=Steps({every})", "model.num_layers=1"),
    *("evaluations={{}}", "records.samples=None", "records.wandb=None", "fiddler:quick_compile"),
)


class Emulator:
    """The server in a process of its own, and how many requests it has had."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER.format(root=str(ROOT))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.environment = object_stores.environment(json.loads(self._process.stdout.readline()))

    def counted(self) -> tuple[int, list[int]]:
        """Return the requests since the last call, and how many there were at each commit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("", file=self._process.stdin, flush=True)
        total, commits = json.loads(self._process.stdout.readline())
        return total, commits

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def save_with_orbax(url: str, state: dict) -> list[float]:
    """Save with Orbax alone; return the seconds and CPU seconds in which it kept the caller."""
    from orbax.checkpoint import v1 as ocp

    from luthier.checkpoint.bucket_path import BucketPath
    from tools.bench import checkpoint

    rest = {"iterator": checkpoint.POSITION, "extra": {"position": checkpoint.POSITION}}
    items = {"arrays": state, "rest": rest}
    context = ocp.Context()
    context.atomicity.mode = ocp.options.AtomicityMode.COMMIT_FILE
    with context:
        *seconds, pending = checkpoint.timed(
            lambda: ocp.save_checkpointables_async(BucketPath(url), items)
        )
        pending.result()
    return seconds


def blocking_of(arguments: argparse.Namespace) -> dict:
    """Save as one of the processes; return the seconds in which each side kept the caller."""
    import jax
    import numpy as np

    from luthier.checkpoint import Checkpoints, Store
    from tools.bench import checkpoint

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    count, num_arrays = arguments.processes, arguments.arrays
    if count > 1:
        jax.distributed.initialize(arguments.address, count, arguments.process)
    sharding = jax.NamedSharding(jax.make_mesh((count,), ("data",)), jax.P("data"))
    rows = int(arguments.mebibytes * 2**20 / 4 / num_arrays / count) * count
    own = np.random.default_rng(arguments.process).standard_normal(rows // count, np.float32)
    state = {
        f"layer_{n}/kernel": jax.make_array_from_callback((rows,), sharding, lambda at: own)
        for n in range(num_arrays)
    }
    root = f"{arguments.scheme}://lab/{count}"
    store, numbers = Store(f"{root}/luthier", Checkpoints(keep_latest=1)), itertools.count()
    position = {"position": checkpoint.POSITION}

    def ours() -> list[float]:
        step = next(numbers)
        *seconds, _ = checkpoint.timed(
            lambda: store.save(step, state, checkpoint.Position(), position)
        )
        store.wait()
        return seconds

    def bare() -> list[float]:
        return save_with_orbax(f"{root}/orbax/{next(numbers)}", state)

    sides = {"luthier": ours, "orbax": bare}
    seconds: dict[str, list[list[float]]] = {side: [] for side in sides}
    for number in range(arguments.rounds):
        for side in list(sides) if number % 2 else reversed(sides):
            sides[side]()
            seconds[side].append(sides[side]())
    store.close()
    return seconds


def memory_of(arguments: argparse.Namespace) -> list[float]:
    """Let a side save again and again; return the resident MiB after each save."""
    from luthier.checkpoint import Checkpoints, Store
    from tools.bench import checkpoint

    state, sizes = checkpoint.make_state(4, arguments.arrays), []
    root = f"{arguments.scheme}://lab/memory"
    with Store(f"{root}/luthier", Checkpoints(keep_latest=1)) as store:
        for step in range(arguments.saves):
            if arguments.side == "orbax":
                save_with_orbax(f"{root}/orbax/{step}", state)
            else:
                store.save(step, state, checkpoint.Position(), {"position": checkpoint.POSITION})
                store.wait()
                store.committed()
            gc.collect()
            sizes.append(checkpoint.resident_bytes() / 2**20)
    return sizes


def requests_of(arguments: argparse.Namespace, emulator: Emulator, every: int) -> list[int]:
    """Train with saves every so many steps; return the requests from one commit to the next."""
    home = f"records.directory={arguments.scheme}://lab/every-{every}"
    words = [word.format(steps=6 * every, every=every) for word in SMALL]
    emulator.counted()
    command = [sys.executable, "-m", "luthier", "train", "configs.lm.quickstart", *words, home]
    subprocess.run(command, env=os.environ | emulator.environment, check=True, capture_output=True)
    _, commits = emulator.counted()
    # Not the first two, since nothing is deleted before the third, and not the last, at the end.
    return [end - start for start, end in itertools.pairwise(commits)][1:-1]


def children(arguments: argparse.Namespace, what: str, count: int, side: str = "") -> list:
    """Run this script in so many processes; return what each of them found."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    words = [sys.executable, __file__, "--scheme", arguments.scheme, "--what", what]
    words += ["--mebibytes", str(arguments.mebibytes), "--arrays", str(arguments.arrays)]
    words += ["--rounds", str(arguments.rounds), "--processes", str(count), "--address", address]
    words += ["--saves", str(arguments.saves), "--side", side]
    started = [
        subprocess.Popen([*words, "--process", str(index)], stdout=subprocess.PIPE)
        for index in range(count)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"{what} with {count} processes failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def measure(arguments: argparse.Namespace, emulator: Emulator) -> list[dict]:
    """Return the rows of the table."""
    from tools.bench import checkpoint

    rows = []
    for count in sorted({1, arguments.processes}):
        found = children(arguments, "blocking", count)
        for place, kind in enumerate(("wall", "CPU of the thread")):
            medians = []
            for side in checkpoint.SIDES:
                saves = zip(*(one[side] for one in found), strict=True)  # of all processes
                slowest = (max(each[place] for each in save) for save in saves)
                medians.append(1e3 * statistics.median(slowest))
            processes = "1 process" if count == 1 else f"{count} processes"
            what = f"blocking a save, {processes}, {kind}, ms"
            rows.append(checkpoint.row(what, *medians, "ratio <= 1.1"))
    quarter = arguments.saves // 4
    early, late = slice(quarter, 2 * quarter), slice(-quarter, None)
    found = {side: children(arguments, "memory", 1, side)[0] for side in checkpoint.SIDES}
    for name, part in (("second", early), ("last", late)):
        medians = (statistics.median(found[side][part]) for side in checkpoint.SIDES)
        what = f"resident memory, {name} quarter of {arguments.saves} saves, MiB"
        rows.append(checkpoint.row(what, *medians))
    for every in (10, 100):
        found = requests_of(arguments, emulator, every)
        what = f"requests from one commit to the next, {every} lines of the record between them"
        rows.append({"what": what, "luthier": statistics.median(found)})
        rows[-1]["limit"] = f"{min(found)} to {max(found)}"
    columns = ("what", "luthier", "bare Orbax", "ratio", "limit")
    return [{column: row.get(column) for column in columns} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheme", choices=("gs", "s3"), default="gs")
    parser.add_argument("--mebibytes", type=float, default=64)
    parser.add_argument("--arrays", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--saves", type=int, default=50, help="in the test of memory")
    parser.add_argument("--json", type=pathlib.Path, help="also write the table here")
    for name in ("--what", "--side", "--address"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what:
        made = {"blocking": blocking_of, "memory": memory_of}[arguments.what](arguments)
        print(json.dumps(made))
        return 0
    emulator = Emulator()
    os.environ |= emulator.environment
    try:
        rows = measure(arguments, emulator)
    finally:
        emulator.close()
    names = ("scheme", "mebibytes", "arrays", "rounds", "processes", "saves")
    note = "The store is an emulator on the same machine, in a process of its own."
    settings = {name: getattr(arguments, name) for name in names}
    made = report.Report("bucket", settings, rows, [note])
    print(report.table(made), note, sep="\n")
    if arguments.json:
        report.write(made, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
