"""Steps of a model with experts: cut into microbatches, split over devices."""

import fiddle as fdl
import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import layers, tasks
from luthier import program as programs
from tests.compiling import QUICK

SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "data.length=16",
    "training.global_batch_size=8",
    "optimizer:=luthier.optim.sgd(luthier.optim.Constant(0.5), momentum=0.0)",
    "precision.matmul=HIGHEST",
)


def _graph(dispatch, *overrides):
    graph = graphs.resolve("configs.lm.quickstart")
    graph.model.block.mlp = fdl.Partial(
        layers.Experts,
        num_experts=4,
        router=fdl.Partial(layers.TopK, k=2),
        expert=fdl.Partial(layers.GatedMlp, hidden_dim=32),
        dispatch=dispatch,
    )
    graph.task = fdl.Config(tasks.Routed, task=graph.task, load_balance=0.5, router_z=0.1)
    return graphs.apply(graph, [*SMALL, *overrides])


def _gradient(graph, num_devices=1):
    """Return loss, metrics and gradient of a batch with padding and uneven weights."""
    program = programs.make(graph, jax.devices()[:num_devices])
    batch = dict(next(program.experiment.data.iterator(global_batch_size=8, seed=0)))
    for name, rows, start in (("weights", slice(3, None), 5), ("segments", 2, 10)):
        batch[name] = batch[name].copy()
        batch[name][rows, ..., start:] = 0
    placed = {n: jax.device_put(batch[n], entry.sharding) for n, entry in program.batch.items()}

    def gradient(leaves, batch):
        with program.tracing(()) as experiment:
            sums, gradient = programs.gradient_of(experiment, program.named(leaves), batch)
        reported = {metric.name: ratio.value() for metric, ratio in sums.metrics.items()}
        return {"loss": sums.loss.value(), **reported}, gradient

    leaves = program.init(program.values())
    run = jax.jit(gradient).lower(leaves, placed).compile(compiler_options=QUICK)
    scalars, gradient = jax.device_get(run(leaves, placed))
    return {name: float(value) for name, value in scalars.items()}, gradient


def _farthest(found, expected):
    return max(
        (np.linalg.norm(np.float64(found[n]) - x) / np.linalg.norm(np.float64(x)), n)
        for n, x in expected.items()
    )


@pytest.mark.full
def test_accumulation_changes_neither_gradient_nor_metrics():
    dispatch = fdl.Config(layers.Capacity, factor=1.0)
    scalars, gradient = _gradient(_graph(dispatch))
    assert 0 < scalars["dropped_fraction"] < 0.5
    found_scalars, found = _gradient(_graph(dispatch, "training.accumulation=4"))
    assert _farthest(found, gradient)[0] < 1e-6
    assert found_scalars == pytest.approx(scalars, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "accumulation"),
    [({"expert": 4}, 2), ({"expert": 4, "fsdp": 2}, 1), ({"expert": 2, "tensor": 2}, 1)],
)
@pytest.mark.parametrize("dispatch", [layers.Capacity, layers.Dropless, layers.AllExperts])
def test_the_expert_axis_changes_nothing(dispatch, sizes, accumulation):
    node = fdl.Config(dispatch)
    scalars, gradient = _gradient(_graph(node))
    mesh = [f"parallelism.mesh.{axis}={size}" for axis, size in {"data": 1, **sizes}.items()]
    graph = _graph(node, *mesh, f"training.accumulation={accumulation}")
    found_scalars, found = _gradient(graph, int(np.prod(list(sizes.values()))))
    assert _farthest(found, gradient)[0] < 1e-6
    assert found_scalars == pytest.approx(scalars, rel=1e-6)


@pytest.mark.slow
def test_scanned_unrolled_and_recomputed_layers_give_the_same():
    node = fdl.Config(layers.Dropless)
    scalars, gradient = _gradient(_graph(node))
    remat = "model.stack.remat:=luthier.layers.FullRemat()"
    found_scalars, found = _gradient(_graph(node, "model.stack:=luthier.layers.Scanned()", remat))
    assert _farthest(found, gradient)[0] < 1e-6
    unrolled = _graph(node, "model.stack:=luthier.layers.Unrolled()")
    found_scalars, found = _gradient(unrolled)
    assert found_scalars == pytest.approx(scalars, rel=1e-6)
    for name, whole in gradient.items():
        if name.startswith("blocks."):
            each = [found[name.replace("blocks.", f"blocks.{i}.", 1)] for i in range(2)]
            assert _farthest({name: np.stack(each)}, {name: whole})[0] < 1e-6
