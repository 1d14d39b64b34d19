"""Measure what a graph of 5,000 nodes costs on the host, and a Tab on the command line.

python tools/bench/graph.py                # medians of 5 runs
python tools/bench/graph.py --runs 9 --nodes 10000

Processor seconds are what counts: another program on the machine makes only the wall clock slower.
Exit code 1 where a median is above its limit.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"edit": 1.5, "record": 1.5, "completion": 0.1}

OVERRIDES = (
    *("seed=7", "name=bench", "training.steps=800", "training.accumulation=2"),
    *("optimizer.learning_rate.peak=1e-3", "optimizer.learning_rate.end=1e-5", "optimizer.b2=0.99"),
    *("optimizer.weight_decay=0.05", "optimizer.clip_norm=0.5", "task.z_loss=1e-5"),
    *("model.vocab_size=264", "model.dtype=bf16", "model.stack=luthier.layers.Unrolled()"),
    *("class:Attention.num_kv_heads=4", "class:GatedMlp.hidden_dim=512", "any:base=20000"),
    *("data.length=64", "evaluations.held_out.num_batches=4", "reset:optimizer.b1"),
    "model.block[0].attention.num_heads=8",
)


def experiment(nodes: int = 5000) -> Any:
    """Return the quickstart with so many templates of blocks that the graph has `nodes` nodes."""

    from luthier import graph

    made = graph.resolve("configs.lm.quickstart")
    block, outside = made.model.block, count(made) - count(made.model.block)
    number = -(-(nodes - outside) // count(block))
    made.model.block = [graph.copy_graph(block) for _ in range(number)]
    made.model.num_layers = number
    return made


def count(graph: Any) -> int:
    """Return how many nodes a graph has, the root included; what is shared counts once."""
    from luthier.graph.paths import is_node, walk

    found = {id(place.value) for place in walk(graph, defaults=False) if is_node(place.value)}
    return len(found) + 1


def edit(text: str) -> None:
    """Load a graph, change it by 20 overrides, check it, and write it out for people."""
    from luthier import graph

    changed = graph.apply(graph.from_json(text), OVERRIDES)
    graph.validate(changed)
    graph.render(changed, defaults=True)


def record(made: Any) -> None:
    """Record a graph, and load the record."""
    from luthier import graph

    graph.from_json(graph.to_json(made))


def completion() -> None:
    """Answer a Tab, by the command itself, the start of the interpreter included."""
    words = "train\nconfigs.lm.quickstart\noptimizer.learning_rate.\n"
    done = subprocess.run(
        [sys.executable, "-m", "luthier", "completion", "words"],
        env=os.environ | {"LUTHIER_WORDS": words},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "optimizer.learning_rate.peak=" in done.stdout, done.stdout


def measure(work: Callable[[], None], runs: int) -> tuple[float, float]:
    """Return the medians of the processor seconds and of the wall clock's."""
    processor, wall = [], []
    for _ in range(runs):
        before, start = used(), time.perf_counter()
        work()
        wall.append(time.perf_counter() - start)
        processor.append(used() - before)
    return statistics.median(processor), statistics.median(wall)


def used() -> float:
    """Return the processor seconds of this process and of those that it waited for."""
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in times)


def asked(doc: str) -> argparse.Namespace:
    """Return `runs` and `nodes` of the command line; go where the experiments are.

    Args:
      doc: Of the command; its first line is shown.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default: 5)")
    parser.add_argument("--nodes", type=int, default=5000, help="nodes (default: 5000)")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    return arguments


def main() -> int:
    """Measure, print a table, and return the exit code."""
    arguments = asked(__doc__)
    from luthier import graph

    made = experiment(arguments.nodes)
    text = graph.to_json(made)
    print(f"{count(made):,} nodes, {len(text):,} bytes, {len(OVERRIDES)} overrides")
    print(f"{'':<12}{'processor':>12}{'wall':>12}{'limit':>12}")
    over = False
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        from luthier.cli.completion import building

        building.build("configs.lm.quickstart")
        completion()  # caches what the commands take
        works = {
            "edit": lambda: edit(text),
            "record": lambda: record(made),
            "completion": completion,
        }
        for name, work in works.items():
            processor, wall = measure(work, arguments.runs)
            over = over or processor > LIMITS[name]
            print(f"{name:<12}{processor:>10.3f} s{wall:>10.3f} s{LIMITS[name]:>10.3f} s")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
