"""Measure what the training loop adds to the step, against loops written by hand.

Two comparisons, each interleaved in one process, with the batch already on the device:

* `model`: our loop with all that records a run (JSON lines, status, spans, console), cadences and
  guard, against a plain `jax.jit` loop over the same model, optimizer and guard, at 4 layers,
  d = 256; wall time.
* `leaves`: the same loop's host time per step (CPU time of the thread that trains, which does not
  count waiting for the device) over that of the bare ahead-of-time call on flat leaves, at about
  1,000 state arrays. Sides take turns after every step, each with its own state, so that both find
  the caches of the processor as cold.
* `outside`: the same loop seen from within: in each step, the host time outside of the compiled
  call over that of the call, without the noise of two loops. What that noise is, a second loop of
  bare calls beside the first tells.

Sides take turns in blocks of a few steps, and each block is compared with its neighbour of the
other side: the table has the median and the quartiles of these ratios, so that what else the
machine does falls on both.

Command: python tools/bench/step.py [--blocks 60] [--json FILE]
"""

from __future__ import annotations

import argparse
import collections
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import fiddle as fdl
import jax
import numpy as np
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from luthier import graph as graphs
from luthier import planner
from luthier.program import train_step
from luthier.records import Console, Goodput, Recorder
from luthier.records.goodput import Spans
from luthier.records.metrics_file import JsonLines
from luthier.records.status import StatusFile
from luthier.trainer.feed import Batch
from luthier.trainer.interrupt import StopSignals
from luthier.trainer.loop import NUM_PENDING, CompiledStep, Loop, Position, Rates
from luthier.trainer.profile import Profiler
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
        self._batch = Batch(arrays, tokens, 0.0)

    def next(self):
        """Return the batch."""
        return self._batch

    def get_state(self):
        """Return nothing: there is no position."""
        return {}


class Case:
    """A program with one batch, and the loops over it.

    Args:
      overrides: Of the quickstart.
      directory: Where the loops record what they do.
      model: Template of another model; None means the quickstart's.
      devices: How many devices it runs on.
    """

    def __init__(self, overrides, directory, model=None, devices=1):
        graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*overrides, *COMMON])
        if model is not None:
            graph.model = model
        self.plan = planner.make(graph, jax.devices()[:devices])
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
        self._directory = directory
        self._recorders = []

    def close(self):
        """Write down what the loops recorded."""
        for recorder in self._recorders:
            recorder.close()

    def ours(self):
        """Return a function that takes `count` steps in our loop."""
        loop = self._loop()
        loop.begin()

        def run(count):
            for _ in range(count):
                loop.advance(loop.next_batch())
            loop._drain(0)

        return run

    def outside(self, count):
        """Take `count` steps in our loop; return the host seconds of each, out of and in the call.

        The two lists are the seconds outside of the compiled call, and in it.
        """
        loop, call = self._loop(), []
        step = loop.step

        def timed(state, batch):
            # To free the arrays of the old state takes 0.4 ms, which belongs to the call, as
            # in the loop of bare calls: the loop itself frees them as it takes the new state.
            loop.state = None
            start = time.thread_time()
            taken = step(state, batch)
            del state
            call.append(time.thread_time() - start)
            return taken

        loop.begin()
        loop.step = timed
        own = []
        for number in range(count):
            start = time.thread_time()
            loop.advance(loop.next_batch())
            own.append(time.thread_time() - start - call[number])
        return own, call

    def _loop(self):
        """Return our loop from initial parameters, with everything that records a run."""
        folder = self._directory / str(time.time_ns())
        folder.mkdir()
        goodput = Goodput()
        sinks = [
            JsonLines(folder / "metrics.jsonl"),
            Spans(folder / "goodput.jsonl", goodput),
            StatusFile(folder / "status.json"),
            Console().open(open(os.devnull, "w")),  # noqa: SIM115 - for as long as the process
        ]
        recorder = Recorder(sinks, goodput)
        self._recorders.append(recorder)
        step = CompiledStep(self.program)
        return Loop(
            self.plan,
            self.values,
            step,
            step.load(self.values, self.program.init(self.values)),
            Position(),
            StillFeed(self.batch, self.tokens),
            StopSignals(),
            emit=planner.Measurement().watching(recorder.emit),
            save=lambda *_: None,
            rates=Rates(self.plan.model_flops.full, 1e12, 1000),
            profiler=Profiler(None, Path("unused")),
            goodput=goodput,
        )

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

    def bare(self, ahead=NUM_PENDING):
        """Return a function that makes `count` bare calls of the compiled step on flat leaves.

        It runs ahead of the device as far as our loop does: where the device is the host's own
        processor, how far decides in which thread a step is computed. With 0 it waits for each, for
        virtual devices, which share threads and could wait for each other.
        """
        holder = [self.program.init(self.values)]

        def run(count):
            leaves, pending = holder[0], collections.deque()
            for _ in range(count):
                leaves, vector = self.compiled(self.values, leaves, self.batch)
                pending.append(vector)
                if len(pending) > ahead:
                    pending.popleft().block_until_ready()
            np.asarray(vector)
            holder[0] = leaves

        return run


def take_turns(
    sides: Mapping[str, Callable[[int], None]],
    blocks: int,
    count: int,
    clock: Callable[[], float] = time.thread_time,
) -> dict[str, list[float]]:
    """Time blocks of `count` steps of every side in turn; return seconds per step by side.

    Args:
      sides: Takes `count` steps, by name; what is at the same place of two lists stood side by
        side in time.
      blocks: How many of each.
      count: Steps of a block.
      clock: Returns seconds; CPU time of the calling thread if not said otherwise.
    """
    for run in sides.values():
        run(count)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(blocks):
        order = list(sides.items())
        for name, run in order if block % 2 else reversed(order):
            start = clock()
            run(count)
            seconds[name].append((clock() - start) / count)
    return seconds


def compared(what: str, ours: Sequence[float], other: Sequence[float], limit: str) -> dict:
    """Return the row of two sides: medians, and the ratio of neighbours with its quartiles."""
    ratios = [a / b for a, b in zip(ours, other, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "what": what,
        "ours us": statistics.median(ours) * 1e6,
        "other us": statistics.median(other) * 1e6,
        "ratio": middle,
        "quartiles": f"{low:.3f} to {high:.3f}",
        "limit": limit,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        case = Case(MODEL, Path(folder))
        sides = {"ours": case.ours(), "other": case.by_hand()}
        found = take_turns(sides, max(options.blocks // 6, 2), 3, time.perf_counter)
        rows.append(compared("model: loop / jit by hand, wall", **found, limit="1.02"))
        case.close()
        case = Case(LEAVES, Path(folder), fdl.Partial(ManyLeaves, 331))
        leaves = f"{len(case.program.names)} leaves"
        sides = {"ours": case.ours(), "other": case.bare(), "control": case.bare()}
        found = take_turns(sides, 20 * options.blocks, 1)
        control = found.pop("control")
        rows.append(compared(f"{leaves}: loop / bare call, host", **found, limit="1.05"))
        what = f"{leaves}: bare call / bare call, host"
        rows.append(compared(what, control, found["other"], "none: the noise"))
        own, call = case.outside(20 * options.blocks)
        rows.append(compared(f"{leaves}: outside / in the call, host", own, call, "0.05"))
        case.close()
    made = report.Report("step", {"blocks": options.blocks}, rows)
    print(report.table(made))
    if options.json:
        report.write(made, options.json)


if __name__ == "__main__":
    main()
