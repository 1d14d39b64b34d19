"""Measure how the cost of the machinery grows: with depth, and with the number of devices.

* depth: seconds of this process's own work to trace, lower and compile the step of a scanned stack,
  at 12 to 96 layers: flat. `to 12 layers` is the ratio of trace + compile.
* devices: host time per step (CPU time of the thread that trains) on 1 to 64 virtual devices, our
  loop beside the bare call of the same compiled program; one row of a tiny model on each device.
  All devices are threads of one CPU, so the step's wall time says nothing about scaling; what the
  loop adds on the host does.

Each case is a process of its own; the cases take turns in each round; medians of the rounds.

Command: python tools/bench_scaling.py [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.bench import report

ROOT = Path(__file__).resolve().parents[1]
DEPTHS = (12, 24, 48, 96)
DEVICES = (1, 8, 16, 32, 64)

DEPTH = """
import json, sys, time
import jax
from luthier import graph, plan
words = [f"model.num_layers={sys.argv[1]}", "model.dim=64", "model.block.mlp.hidden_dim=128"]
graph_of = graph.apply(graph.resolve("configs.lm.quickstart"), words)
jax.jit(lambda x: x + 1)(1)  # starts the backend
moments = [time.process_time()]
program = plan.make(graph_of, jax.devices()[:1]).program
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
sys.path.insert(0, sys.argv[2])
from tools import bench_step
number = int(sys.argv[1])
words = ["data.length=8", f"training.global_batch_size={number}", "model.dim=16",
         "model.num_layers=1", "model.block.mlp.hidden_dim=32"]
with tempfile.TemporaryDirectory() as folder:
    case = bench_step.Case(words, Path(folder), devices=number)
    sides = {"loop": case.ours(), "bare_call": case.bare(waits=True)}
    _, host = bench_step.interleave(sides, 5, 40)
    print(json.dumps({name: sorted(s)[len(s) // 2] for name, s in host.items()}))
"""


def run(code: str, number: int, devices: int) -> dict[str, float]:
    """Return what a process told of one case."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    variables["JAX_NUM_CPU_DEVICES"] = str(devices)
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "framework")])
    command = [sys.executable, "-c", code, str(number), str(ROOT)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Take turns, and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    depths: dict[int, list[dict[str, float]]] = {}
    loops: dict[int, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for depth in DEPTHS:
            depths.setdefault(depth, []).append(run(DEPTH, depth, 1))
        for number in DEVICES:
            loops.setdefault(number, []).append(run(LOOP, number, number))
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
        loop, bare = (statistics.median(t[n] for t in taken) * 1e6 for n in ("loop", "bare_call"))
        ratio = statistics.median(t["loop"] / t["bare_call"] for t in taken)
        rows.append({"devices": number, "loop us": loop, "bare call us": bare, "ratio": ratio})
    device_table = report.Report("devices", {"rounds": options.rounds}, rows)
    print(report.table(depth_table), report.table(device_table), sep="\n\n")
    if options.json:
        report.write(depth_table, options.json.with_suffix(".depth.json"))
        report.write(device_table, options.json.with_suffix(".devices.json"))


if __name__ == "__main__":
    main()
