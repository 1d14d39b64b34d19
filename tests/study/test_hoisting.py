import functools

import fiddle as fdl
import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import layers
from luthier import program as programs
from luthier.study import hoisting
from luthier.study.engines import Plans
from luthier.study.hoisting import Discoveries, discover, program_key

HOISTED = {
    "optimizer.learning_rate.peak": ("1e-4", "3e-2", "4e-3"),
    "optimizer.b1": ("0.8", "0.95", "0.9"),
    "optimizer.b2": ("0.9", "0.999", "0.9999"),
    "optimizer.eps": ("1e-8", "1e-5", "1e-6"),
    "optimizer.weight_decay": ("0.0", "0.3", "0.1"),
    "training.ema.decay": ("0.9", "0.9999", "0.99"),
    "task.z_loss": ("0.0", "1e-3", "1e-4"),
    "model.block.dropout.rate": ("0.0", "0.25", "0.1"),
    "seed": ("0", "7", "123456789"),
}
"""Leaves that people sweep, and the values that they take in three trials."""

SMALL = (
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "data.length=16",
    "training.global_batch_size=4",
    "training.steps=10",
    "optimizer.learning_rate.warmup_steps=2",
    "training.ema:=luthier.optim.Ema(decay=0.9)",
    "records.wandb=None",
)


@functools.cache
def _small():
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), SMALL)
    graph.model.block.dropout = fdl.Partial(layers.Dropout, rate=0.1)
    return graph


def _with(*overrides):
    return graphs.apply(_small(), overrides)


def _train(program, graph, steps):
    """Return the parameters after the first step; losses and learning rates of all steps."""
    own, values = program.of(graph), program.values(graph)
    rows = np.random.default_rng(0).integers(0, 256, (steps, 4, 17))
    step, leaves = own.compile_step(), own.init(values)
    losses, rates, first = [], [], None
    for tokens in rows:
        batch = {n: np.ones(s.shape, s.dtype) for n, s in own.batch.items()}
        batch |= {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
        batch |= {"positions": np.tile(np.arange(16), (4, 1))}
        arrays = {
            n: jax.device_put(batch[n].astype(s.dtype), s.sharding) for n, s in own.batch.items()
        }
        leaves, vector = step(values, leaves, arrays)
        scalars = dict(zip(own.scalar_names, np.asarray(vector), strict=True))
        losses.append(scalars["loss"])
        rates.append(scalars["learning_rate"])
        if first is None:
            first = {n: np.asarray(x) for n, x in own.named(leaves).items()}
    return first, np.array(losses), rates


@pytest.fixture(scope="module")
def hoisted():
    """Return one program with all leaves that people sweep as arguments."""
    found = discover(_small(), list(HOISTED))
    assert found.static == {}
    return programs.make(_small(), jax.devices()[:1], found.paths)


@pytest.mark.full
@pytest.mark.parametrize("trial", range(3))
def test_hoisted_leaves_train_as_constants_do(hoisted, trial):
    graph = _with(*(f"{path}={texts[trial]}" for path, texts in HOISTED.items()))
    constant = programs.make(graph, jax.devices()[:1])
    expected, expected_losses, _ = _train(constant, graph, 10)
    first, losses, _ = _train(hoisted, graph, 10)
    for name, array in expected.items():
        scale = np.abs(array.astype(np.float64)).max()
        np.testing.assert_allclose(first[name], array, rtol=0, atol=1e-7 * scale, err_msg=name)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)


def test_what_shapes_and_hosts_read_stays_a_constant_and_says_why():
    found = discover(
        _small(),
        ["optimizer.b2", "model.num_layers", "data.length", "model.block.mlp.activation", "nope.x"],
    )
    assert found.paths == ("optimizer.b2",)
    assert "ConcretizationTypeError" in found.static["model.num_layers"]
    assert found.static["data.length"].startswith("cannot be hoisted: only leaves of model")
    assert found.static["model.block.mlp.activation"].endswith("is not a number")
    assert set(found.static) == {
        "model.num_layers",
        "data.length",
        "model.block.mlp.activation",
        "nope.x",
    }


LINEAR = "optimizer.learning_rate:=optax.linear_schedule(0.1, 0.01, 10)"
STOCK = "optimizer.learning_rate:=optax.warmup_cosine_decay_schedule(0.0, {}, 2, 10)"


def test_a_leaf_that_python_computes_with_in_double_stays_a_constant():
    path = "optimizer.learning_rate.end_value"
    found = discover(_with(LINEAR), [path])
    assert found.paths == ()
    assert "is computed in double where the leaf is a constant" in found.static[path]


@pytest.mark.full
def test_a_seed_beyond_32_bits_stays_a_constant():
    found = discover(_with("seed=3000000000"), ("seed", "optimizer.b2"))
    assert found.paths == ("optimizer.b2",)
    assert "does not fit in 32 bits" in found.static["seed"]
    known = Discoveries()
    assert "seed" in known.discover(_with("seed=5"), ("seed",)).paths
    assert known.discover(_with("seed=3000000000"), ("seed",)).paths == ()


def test_the_key_differs_with_all_that_is_compiled_in_and_nothing_else():
    paths = ("optimizer.learning_rate.peak", "seed")
    base = program_key(_small(), paths)
    same = ("optimizer.learning_rate.peak=0.5", "seed=3", "name=other", "checkpoints=None")
    for override in same:
        assert program_key(_with(override), paths) == base, override
    other = ("optimizer.b2=0.5", "model.num_layers=2", "training.global_batch_size=8")
    for override in (*other, "data.length=8", "parallelism.mesh.data=1", "precision.matmul=HIGH"):
        assert program_key(_with(override), paths) != base, override


def test_the_shape_of_a_batch_is_in_the_key_though_its_size_is_never_read_in_the_step():
    paths = ("training.global_batch_size",)
    assert discover(_small(), paths).paths == paths
    assert program_key(_with("training.global_batch_size=8"), paths) != program_key(_small(), paths)


@pytest.mark.full
def test_what_cannot_be_hoisted_is_in_the_key():
    cache = Plans(jax.devices()[:1])
    candidates = ["optimizer.learning_rate.peak", "model.num_layers", "training.accumulation"]
    one = cache.plan(_with("model.num_layers=1"), candidates)
    two = cache.plan(_with("model.num_layers=2"), candidates)
    assert one.program.hoist == ("optimizer.learning_rate.peak",)
    assert two.parameters > one.parameters
    again = cache.plan(_with("model.num_layers=1", "optimizer.learning_rate.peak=1.0"), candidates)
    assert again.program.compiled is one.program.compiled
    assert again.program.compiled is not two.program.compiled
    halves = cache.plan(_with("training.accumulation=2"), candidates)
    assert halves.program.compiled is not one.program.compiled


@pytest.mark.full
def test_a_leaf_that_cannot_be_hoisted_is_never_stale():
    """The schedule has a Python branch: a step shared anyway would keep the first peak."""
    cache, path = Plans(jax.devices()[:1]), "optimizer.learning_rate.peak_value"
    assert discover(_with(STOCK.format(0.25)), [path]).paths == ()
    for peak in (0.25, 0.5):
        graph = _with(STOCK.format(peak))
        plan = cache.plan(graph, [path])
        _, _, rates = _train(plan.program, graph, 3)
        assert rates[2] == pytest.approx(peak)


def test_what_was_discovered_is_known_for_all_graphs_of_the_program(monkeypatch):
    counted = []
    trace = hoisting._trace_problem
    monkeypatch.setattr(
        hoisting, "_trace_problem", lambda *given: counted.append(1) or trace(*given)
    )
    known = Discoveries()
    for peak in (0.1, 0.2, 0.3):
        graph = _with(f"optimizer.learning_rate.peak={peak}")
        found = known.discover(graph, ["optimizer.learning_rate.peak", "name"])
        assert found.paths == ("optimizer.learning_rate.peak",)
    assert counted == [1]
