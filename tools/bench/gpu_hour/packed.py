"""The step of packed trials alone: no loops, loaders or records, so what is left is the device's.

`python -m tools.bench.gpu_hour.packed SIZE TRIALS [STEPS]` prints the seconds of a step, and where
they go by JAX's profiler, as JSON. A sweep that takes longer loses the difference on the host.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fiddle as fdl
import jax

from luthier.program import program as programs
from luthier.study.engines import packed_trials
from tools.bench.gpu_hour import experiment, traces


def main(size: str, num_trials: int, steps: int) -> dict[str, Any]:
    """Take steps of `num_trials` trials at once, each with a batch of its own."""
    graph = experiment.study(size, num_trials + 1, "vmap", num_trials).base
    devices = jax.devices()[:1]
    program = programs.make(graph, devices, hoist=["optimizer.learning_rate"])
    packed = packed_trials.compile_lanes(program, "vmap", num_trials, devices)
    pack, values = packed_trials.Pack(packed), program.values()
    rows = fdl.build(graph.data).iterator(global_batch_size=experiment.SIZES[size].rows, seed=0)
    batches = {}
    for lane in range(num_trials):
        pack.load(lane, values, program.init(values))
        batch = next(rows)
        entries = program.batch.items()
        batches[lane] = {n: jax.device_put(batch[n], entry.sharding) for n, entry in entries}

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            vectors = pack.step(batches)
        jax.block_until_ready(vectors)
        return (time.perf_counter() - start) / steps

    seconds()
    found: dict[str, Any] = {"trials": num_trials, "step_seconds": seconds()}
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            seconds()
        events = traces.read(Path(folder))
    return found | {"shares": traces.shares(events), "longest": traces.longest(events)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int((*sys.argv, "20")[3]))))
