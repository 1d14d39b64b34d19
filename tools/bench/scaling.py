"""Measure how the cost of the machinery grows: with depth, and with the number of devices.

* depth: seconds of this process's own work to trace, lower and compile the step of a scanned stack,
  at 12 to 96 layers: flat. `to 12 layers` is the ratio of trace + compile.
* devices: host time per step (CPU time of the thread that trains) on 1 to 64 virtual devices, our
  loop beside the bare call of the same compiled program; one row of a tiny model on each device.
  All devices are threads of one CPU, so the step's wall time says nothing about scaling; what the
  loop adds on the host does.

Each case is a process of its own; the cases take turns in each round; medians of the rounds.

Command: python tools/bench/scaling.py [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import child, report
from tools.bench import step as bench_step

DEPTHS = (12, 24, 48, 96)
DEVICES = (1, 8, 16, 32, 64)

DEPTH = """
import json, sys, time
import jax
from luthier import graph, planner
words = [f"model.num_layers={sys.argv[1]}", "model.dim=64", "model.block.mlp.hidden_dim=128"]
graph_of = graph.apply(graph.resolve("configs.lm.quickstart"), words)
jax.jit(lambda x: x + 1)(1)  # starts the backend
moments = [time.process_time()]
program = planner.make(graph_of, jax.devices()[:1]).program
traced = program.traced_step
moments.append(time.process_time())
lowered = traced.lower()
moments.append(time.process_time())
lowered.compile(program.compiler_options)
moments.append(time.process_time())
names = ("trace", "lower", "compile")
print(json.dumps({n: b - a for n, a, b in zip(names, moments, moments[1:])}))
"""

LOOP = """
import json, sys, tempfile
from pathlib import Path
from tools.bench import step as bench_step
number = int(sys.argv[1])
words = ["data.length=8", f"training.global_batch_size={number}", "model.dim=16",
         "model.num_layers=1", "model.block.mlp.hidden_dim=32"]
with tempfile.TemporaryDirectory() as folder:
    case = bench_step.Case(words, Path(folder), devices=number)
    sides = {"loop": case.ours(), "bare_call": case.bare(ahead=0)}
    print(json.dumps(bench_step.take_turns(sides, 20, 10)))
    case.close()
"""


def run(code: str, number: int, devices: int) -> dict[str, Any]:
    """Return what a process told of one case."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    variables["JAX_NUM_CPU_DEVICES"] = str(devices)
    return child.result_of(code, [str(number)], variables)


def main() -> None:
    """Take turns, and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    depths: dict[int, list[dict[str, float]]] = {}
    loops: dict[int, dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        for depth in DEPTHS:
            depths.setdefault(depth, []).append(run(DEPTH, depth, 1))
        for number in DEVICES:
            for name, seconds in run(LOOP, number, number).items():
                loops.setdefault(number, {}).setdefault(name, []).extend(seconds)
    rows = []
    for depth, taken in depths.items():
        row = {name: statistics.median(t[name] for t in taken) for name in taken[0]}
        pairs = zip(taken, depths[DEPTHS[0]], strict=True)
        ratios = [
            (own["trace"] + own["compile"]) / (first["trace"] + first["compile"])
            for own, first in pairs
        ]
        rows.append({"layers": depth, **row, "to 12 layers": statistics.median(ratios)})
    depth_table = report.Report("depth", {"rounds": options.rounds}, rows)
    rows = []
    for number, taken in loops.items():
        row = bench_step.compared("", taken["loop"], taken["bare_call"], "")
        kept = ("ours us", "other us", "ratio", "quartiles")
        rows.append({"devices": number, **{name: row[name] for name in kept}})
    device_table = report.Report("devices", {"rounds": options.rounds}, rows)
    print(report.table(depth_table), report.table(device_table), sep="\n\n")
    if options.json:
        report.write(depth_table, options.json.with_suffix(".depth.json"))
        report.write(device_table, options.json.with_suffix(".devices.json"))


if __name__ == "__main__":
    main()
