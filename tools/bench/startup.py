"""Measure what a user waits for: `--help`, `show`, and the first step of a training.

* `luthier --help`, `luthier show`: from the start of the process to its end.
* cold, warm: from the start of `luthier train configs.lm.quickstart` to the line of its first
  step, with an empty folder of compiled programs and with that of the run before.
* parts: what a warm start cannot do without, in a process of its own: imports; trace, load of the
  compiled programs, first step. `warm / goal` compares the warm start with imports + 1.5 times the
  rest.

The sides take turns in each round; medians of the rounds.

Command: python tools/bench/startup.py [--rounds 5] [--core 0] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import child, report

REFERENCE = "configs.lm.quickstart"
OVERRIDES = ("training.steps=1", "evaluations={}", "checkpoints=None")

# What a start cannot do without, step by step, and how long each took.
PARTS = """
import json, sys, time
moments = [("start", time.perf_counter())]
def at(name): moments.append((name, time.perf_counter()))
import grain, jax, numpy as np, optax, orbax.checkpoint
from luthier import checkpoint, data, graph, optim, planner, program, records, trainer
graph_of = graph.apply(graph.resolve(sys.argv[1]), sys.argv[2:])
at("imports")
made = planner.make(graph_of, jax.devices()).program
lowered = made.traced_step.lower()
at("trace")
step = made.compile_step()
values = made.values()
leaves = made.init(values)
jax.block_until_ready(leaves)
at("load")
size = made.experiment.training.global_batch_size
rows = next(iter(made.experiment.data.iterator(global_batch_size=size, seed=0)))
batch = {name: jax.device_put(rows[name], s.sharding) for name, s in made.batch.items()}
np.asarray(step(values, leaves, batch)[1])
at("first step")
print(json.dumps({n: b - a for (_, a), (n, b) in zip(moments, moments[1:])}))
"""


def environment(cache: Path, core: int) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a process, and the words that pin it to a core."""
    left_out = ("JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    path = os.pathsep.join([str(child.ROOT), str(child.ROOT / "framework")])
    kept |= {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return kept, ["taskset", "-c", str(core)]


def to_the_end(words: Sequence[str], cache: Path, core: int) -> float:
    """Return the seconds of a command of luthier from its start to its end."""
    variables, pin = environment(cache, core)
    start = time.perf_counter()
    command = [*pin, sys.executable, "-m", "luthier", *words]
    subprocess.run(command, cwd=child.ROOT, env=variables, capture_output=True, check=True)
    return time.perf_counter() - start


def to_the_first_step(cache: Path, core: int) -> float:
    """Return the seconds from the start of a training to the line of its first step."""
    variables, pin = environment(cache, core)
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", REFERENCE, *OVERRIDES, f"records.directory={folder}"]
        start = time.perf_counter()
        with subprocess.Popen(
            [*pin, sys.executable, "-m", "luthier", *words],
            cwd=child.ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if re.match(r"step 1/", line):
                    taken = time.perf_counter() - start
        if process.returncode:
            raise RuntimeError("".join(lines))
    return taken


def parts(cache: Path, core: int) -> dict[str, float]:
    """Return the seconds of each part of a start, with the programs that a training left."""
    from luthier import environment as environments

    variables, pin = environment(cache, core)
    variables |= environments.kept_programs(variables, shortest=0.1)
    variables |= environments.large_pages(variables)
    return child.result_of(PARTS, [REFERENCE, *OVERRIDES], variables, pin)


def main() -> None:
    """Take turns, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:  # Python compiles all modules once
        to_the_first_step(Path(folder), options.core)
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            taken = {
                "luthier --help": to_the_end(["--help"], cache, options.core),
                "luthier show": to_the_end(["show", REFERENCE], cache, options.core),
                "first step, cold": to_the_first_step(cache, options.core),
                "first step, warm": to_the_first_step(cache, options.core),
            }
            each = parts(cache, options.core)
        taken |= {
            f"part: {name}" if name != "imports" else "imports": s for name, s in each.items()
        }
        rest = sum(seconds for name, seconds in each.items() if name != "imports")
        taken["goal: imports + 1.5 x the rest"] = each["imports"] + 1.5 * rest
        for name, seconds in taken.items():
            found.setdefault(name, []).append(seconds)
    rows = [
        {"what": name, "s": statistics.median(all_), "spread": max(all_) - min(all_)}
        for name, all_ in found.items()
    ]
    pairs = zip(found["first step, warm"], found["goal: imports + 1.5 x the rest"], strict=True)
    rows.append(
        {"what": "warm / goal", "s": statistics.median(a / b for a, b in pairs), "spread": None}
    )
    made = report.Report("startup", {"core": options.core, "rounds": options.rounds}, rows)
    print(report.table(made))
    if options.json:
        report.write(made, options.json)


if __name__ == "__main__":
    main()
