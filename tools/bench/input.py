"""Measure the input: tokens a second against what a step consumes, and the start on 100 GB of text.

* `step`: the compiled training step of configs.lm.quickstart on all cores, in tokens per second of
  CPU time, times the cores: what it would consume if it were alone on the machine.
* `assemble`: order and rows in one thread, in tokens per second of CPU time, that is of one core;
  a mixture is of two corpora. `times the step` is the rate of one core over that of the step.
* `iterate`: what a training loop gets from Grain's thread, in tokens per second of wall time.
* `prepared`: corpora of 1 and of 100 GB of text as `luthier data prepare` leaves them, with real
  numbers of targets and files of tokens that are holes. `rows assigned` is the seconds to assign
  documents to rows and to store the result. The start is measured in a process of its own: the
  seconds from the node to its first batch, without imports and with the stored rows dropped from
  the page cache, and the growth of its memory (at its peak, and at the end without mapped files).

Command: nice python tools/bench/input.py [--part rates,starts] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from luthier import data
from luthier.data.prepared.prepare import tokenizer_facts
from tools.bench import child, report

REFERENCE = "configs.lm.quickstart"
ONLY = ("evaluations={}", "checkpoints=None")
DOCUMENT_BYTES, DOCUMENT_TARGETS, SHARD_BYTES = 2000, 500, 64 << 20
GOAL_TIMES, GOAL_SECONDS = 20, 2.0

# A start: what is imported before it is not counted. Prints seconds and KiB.
START = """
import json, sys, time
import grain
from luthier import data
from luthier.data import loader
def memory(name):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1])
directory, length, size, packing = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
at_once, alone = memory("VmRSS"), memory("RssAnon")
start, cpu = time.perf_counter(), time.process_time()
node = data.Prepared(directory, length, getattr(data, packing)())
iterator = node.iterator(global_batch_size=size, seed=0)
batch = next(iterator)
first, busy = time.perf_counter() - start, time.process_time() - cpu
described, state = node.describe(), iterator.get_state()
print(json.dumps({
    "first": first, "busy": busy, "all": time.perf_counter() - start,
    "peak": memory("VmHWM") - at_once, "own": memory("RssAnon") - alone,
    "rows": described["rows"], "notices": list(data.made_plans(node)),
}))
iterator.close()
"""


def step_rate(blocks: int) -> tuple[float, float, float]:
    """Return tokens per second of CPU time times the cores, and per second; and the spread."""
    import jax

    from luthier import graph, planner

    made = planner.make(graph.apply(graph.resolve(REFERENCE), list(ONLY)), jax.devices()).program
    step, values = made.compile_step(), made.values()
    leaves = made.init(values)
    training, text = made.experiment.training, made.experiment.data
    rows = next(iter(text.iterator(global_batch_size=training.global_batch_size, seed=0)))
    batch = {name: jax.device_put(rows[name], s.sharding) for name, s in made.batch.items()}
    tokens = 20 * training.global_batch_size * text.tokens_per_row
    rates, walls = [], []
    for _ in range(blocks + 1):
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(20):
            leaves, scalars, *_ = step(values, leaves, batch)
        np.asarray(scalars)
        rates.append(tokens / (time.process_time() - cpu) * (os.cpu_count() or 1))
        walls.append(tokens / (time.perf_counter() - began))
    return (
        statistics.median(rates[1:]),
        statistics.median(walls[1:]),
        max(rates[1:]) - min(rates[1:]),
    )


def rates(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of the rates."""
    step, wall, spread = step_rate(options.blocks)
    rows = [
        _row("step, of CPU time", step / 1e6, "M tokens/s", spread / 1e6, 1.0, None),
        _row("step, of wall time", wall / 1e6, "M tokens/s", None, wall / step, None),
    ]
    with tempfile.TemporaryDirectory() as folder:
        bpe = data.train_bpe(data.Shakespeare("train"), 8192, f"{folder}/tokenizer.json")
        packings = (data.Concatenate(), data.FirstFit(), data.Unpacked())
        nodes: dict[str, data.DataNode] = {}
        for tokenizer in (data.Bytes(), bpe):
            for packing in packings:
                name = f"{type(tokenizer).__name__} {type(packing).__name__}"
                source = data.Shakespeare("train")
                nodes[name] = data.Packed(source, tokenizer, options.length, packing)
        source, directory = data.Shakespeare("train"), f"{folder}/prepared"
        layout = data.plan_layout(source, bpe, data.survey(source, bpe))
        data.prepare(source, bpe, directory, layout)
        nodes["Prepared Bpe Concatenate"] = data.Prepared(directory, options.length, packings[0])
        held_out = data.Packed(
            data.Shakespeare("held_out"), data.Bytes(), options.length, data.Concatenate()
        )
        both = {"train": nodes["Bytes Concatenate"], "held_out": held_out}
        nodes["Bytes Concatenate, mixture of 2"] = data.Mixture(
            both, [data.Stage({"train": 3.0, "held_out": 1.0})]
        )
        for name, node in nodes.items():
            rows += _assembled(name, node, step, options)
    return rows


def _assembled(
    name: str, node: data.DataNode, step: float, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    size = options.global_batch_size
    order = node.order(seed=0, global_batch_size=size)

    def assemble() -> Iterator[dict[str, np.ndarray]]:
        for number in range(2**62):
            rows, epochs = order(data.host_positions(number, size))
            yield node.rows.gather(rows, data.Visit(epochs, 0))

    iterator = node.iterator(global_batch_size=size, seed=0)
    for way, batches, clock in (
        ("assemble", assemble(), time.process_time),
        ("iterate", iterator, time.perf_counter),
    ):
        found = _rates(batches, options, clock)
        middle, spread = statistics.median(found), max(found) - min(found)
        goal = GOAL_TIMES if way == "assemble" else None
        values = (middle / 1e6, "M tokens/s", spread / 1e6, middle / step, goal)
        yield _row(f"{way}: {name}", *values)
    iterator.close()


def _rates(
    batches: Iterator[dict[str, np.ndarray]],
    options: argparse.Namespace,
    clock: Callable[[], float],
) -> list[float]:
    steps = max(options.tokens // (options.global_batch_size * options.length), 1)
    tokens = steps * options.global_batch_size * options.length
    found = []
    for _ in range(options.blocks + 1):
        began = clock()
        for _ in range(steps):
            next(batches)
        found.append(tokens / (clock() - began))
    return found[1:]  # the first block warms up


def simulate(directory: Path, gigabytes: float) -> None:
    """Write what `luthier data prepare` leaves, with files of tokens that are holes."""
    documents = int(gigabytes * 1e9 / DOCUMENT_BYTES)
    shards = max(int(gigabytes * 1e9 / SHARD_BYTES), 16)
    bounds = np.linspace(0, documents, shards + 1).astype(np.int64)
    random, entries = np.random.default_rng(0), []
    tokenizer = data.Bytes()
    directory.mkdir()
    np.save(directory / "byte_lengths.npy", np.asarray(tokenizer.byte_lengths, np.int32))
    for number, count in enumerate(np.diff(bounds).tolist()):
        folder = directory / f"shard-{number:05d}"
        folder.mkdir()
        targets = random.integers(1, 2 * DOCUMENT_TARGETS, count)
        tokens = int(targets.sum()) + count
        np.save(folder / "targets.npy", targets)
        with open(folder / "tokens.npy", "wb") as file:
            form = {"descr": "<u2", "fortran_order": False, "shape": (tokens,)}
            np.lib.format.write_array_header_1_0(file, form)
            file.truncate(file.tell() + 2 * tokens)
        entries.append({"name": folder.name, "digest": "", "documents": count, "tokens": tokens})
    manifest = {
        "format": 1,
        "tokenizer": tokenizer_facts(tokenizer),
        "documents": documents,
        "bytes": documents * DOCUMENT_BYTES,
        "unigram_entropy": 1.0,
        "bigram_entropy": 1.0,
        "digest": f"{gigabytes} simulated gigabytes",
        "shards": entries,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))


def start(directory: Path, packing: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a process of its own found: seconds and KiB."""
    for path in (directory / "plans").rglob("*.npy"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    sizes = [str(options.start_length), str(options.global_batch_size)]
    return child.result_of(START, [str(directory), *sizes, packing])


def starts(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of the starts."""
    rows = []
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            directory = Path(folder) / "corpus"
            simulate(directory, gigabytes)
            for packing in options.packings:
                name = f"prepared {gigabytes:g} GB {packing}"
                first = start(directory, packing, options)
                for line in first["notices"]:
                    print(line, flush=True)
                kept = [start(directory, packing, options) for _ in range(options.blocks)]
                found = {key: [each[key] for each in kept] for key in first if key != "notices"}
                for key, what, unit, scale in (
                    ("first", "rows assigned", "s", 1),
                    ("busy", "rows assigned, of CPU time", "s", 1),
                    ("peak", "rows assigned, peak memory growth", "MiB", 1024),
                ):
                    rows.append(_row(f"{name}: {what}", first[key] / scale, unit))
                for key, what, unit, scale in (
                    ("first", "first batch", "s", 1),
                    ("busy", "first batch, of CPU time", "s", 1),
                    ("all", "first batch, sizes and digest", "s", 1),
                    ("peak", "peak memory growth", "MiB", 1024),
                    ("own", "memory growth without mapped files", "MiB", 1024),
                ):
                    values = [value / scale for value in found[key]]
                    spread, goal = max(values) - min(values), GOAL_SECONDS if unit == "s" else None
                    value = statistics.median(values)
                    rows.append(_row(f"{name}: {what}", value, unit, spread, None, goal))
    return rows


def _row(
    what: str,
    value: float,
    unit: str,
    spread: float | None = None,
    times: float | None = None,
    goal: float | None = None,
) -> dict[str, Any]:
    print(f"{what}: {value:.4g} {unit}" + (f" ({times:.1f} x)" if times else ""), flush=True)
    return {
        "what": what,
        "value": value,
        "unit": unit,
        "spread": spread,
        "times the step": times,
        "goal": goal,
    }


def main() -> None:
    """Take the parts that are asked for, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", default="rates,starts")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--start-length", type=int, default=1024)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1.0, 100.0])
    parser.add_argument("--packings", nargs="+", default=["Concatenate"])
    parser.add_argument("--folder", help="where the simulated corpora are written")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    if "rates" in options.part.split(","):
        rows += rates(options)
    if "starts" in options.part.split(","):
        rows += starts(options)
    left_out = ("json", "folder")  # places on this machine
    settings = {name: value for name, value in vars(options).items() if name not in left_out}
    made = report.Report("input", settings, rows)
    print(report.table(made))
    if options.json:
        report.write(made, options.json)


if __name__ == "__main__":
    main()
