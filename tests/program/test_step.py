from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier import tasks
from luthier.errors import BadInput
from luthier.metrics import LOSS, Metric, Ratio

SMALL = (
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "data.length=16",
    "training.global_batch_size=4",
    "optimizer:=luthier.optim.sgd(luthier.optim.Constant(0.5), momentum=0.0)",
)


class Stepper:
    def __init__(self, *overrides):
        graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL, *overrides])
        self.program = programs.make(graph, jax.devices()[:1])
        self.step = self.program.compile_step()
        data = self.program.experiment.data.iterator(global_batch_size=4, seed=0)
        self.batch = next(data)
        self.leaves = self.program.init(self.program.values())

    def __call__(self, **changed):
        batch = self.batch | changed
        arrays = {n: jax.device_put(batch[n], s.sharding) for n, s in self.program.batch.items()}
        before = {n: np.asarray(x) for n, x in self.program.named(self.leaves).items()}
        self.leaves, vector = self.step(self.program.values(), self.leaves, arrays)
        after = {n: np.asarray(x) for n, x in self.program.named(self.leaves).items()}
        scalars = dict(zip(self.program.scalar_names, np.asarray(vector).tolist(), strict=True))
        return before, after, scalars


@pytest.mark.full
def test_a_step_of_descent_is_the_learning_rate_times_the_gradient():
    stepper = Stepper()
    program = stepper.program

    def gradient(leaves, batch):
        with program.tracing(()) as experiment:
            return programs.gradient_of(experiment, program.named(leaves), batch)[1]

    expected = jax.jit(gradient)(stepper.leaves, dict(stepper.batch))
    expected = {name: np.asarray(g) for name, g in expected.items()}
    before, after, scalars = stepper()
    norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in expected.values()))
    assert scalars["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert scalars["learning_rate"] == 0.5
    for name, g in expected.items():
        moved = after[f"parameters/{name}"] - before[f"parameters/{name}"]
        np.testing.assert_allclose(moved, -0.5 * g, rtol=1e-4, atol=1e-7, err_msg=name)


@pytest.mark.full
def test_a_refused_step_leaves_everything_but_the_guard_and_the_step_as_it_was():
    stepper = Stepper("training.ema:=luthier.optim.Ema(0.5)")
    stepper()
    poison = np.full_like(stepper.batch["weights"], np.nan)
    before, after, scalars = stepper(weights=poison)
    assert scalars["skipped"] == 1
    for name in before:
        if name == "step":
            assert after[name] == before[name] + 1
        elif not name.startswith("guard/"):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert after["guard/consecutive_skipped"] == 1
    _, healed, scalars = stepper()
    assert scalars["skipped"] == 0
    assert healed["guard/consecutive_skipped"] == 0
    assert healed["guard/total_skipped"] == 1


@pytest.mark.full
def test_without_a_guard_what_is_not_finite_goes_through():
    stepper = Stepper("training.guard=None")
    _, after, _ = stepper(weights=np.full_like(stepper.batch["weights"], np.nan))
    assert not np.isfinite(after["parameters/norm.scale"]).all()


def test_a_batch_without_targets_moves_nothing():
    stepper = Stepper()
    before, after, scalars = stepper(weights=np.zeros_like(stepper.batch["weights"]))
    assert scalars["gradient_norm"] == 0
    for name in before:
        if name.startswith("parameters/"):
            np.testing.assert_array_equal(after[name], before[name])


@pytest.mark.full
def test_the_average_is_of_the_parameters_after_the_update():
    stepper = Stepper("training.ema:=luthier.optim.Ema(0.5, warmup_steps=0)")
    before, after, _ = stepper()
    name = "norm.scale"
    expected = 0.5 * before[f"ema/{name}"] + 0.5 * after[f"parameters/{name}"]
    np.testing.assert_allclose(after[f"ema/{name}"], expected, rtol=1e-6)


@pytest.mark.full
def test_the_seed_decides_parameters_and_dropout_apart():
    one, same, other = Stepper(), Stepper(), Stepper("seed=1")
    for a, b in zip(one.leaves, same.leaves, strict=True):
        np.testing.assert_array_equal(a, b)
    name = "parameters/embedding.table"
    assert not np.array_equal(
        one.program.named(one.leaves)[name], other.program.named(other.leaves)[name]
    )
    assert not jnp.array_equal(
        jax.random.key_data(programs.step.dropout_key(0)),
        jax.random.key_data(programs.step.dropout_key(1)),
    )


def test_the_gradient_is_that_of_the_mean_and_every_step_draws_dropout_of_its_own():
    dropout = "model.block.dropout=partial:luthier.layers.Dropout(rate=0.5)"
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL, dropout])
    program = programs.make(graph, jax.devices()[:1])
    batch = next(program.experiment.data.iterator(global_batch_size=4, seed=0))
    leaves = program.init(program.values())

    def looked_at(leaves, batch, step):
        with program.tracing(()) as experiment:
            state = {**program.named(leaves), "step": step}
            sums, gradient = programs.gradient_of(experiment, state, batch)
            return sums.loss.numerator / sums.loss.denominator, gradient

    look = jax.jit(looked_at)
    loss, gradient = look(leaves, batch, jnp.int32(0))
    other, _ = look(leaves, batch, jnp.int32(1))
    assert abs(loss - other) > 1e-3, "the same tokens, and other dropout"
    # Twice the weights: twice the sums, and the same mean and gradient.
    again, doubled = look(leaves, {**batch, "weights": 2 * batch["weights"]}, jnp.int32(0))
    np.testing.assert_allclose(again, loss, rtol=1e-6)
    for name, g in gradient.items():
        np.testing.assert_allclose(doubled[name], g, rtol=1e-4, atol=1e-7, err_msg=name)


class Misspelt(tasks.LanguageModelling):
    """Declares a metric that it returns under another name."""

    @property
    def metrics(self):
        return (*super().metrics, Metric("margin", "higher"))

    def evaluate(self, model, batch):
        found = super().evaluate(model, batch)
        return found | {Metric("mragin", "higher"): found[next(iter(found))]}


def test_a_declared_metric_that_is_not_returned_is_refused():
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), SMALL)
    graph.task = fdl.Config(Misspelt, **graph.task.__arguments__)
    program = programs.make(graph, jax.devices()[:1])
    with pytest.raises(BadInput, match="evaluate returns no margin, which `metrics` declares") as e:
        program.traced_evaluation(program.batch, "parameters")
    assert e.value.problems[0].nearest == ["mragin"]


SUM = Metric("sum")
SORTED = Metric("sorted", transform=np.sort)  # of an array, it is no number


@dataclasses.dataclass(frozen=True)
class Returning(tasks.LanguageModelling):
    """Returns something else than sums."""

    metrics: ClassVar[tuple[Metric, ...]] = (*tasks.LanguageModelling.metrics, SUM, SORTED)
    evaluated: Any = None
    lost: Any = None

    def loss(self, model, batch, key):
        sums = super().loss(model, batch, key)
        return sums if self.lost is None else self.lost(sums)

    def evaluate(self, model, batch):
        sums = Ratio(jnp.ones(1), 1.0)
        return self.evaluated({**super().evaluate(model, batch), SORTED: sums})


def returning(**functions):
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), SMALL)
    graph.task = fdl.Config(Returning, **graph.task.__arguments__, **functions)
    return programs.make(graph, jax.devices()[:1])


@pytest.mark.parametrize(
    ("evaluated", "message"),
    [
        (lambda found: None, "task: evaluate returns None, not a dict from Metric to Ratio"),
        (lambda found: {**found, SUM: 2.0}, "evaluate returns 2.0 for sum, not a luthier.metrics"),
        (
            lambda found: {**found, SUM: Ratio(jnp.ones(4), 1.0)},
            r"evaluate returns arrays of shapes \(4,\) and \(\) for sum; return scalars, or give",
        ),
        (
            lambda found: {**found, SUM: found[LOSS], SORTED: Ratio(jnp.ones(4), 1.0)},
            r"sorted, whose transform makes an array of shape \(4,\), not a number",
        ),
        (
            lambda found: {**found, SUM: found[LOSS], SORTED: Ratio(jnp.ones(4), jnp.ones(3))},
            r"shape \(4,\) and a weight of shape \(3,\) for sorted, which do not broadcast",
        ),
        (
            lambda found: {**found, SUM: found[LOSS], Metric("other"): found[LOSS]},
            "evaluate returns other, which `metrics` does not declare; add it to `metrics`",
        ),
    ],
)
def test_what_evaluate_returns_is_checked(evaluated, message):
    program = returning(evaluated=evaluated)
    with pytest.raises(BadInput, match=message):
        program.traced_evaluation(program.batch, "parameters")


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (lambda sums: sums.loss.value(), r"loss returns float32\[\], not a luthier.tasks.LossSums"),
        (
            lambda sums: tasks.LossSums(sums.loss, {SUM: Ratio(jnp.ones(2), 1.0)}),
            r"loss returns arrays of shapes \(2,\) and \(\) for sum",
        ),
    ],
)
def test_what_loss_returns_is_checked(lost, message):
    with pytest.raises(BadInput, match=message):
        returning(lost=lost).traced_step  # noqa: B018
