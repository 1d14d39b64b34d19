"""Measure what `fiddler:quick_compile` saves and costs on a CPU, over shipped experiments.

* compile: seconds of this process's own work to compile the step.
* step: seconds of a step, the median of blocks of half a second in which the sides take turns.

Each experiment is a process of its own, pinned to one core, with large pages; medians of the
rounds. `break-even` is the number of steps after which compiling quickly has cost what it saved.

Command: python tools/bench/compile.py [--rounds 3] [--core 0] [--json FILE] [REFERENCE ...]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import child, report

EXPERIMENTS = (
    "tools.bench.cpu_peers.luthier_lm",
    "configs.lm.quickstart",
    "configs.seq2seq.translation",
    "configs.series.forecast",
    "configs.series.ucr",
    "configs.vision.digits",
    "configs.vision.digits:resnet",
)
TUNABLES = "glibc.malloc.hugetlb=1"

SIDES = """
import json, statistics, sys, time
import jax
from luthier import graph as graphs, planner
jax.config.update("jax_enable_compilation_cache", False)
jax.jit(lambda x: x + 1)(1)  # starts the backend
sides = {}
for side, words in {"own": [], "quick": ["fiddler:luthier.recipes.quick_compile"]}.items():
    graph = graphs.apply(graphs.resolve(sys.argv[1]), words)
    program = planner.make(graph, jax.devices()[:1]).program
    lowered = program.traced_step.lower()
    begun = time.process_time()
    step = lowered.compile(program.compiler_options)
    sides[side] = program, step, time.process_time() - begun, []
program = sides["own"][0]
size = program.experiment.training.global_batch_size
rows = next(iter(program.experiment.data.iterator(global_batch_size=size, seed=0)))
batch = {name: jax.device_put(rows[name], info.sharding) for name, info in program.batch.items()}
values = program.values()
for _ in range(6):
    for program, step, _, blocks in sides.values():
        leaves, scalars = step(values, program.init(values), batch)
        scalars.block_until_ready()
        begun, number = time.perf_counter(), 0
        while time.perf_counter() - begun < 0.5 or number < 2:
            leaves, scalars = step(values, leaves, batch)
            scalars.block_until_ready()
            number += 1
        blocks.append((time.perf_counter() - begun) / number)
print(json.dumps({s: (taken, statistics.median(b)) for s, (_, _, taken, b) in sides.items()}))
"""


def main() -> None:
    """Take turns, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("references", nargs="*", default=EXPERIMENTS, metavar="REFERENCE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    variables = {n: value for n, value in os.environ.items() if not n.startswith(("JAX_", "XLA_"))}
    variables |= {"JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": TUNABLES}
    pin = ["taskset", "-c", str(options.core)]
    taken: dict[str, list[dict[str, tuple[float, float]]]] = {}
    for _ in range(options.rounds):
        for reference in options.references:
            found = child.result_of(SIDES, [reference], variables, pin)
            taken.setdefault(reference, []).append(found)
            print(reference, found, file=sys.stderr, flush=True)
    rows = [_row(reference, rounds) for reference, rounds in taken.items()]
    made = report.Report("compile", {"rounds": options.rounds, "core": options.core}, rows)
    print(report.table(made))
    if options.json:
        report.write(made, options.json)


def _row(reference: str, rounds: list[dict[str, tuple[float, float]]]) -> dict[str, object]:
    """Return a row: medians of the rounds, and of the ratios within each."""

    def median(side: str, which: int) -> float:
        return statistics.median(sides[side][which] for sides in rounds)

    def ratio(which: int) -> float:
        return statistics.median(sides["quick"][which] / sides["own"][which] for sides in rounds)

    saved = median("own", 0) - median("quick", 0)
    lost = median("own", 1) * (ratio(1) - 1)
    return {
        "experiment": reference.removeprefix("tools.bench."),
        "compile, s": median("own", 0),
        "quickly, s": median("quick", 0),
        "ratio": ratio(0),
        "step, ms": 1e3 * median("own", 1),
        "quickly, ms": 1e3 * median("quick", 1),
        "ratio of steps": ratio(1),
        "break-even, steps": round(saved / lost) if lost > 0 < saved else "-",
    }


if __name__ == "__main__":
    main()
