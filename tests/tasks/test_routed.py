import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.errors import BadInput
from luthier.layers import RoutingSums
from luthier.layers.experts import report
from luthier.metrics import (
    DROPPED_FRACTION,
    LARGEST_LOAD,
    LOAD_BALANCE,
    LOSS,
    ROUTER_Z,
    SMALLEST_LOAD,
    Ratio,
)
from luthier.program import Scalar
from luthier.program.accumulation import additive_gradient, counted_gradient, coupled_gradient
from luthier.tasks import Additive, BatchCoupled, CountCoupled, CoupledTask, LossSums, Routed

ROWS, DIM, E = 12, 3, 4


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@dataclasses.dataclass
class Squares:
    """Rows are tokens; a model of two layers that send each to the expert of the highest logit."""

    reduction = Additive()
    loss_metrics = (LOSS,)
    metrics = (LOSS,)
    batch_axes = {"inputs": ("batch", None), "weights": ("batch",)}

    def loss(self, model, batch, key):
        y_T = model(batch["inputs"])
        ratio = Ratio(jnp.sum(jnp.square(y_T) * batch["weights"]), jnp.sum(batch["weights"]))
        return LossSums(ratio, {LOSS: ratio})

    def evaluate(self, model, batch):
        return self.loss(model, batch, None).metrics

    def count_tokens(self, batch):
        return (batch["weights"] != 0).sum()


class Coupled(Squares):
    """Its rows see each other's mean, too."""

    reduction = BatchCoupled("the mean")

    def statistics(self, model, batch, key):
        weights = batch["weights"]
        return {"sum": jnp.sum(model(batch["inputs"]) * weights), "weight": jnp.sum(weights)}

    def loss(self, model, batch, key, statistics=None):
        own = jax.tree.map(lambda x: x[None], self.statistics(model, batch, key))
        whole = jax.tree.map(lambda x: x.sum(0), own if statistics is None else statistics)
        y_T = model(batch["inputs"]) - whole["sum"] / whole["weight"]
        ratio = Ratio(jnp.sum(jnp.square(y_T) * batch["weights"]), jnp.sum(batch["weights"]))
        return LossSums(ratio, {LOSS: ratio})


def _model(parameters):
    def layer(x_TD, kernel):
        logits_TE = x_TD @ kernel
        probabilities_TE = jax.nn.softmax(logits_TE)
        best_TE = jax.nn.one_hot(jnp.argmax(logits_TE, -1), E, dtype=x_TD.dtype)
        count = jnp.asarray(len(x_TD), x_TD.dtype)
        sums = RoutingSums(
            tokens=count,
            choices_E=best_TE.sum(0),
            probabilities_E=probabilities_TE.sum(0),
            squared_log_z=jnp.square(jax.nn.logsumexp(logits_TE, -1)).sum(),
            wanted=count,
            dropped=(best_TE * jnp.array([1.0, 0, 0, 0])).sum(),
        )
        report(sums)
        return x_TD + (probabilities_TE * best_TE).sum(-1, keepdims=True)

    def model(x_TD):
        for kernel in parameters.values():
            x_TD = layer(x_TD, kernel)
        return x_TD.sum(-1)

    return model


def _given():
    generator = np.random.default_rng(0)
    parameters = {name: jnp.asarray(generator.standard_normal((DIM, E))) for name in ("a", "b")}
    batch = {
        "inputs": generator.standard_normal((ROWS, DIM)),
        "weights": (generator.random(ROWS) < 0.7).astype(float),
    }
    return parameters, batch


def _numerator(task):
    def numerator(parameters, part, *seen):
        sums = task.loss(_model(parameters), part, None, *seen)
        return sums.loss.numerator, sums

    return numerator


def _distance(found, expected):
    return max(np.linalg.norm(found[n] - x) / np.linalg.norm(x) for n, x in expected.items())


def _values(sums):
    return {metric: float(ratio.value()) for metric, ratio in sums.metrics.items()}


@pytest.mark.full
@pytest.mark.parametrize("accumulation", [2, 3, 12])
@pytest.mark.parametrize("inner", [Squares, Coupled])
def test_the_gradient_of_parts_is_that_of_the_whole_batch(inner, accumulation):
    task, (parameters, batch) = Routed(inner(), load_balance=0.3, router_z=0.2), _given()
    numerator = _numerator(task)
    expected, sums = jax.grad(numerator, has_aux=True)(parameters, batch)
    by = counted_gradient if inner is Squares else coupled_gradient
    assert isinstance(task.reduction, CountCoupled) is (inner is Squares)
    found_sums, found = jax.jit(
        lambda p, b: by(
            numerator,
            lambda p, part: task.statistics(_model(p), part, None),
            p,
            b,
            accumulation,
        )
    )(parameters, batch)
    assert _distance(found, expected) < 1e-12
    assert float(found_sums.loss.value()) == pytest.approx(float(sums.loss.value()), rel=1e-12)
    assert _values(found_sums) == pytest.approx(_values(sums), rel=1e-12)


def test_without_the_counts_of_the_whole_it_would_be_another_gradient():
    """The test above can fail: the sum of what parts make of themselves is far off."""
    (parameters, batch), numerator = _given(), _numerator(Routed(Squares(), 0.3, 0.2))
    expected = jax.grad(numerator, has_aux=True)(parameters, batch)[0]
    assert _distance(additive_gradient(numerator, parameters, batch, 3)[1], expected) > 0.01


@pytest.mark.full
def test_the_losses_are_those_of_the_papers():
    parameters, batch = _given()
    sums = Routed(Squares(), load_balance=0.3, router_z=0.2).loss(_model(parameters), batch, None)
    plain = Squares().loss(_model(parameters), batch, None)
    x_TD, balances, zs, loads, dropped = batch["inputs"], [], [], [], 0
    for kernel in parameters.values():
        logits_TE = x_TD @ kernel
        p_TE, best_T = jax.nn.softmax(logits_TE), logits_TE.argmax(-1)
        f_E = np.bincount(best_T, minlength=E) / ROWS
        balances.append(E * float((f_E * p_TE.mean(0)).sum()))
        zs.append(float(jnp.square(jax.nn.logsumexp(logits_TE, -1)).mean()))
        loads += list(f_E * E)
        dropped += int((best_T == 0).sum())
        x_TD = x_TD + np.take_along_axis(np.asarray(p_TE), np.asarray(best_T)[:, None], -1)
    expected = float(plain.loss.value()) + 0.3 * sum(balances) + 0.2 * sum(zs)
    assert float(sums.loss.value()) == pytest.approx(expected, rel=1e-12)
    found = _values(sums)
    assert found.pop(LOSS) == pytest.approx(float(plain.loss.value()), rel=1e-12)
    assert found == pytest.approx(
        {
            LOAD_BALANCE: np.mean(balances),
            ROUTER_Z: np.mean(zs),
            DROPPED_FRACTION: dropped / (2 * ROWS),
            LARGEST_LOAD: max(loads),
            SMALLEST_LOAD: min(loads),
        }
    )


def test_a_weight_of_none_leaves_the_loss_of_the_task():
    parameters, batch = _given()
    sums = Routed(Squares(), load_balance=None, router_z=None).loss(_model(parameters), batch, None)
    plain = Squares().loss(_model(parameters), batch, None)
    assert float(sums.loss.value()) == float(plain.loss.value())


def test_the_weights_may_be_hoisted():
    (parameters, batch), task = _given(), Routed(Squares(), load_balance=0.3, router_z=0.2)

    def loss(balance, z):
        hoisted = Routed(Squares(), load_balance=Scalar(balance), router_z=Scalar(z))
        return hoisted.loss(_model(parameters), batch, None).loss.value()

    expected = float(task.loss(_model(parameters), batch, None).loss.value())
    assert float(jax.jit(loss)(0.3, 0.2)) == pytest.approx(expected, rel=1e-6)


def test_an_evaluation_reports_the_metrics_of_both():
    task, (parameters, batch) = Routed(Squares()), _given()
    found = task.evaluate(_model(parameters), batch)
    assert set(found) == set(task.metrics)
    assert float(found[LOSS].value()) == pytest.approx(
        float(Squares().evaluate(_model(parameters), batch)[LOSS].value())
    )


def test_it_stands_for_the_task_in_it():
    task, inner = Routed(Squares()), Squares()
    assert isinstance(task, CoupledTask)
    assert task.batch_axes == inner.batch_axes
    assert task.count_tokens(_given()[1]) == inner.count_tokens(_given()[1])
    assert task.loss_metrics[0] == LOSS


@pytest.mark.full
def test_a_model_without_experts_is_refused():
    with pytest.raises(BadInput) as refused:
        Routed(Squares()).loss(lambda x: x.sum(-1), _given()[1], None)
    assert str(refused.value) == (
        "task: no layer of the model has experts; use the inner task alone, or replace an mlp by "
        "layers.Experts"
    )
