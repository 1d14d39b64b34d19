"""Each of Pax's decoders, shrunk, takes two steps on a mesh of its axes, by its own schedule."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import fiddle as fdl
import pytest

from luthier import data
from luthier import graph as graphs
from luthier.cli import find_experiment
from luthier.recipes import tiny
from tests.configs.pax_twins import assert_takes_two_steps, mesh_sizes
from tests.configs.test_pax_recipes import MLPERF, PUBLISHED

ROOT = Path(__file__).resolve().parents[2]
FEW = (
    f"{MLPERF}BS3k768Replicas",  # stages
    "LmCloudSpmdPipelineMultislice2BCircular",  # stages that are visited twice, across slices
)


def twin(name, axis_size=2):
    """Return a twin that reads random tokens, and the whole that it is of."""
    whole = graphs.resolve(find_experiment(name))
    vocab = whole.model.vocab_size
    whole.data = fdl.Config(data.Synthetic, vocab_size=vocab, length=whole.data.length)
    whole.evaluations = {}
    small = tiny(whole, axis_size)
    graphs.set_value(small, "parallelism.mesh.data", 1)  # no copies that fill the machine
    graphs.validate(small)
    return small, whole


def check(name):
    small, whole = twin(name)
    experiment, row = assert_takes_two_steps(small), PUBLISHED[name]
    within, across = mesh_sizes(experiment)
    assert within == dict.fromkeys(row.within, 2)
    assert across == {axis: 2 for axis, count in row.across.items() if count > 1}
    assert small.optimizer.__fn_or_cls__ is whole.optimizer.__fn_or_cls__
    rises, falls = (schedule.__fn_or_cls__ for schedule in small.optimizer.learning_rate.schedules)
    assert [rises, falls] == [s.__fn_or_cls__ for s in whole.optimizer.learning_rate.schedules]
    boundaries = [graphs.evaluate(b) for b in small.optimizer.learning_rate.boundaries]
    rate = graphs.build(small.optimizer.learning_rate)
    peak = graphs.evaluate(whole.optimizer.learning_rate.schedules[0].peak)
    assert boundaries == [2]
    assert [float(rate(step)) for step in (0, 1, 2)] == pytest.approx([0, peak, peak])
    assert float(rate(experiment.training.steps)) == pytest.approx(peak / 10)


@pytest.mark.full
@pytest.mark.parametrize("name", FEW)
def test_a_twin_takes_two_steps(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in FEW])
def test_every_twin_takes_two_steps(name):
    check(name)


_ON_MORE_DEVICES = """
import json, math, sys
import jax, numpy as np
graph, num_devices = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_num_cpu_devices", num_devices)
from luthier import graph as graphs, program as programs
program = programs.make(graphs.from_json(graph), jax.devices())
values, leaves = program.values(), program.init(program.values())
rows = program.experiment.training.global_batch_size
iterator = program.experiment.data.iterator(global_batch_size=rows, seed=0)
step, losses = program.compile_step(), []
for _ in range(2):
    batch = next(iterator)
    placed = {n: jax.device_put(batch[n], s.sharding) for n, s in program.batch.items()}
    leaves, scalars = step(values, leaves, placed)
    losses.append(float(scalars[program.scalar_names.index("loss")]))
assert np.isfinite(losses).all()
print(json.dumps(dict(program.sizes)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{MLPERF}BS1p5k768Replicas", "LmCloudSpmdPipeline9B", "GPT5B"])
def test_twins_on_more_devices(name):
    """Four devices along each axis: up to 64."""
    row = PUBLISHED[name]
    sizes = {a: min(4, n) for a, n in row.within.items()}
    for axis, count in row.across.items():
        sizes[axis] = sizes.get(axis, 1) * min(4, count)
    graph = graphs.to_json(twin(name, axis_size=4)[0])
    command = [sys.executable, "-c", _ON_MORE_DEVICES, graph, str(math.prod(sizes.values()))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {axis: size for axis, size in found.items() if size > 1} == sizes
