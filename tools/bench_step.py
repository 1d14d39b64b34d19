"""Measure what the training loop adds to the step, against loops written by hand.

Two comparisons, each interleaved in one process, with the batch already on the device:

* `model`: our loop (scalars fetched, recorded as JSON lines, cadences, guard) against a plain
  `jax.jit` loop over the same model, optimizer and guard, at 4 layers, d = 256.
* `leaves`: the loop's host time per step (CPU time of the thread that trains, which does not count
  waiting for the device) over that of the bare ahead-of-time call on flat leaves, at about 1,000
  state arrays. `leaves_wall` is the same in wall time.

Command: python tools/bench_step.py [--blocks 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import fiddle as fdl
import jax
import numpy as np
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from luthier import graph as graphs
from luthier import plan as plans
from luthier.program import train_step
from luthier.records import Goodput
from luthier.records.json_lines import JsonLines
from luthier.train.feed import Fed
from luthier.train.interrupt import StopSignals
from luthier.train.loop import Loop, OwnSlot, Position, Rates
from luthier.train.profile import Profiler
from tools.bench import report

MODEL = (
    "model.dim=256",
    "model.num_layers=4",
    "model.block.attention.num_heads=4",
    "model.block.attention.num_kv_heads=4",
    "model.block.mlp.hidden_dim=1024",
    "data.length=256",
    "training.global_batch_size=8",
)
LEAVES = ("data.length=8", "training.global_batch_size=1")
COMMON = ("evaluations={}", "checkpoints=None", "training.steps=1000000")


class ManyLeaves(nnx.Module):
    """The cheapest language model with many parameters: a table, and vectors added to it."""

    def __init__(self, num_vectors, *, rngs):
        self.table = nnx.Param(jax.random.normal(rngs.params(), (258, 8)))
        self.vectors = nnx.List([nnx.Param(jax.numpy.zeros(8)) for _ in range(num_vectors)])

    def hidden(self, inputs_BL, **_):
        """Return [B, L, 8]."""
        return self.table[...][inputs_BL] + sum(vector[...] for vector in self.vectors)

    def logits(self, hidden_BLD):
        """Return [B, L, 258]."""
        return hidden_BLD @ self.table[...].T


class StillFeed:
    """Hands out one batch that is on the device already; there is nobody to agree with."""

    agreeing = None

    def __init__(self, arrays, tokens):
        self._fed = Fed(arrays, tokens, 0.0)

    def next(self):
        """Return the batch."""
        return self._fed

    def get_state(self):
        """Return nothing: there is no position."""
        return {}


class Case:
    """A program with one batch, and the loops over it."""

    def __init__(self, overrides, directory, model=None, devices=1):
        graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*overrides, *COMMON])
        if model is not None:
            graph.model = model
        self.plan = plans.make(graph, jax.devices()[:devices])
        self.program = self.plan.program
        training = self.program.experiment.training
        rows = next(
            iter(
                self.program.experiment.data.iterator(
                    global_batch_size=training.global_batch_size, seed=0
                )
            )
        )
        self.batch = {n: jax.device_put(rows[n], s.sharding) for n, s in self.program.batch.items()}
        self.tokens = int(rows["weights"].sum())
        self.values = self.program.values()
        self.compiled = self.program.compile_step()
        self.lines = JsonLines(directory / f"{time.time_ns()}.jsonl", print)

    def ours(self):
        """Return a function that takes `count` steps in our loop."""
        rates = Rates(self.plan.model_flops.full, 1e12, 1000)
        slot = OwnSlot(self.program)
        slot.load(self.values, self.program.init(self.values))
        loop = Loop(
            self.plan,
            self.values,
            slot,
            Position(),
            StillFeed(self.batch, self.tokens),
            emit=self.lines.emit,
            save=lambda *_: None,
            rates=rates,
            profiler=Profiler(None, Path("unused")),
            goodput=Goodput(),
        )

        steps = loop.steps(StopSignals())
        fed = next(steps)

        def run(count):
            nonlocal fed
            for _ in range(count):
                fed = steps.send(slot.step(fed.arrays))
            loop._drain(0)

        return run

    def by_hand(self):
        """Return a function that takes `count` steps in a plain `jax.jit` loop over a dict."""
        experiment = self.program.experiment
        state = self.program.named(self.program.init(self.values))
        step = jax.jit(lambda state, batch: train_step(experiment, state, batch), donate_argnums=0)
        holder = [step(state, self.batch)[0]]

        def run(count):
            state = holder[0]
            for _ in range(count):
                state, scalars = step(state, self.batch)
            float(scalars["loss"])
            holder[0] = state

        return run

    def bare(self, waits=False):
        """Return a function that makes `count` bare calls of the compiled step on flat leaves.

        It waits for each where virtual devices, which share threads, could wait for each other.
        """
        holder = [self.program.init(self.values)]

        def run(count):
            leaves = holder[0]
            for _ in range(count):
                leaves, vector = self.compiled(self.values, leaves, self.batch)
                if waits:
                    vector.block_until_ready()
            np.asarray(vector)
            holder[0] = leaves

        return run


def interleave(sides, blocks, count):
    """Time blocks of `count` steps of every side in turn; return seconds per step by side.

    Returns wall seconds and the thread's CPU seconds.
    """
    seconds = {name: [] for name in sides}
    host_seconds = {name: [] for name in sides}
    for run in sides.values():
        run(count)
    for block in range(blocks):
        order = list(sides.items())
        for name, run in order if block % 2 else reversed(order):
            start, host_start = time.perf_counter(), time.thread_time()
            run(count)
            seconds[name].append((time.perf_counter() - start) / count)
            host_seconds[name].append((time.thread_time() - host_start) / count)
    return seconds, host_seconds


def summary(seconds, over):
    """Return medians, spread, and the median of the blocks' ratios and differences."""
    (ours, other) = seconds
    ratios = [a / b for a, b in zip(seconds[ours], seconds[other], strict=True)]
    differences = [a - b for a, b in zip(seconds[ours], seconds[other], strict=True)]
    found = {
        "ours": ours,
        "ms": statistics.median(seconds[ours]) * 1e3,
        "spread ms": (max(seconds[ours]) - min(seconds[ours])) * 1e3,
        "other": other,
        "other ms": statistics.median(seconds[other]) * 1e3,
        "other spread ms": (max(seconds[other]) - min(seconds[other])) * 1e3,
    }
    medians = [statistics.median(s) for s in seconds.values()]
    return found | {
        "ratio of medians": medians[0] / medians[1],
        "median ratio": statistics.median(ratios),
        "median difference us": statistics.median(differences) * 1e6,
        "limit": over,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        case = Case(MODEL, Path(folder))
        sides = {"loop": case.ours(), "jit_by_hand": case.by_hand()}
        wall, _ = interleave(sides, options.blocks, 5)
        rows.append({"what": "model", **summary(wall, "ratio <= 1.02")})
        print(json.dumps(rows[-1], indent=2), flush=True)
        case = Case(LEAVES, Path(folder), fdl.Partial(ManyLeaves, 331))
        sides = {"loop": case.ours(), "bare_call": case.bare()}
        wall, host = interleave(sides, options.blocks, 400)
        what = f"{len(case.program.names)} leaves, host"
        rows.append({"what": what, **summary(host, "ratio <= 1.05 or difference <= 100 us")})
        what = f"{len(case.program.names)} leaves, wall"
        limit = "none; the hosts run ahead of the device by 2 and 100"
        rows.append({"what": what, **summary(wall, limit)})
    found = report.Report("step", {"blocks": options.blocks}, rows)
    print(report.table(found))
    if options.json:
        report.write(found, options.json)


if __name__ == "__main__":
    main()
