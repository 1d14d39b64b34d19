"""Every experiment of the repository: shrunk in ordinary tests, in full in slow ones.

What does not fit this machine is trained as a twin, by the tests of its family.
"""

import datetime
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import planner
from luthier import program as programs
from luthier.errors import DataError
from tests.compiling import quick_step

ROOT = Path(__file__).resolve().parents[2]

SHRUNK = (
    "training.global_batch_size=8",
    "checkpoints=None",
    "records.console=None",
    "records.wandb=None",
    "parallelism.mesh.fsdp=2",
    "parallelism.mesh.tensor=2",
)
MAX_LAYERS = 2
CORES = 2
SPARE_TIME = 15  # Minutes that a training may take on a busy machine, for each that it needs.


def resolve(experiment):
    """Return the graph, and whether its data is installed."""
    graph = graphs.resolve(experiment.reference)
    graphs.validate(graph)
    data = graphs.build(graph.data)
    try:
        assert data.num_rows > 0
    except DataError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))
    return graph


def shrunk(graph):
    """Return it with few layers and small batches, on a mesh of all axes."""
    small = [f"evaluations.{name}.global_batch_size=8" for name in graph.evaluations]
    deep = [
        f"{place.path}={MAX_LAYERS}"
        for place in graphs.walk(graph)
        if place.path.endswith("num_layers")
        and isinstance(place.value, int)
        and place.value > MAX_LAYERS
    ]
    return graphs.apply(graph, [*SHRUNK, *small, *deep])


def test_the_header_lists_what_was_measured(experiment):
    lines = experiment.lines
    assert {"Command", "Hardware", "Expected"} <= set(lines)
    assert f"luthier train {experiment.reference.partition(':')[0]}" in lines["Command"]
    expected = experiment.expected
    if expected is None:
        return
    assert lines["Command"] == f"luthier train {experiment.reference}"
    assert expected.holds(expected.found), "the bound is not what was measured"
    assert datetime.date.fromisoformat(expected.date) <= datetime.date.today()
    assert experiment.minutes > 0
    graph = graphs.resolve(experiment.reference)
    assert expected.evaluation in graph.evaluations
    metrics = {metric.name: metric for metric in graphs.build(graph.task).metrics}
    assert metrics[expected.metric].better == {">=": "higher", "<=": "lower"}[expected.relation]


def test_nothing_of_the_graph_is_in_the_repository(experiment):
    assert '"configs' not in graphs.to_json(graphs.resolve(experiment.reference))


def test_it_is_planned_on_eight_devices_and_trains_two_steps_on_four(small_experiment):
    graph = shrunk(resolve(small_experiment))
    graphs.validate(graph)
    assert dict(planner.make(graph, jax.devices()[:8]).program.sizes)["data"] == 2
    if small_experiment.reference.startswith("configs.lm.families"):
        return  # tests/recipes trains every family.
    program = programs.make(graph, jax.devices()[:4])
    values, step = program.values(), quick_step(program)
    leaves = program.init(values)
    first = {n: np.asarray(x) for n, x in program.named(leaves).items()}
    iterator = program.experiment.data.iterator(global_batch_size=8, seed=0)
    index, losses = program.scalar_names.index("loss"), []
    for _ in range(2):  # The first has a learning rate of 0.
        batch = next(iterator)
        placed = {n: jax.device_put(batch[n], s.sharding) for n, s in program.batch.items()}
        leaves, scalars = step(values, leaves, placed)
        losses.append(float(scalars[index]))
    assert np.isfinite(losses).all()
    trained = {n: x for n, x in program.named(leaves).items() if n.startswith("parameters/")}
    assert any((np.asarray(x) != first[n]).any() for n, x in trained.items())


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_its_command_reaches_the_expected_score_in_the_stated_time(small_experiment, tmp_path):
    expected = small_experiment.expected
    if expected is None:
        pytest.skip("not measured yet")
    resolve(small_experiment)
    seconds = 60 * small_experiment.minutes
    command = [sys.executable, "-m", *small_experiment.lines["Command"].split()]
    outside = [f"records.directory={tmp_path}", "records.wandb=None"]
    start, used = time.monotonic(), _cpu_seconds()
    done = subprocess.run(
        [*command, *outside],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=SPARE_TIME * seconds,
        check=False,
    )
    took, used = time.monotonic() - start, _cpu_seconds() - used
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = tmp_path.rglob("metrics.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    (score,) = [
        record["values"][expected.metric]
        for record in records
        if record["kind"] == "evaluation"
        and record["name"] == expected.evaluation
        and record["step"] == records[-1]["step"]
    ]
    assert expected.holds(score), f"{expected.metric} {score}, expected {expected}"
    # On a machine that others use, the time on the wall says little, but the work is the same.
    assert used / CORES <= seconds, f"{used:.0f} s of CPU time, {took:.0f} s on the wall"


def _cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
