import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.metrics import LOSS, Ratio
from luthier.parallel import Mesh, Rules, activation_rules
from luthier.program.accumulation import (
    additive_gradient,
    counted_gradient,
    coupled_gradient,
    cut,
)
from luthier.tasks import LossSums

ROWS, DIM = 12, 5


def _parameters(kind=jnp.float32):
    keys = jax.random.split(jax.random.key(0))
    return {
        "kernel": jax.random.normal(keys[0], (DIM, 3), kind),
        "scale": jax.random.normal(keys[1], (3,), kind),
    }


def _batch(kind=np.float32):
    generator = np.random.default_rng(0)
    return {
        "inputs": generator.standard_normal((ROWS, DIM)).astype(kind),
        "weights": (generator.random(ROWS) < 0.7).astype(kind),
    }


def _outputs(parameters, part):
    return jnp.tanh(part["inputs"] @ parameters["kernel"]) * parameters["scale"]


def _sums(losses, part):
    ratio = Ratio(jnp.sum(losses * part["weights"]), jnp.sum(part["weights"]))
    return ratio.numerator, LossSums(ratio, {LOSS: ratio}, {})


def _additive(parameters, part):
    return _sums(jnp.square(_outputs(parameters, part)).sum(-1), part)


def _statistics(parameters, part):
    """Weighted first and second moments: what batch normalization would want to know."""
    outputs, weights = _outputs(parameters, part), part["weights"][:, None]
    return {
        "count": weights.sum(),
        "first": (outputs * weights).sum(0),
        "second": (jnp.square(outputs) * weights).sum(0),
    }


def _coupled(parameters, part, statistics):
    """The loss of a row depends on all rows, through sums of statistics, and on itself."""
    total = jax.tree.map(lambda x: x.sum(0), statistics)
    mean = total["first"] / total["count"]
    variance = total["second"] / total["count"] - jnp.square(mean)
    normed = (_outputs(parameters, part) - mean) * jax.lax.rsqrt(variance + 1e-3)
    return _sums(jnp.square(normed - jnp.arange(3.0)).sum(-1) ** 1.5, part)


def _whole(parameters, batch):
    own = jax.tree.map(lambda x: x[None], _statistics(parameters, batch))
    return _coupled(parameters, batch, own)


def _distance(found, expected):
    parts = jax.tree.map(lambda a, b: jnp.linalg.norm(a - b) / jnp.linalg.norm(b), found, expected)
    return max(float(x) for x in jax.tree.leaves(parts))


def test_rows_are_dealt_out_in_turn():
    parts = cut({"rows": jnp.arange(6)}, 3)
    np.testing.assert_array_equal(parts["rows"], [[0, 3], [1, 4], [2, 5]])


@pytest.mark.parametrize("accumulation", [1, 2, 6, 12])
def test_an_additive_loss_may_be_cut_in_any_way(accumulation):
    with jax.enable_x64(True):
        parameters, batch = _parameters(jnp.float64), _batch(np.float64)
        expected, sums = jax.grad(_additive, has_aux=True)(parameters, batch)
        total, found = additive_gradient(_additive, parameters, batch, accumulation)
        assert _distance(found, expected) < 1e-14
        assert total.loss.host().value() == pytest.approx(sums.loss.host().value(), rel=1e-14)


@pytest.mark.parametrize("accumulation", [2, 3, 12])
def test_a_coupled_loss_has_the_gradient_of_the_whole_batch(accumulation):
    with jax.enable_x64(True):
        parameters, batch = _parameters(jnp.float64), _batch(np.float64)
        expected, sums = jax.grad(_whole, has_aux=True)(parameters, batch)
        found_sums, found = jax.jit(
            lambda p, b: coupled_gradient(_coupled, _statistics, p, b, accumulation)
        )(parameters, batch)
        assert _distance(found, expected) < 1e-12
        assert found_sums.loss.host().value() == pytest.approx(sums.loss.host().value(), rel=1e-12)


def _counts(parameters, part):
    """Rows on each side of a threshold: piecewise constant in the parameters."""
    above = (_outputs(parameters, part).sum(-1) > 0) & (part["weights"] > 0)
    return {"above": above.sum(), "rows": (part["weights"] > 0).sum()}


def _counted(parameters, part, counts):
    total = jax.tree.map(lambda x: x.sum(0), counts)
    losses = jnp.square(_outputs(parameters, part)).sum(-1)
    return _sums(losses * total["above"] / total["rows"], part)


@pytest.mark.parametrize("kind", ["additive", "counted", "coupled"])
def test_devices_add_up_their_own_rows_first(kind):
    """One reduction in the whole program, after the loop; the same sums and gradient."""
    mesh, axes = Mesh(data=3, tensor=2).arrange(jax.devices()[:6]), ("data",)
    functions = {"counted": (_counted, _counts), "coupled": (_coupled, _statistics)}
    numerator, *statistics = functions.get(kind, (_additive,))
    gradient_by = {"counted": counted_gradient, "coupled": coupled_gradient}
    function = gradient_by.get(kind, additive_gradient)
    with jax.enable_x64(True):
        parameters, batch = _parameters(jnp.float64), _batch(np.float64)
        batch["weights"][:4] = 0  # nothing counts on the first device
        own = [jax.tree.map(lambda x: x[None], s(parameters, batch)) for s in statistics]
        expected, sums = jax.grad(numerator, has_aux=True)(parameters, batch, *own)
        if kind == "coupled":
            expected = jax.grad(_whole, has_aux=True)(parameters, batch)[0]

        def run(parameters, batch):
            with activation_rules(mesh, Rules()):
                return function(numerator, *statistics, parameters, batch, 2, axes=axes)

        program = jax.jit(run).lower(parameters, batch).compile()
        found_sums, found = program(parameters, batch)
        assert _distance(found, expected) < 1e-12
        for name, ratio in {"loss": sums.loss, **sums.metrics}.items():
            one = found_sums.loss if name == "loss" else found_sums.metrics[name]
            assert one.host().value() == pytest.approx(ratio.host().value(), rel=1e-12)
    loops, entry = program.as_text().split("ENTRY")
    assert " all-reduce(" in entry
    assert " all-reduce(" not in loops


@pytest.mark.full
def test_without_the_pass_through_the_statistics_it_would_be_another_gradient():
    """The test above can fail: the two shortcuts are far off."""
    parameters, batch = _parameters(), _batch()
    expected = jax.grad(_whole, has_aux=True)(parameters, batch)[0]

    def alone(parameters, part):
        return _whole(parameters, part)

    def held(parameters, part):
        own = jax.lax.stop_gradient(_statistics(parameters, batch))
        return _coupled(parameters, part, jax.tree.map(lambda x: x[None], own))

    for shortcut in (alone, held):
        assert _distance(additive_gradient(shortcut, parameters, batch, 3)[1], expected) > 0.05


@pytest.mark.full
def test_gradients_are_summed_in_float32():
    parameters = jax.tree.map(lambda x: x.astype(jnp.bfloat16), _parameters())
    for accumulation in (1, 3):
        gradient = additive_gradient(_additive, parameters, _batch(), accumulation)[1]
        assert {x.dtype for x in gradient.values()} == {jnp.dtype(jnp.float32)}
    gradient = coupled_gradient(_coupled, _statistics, parameters, _batch(), 3)[1]
    assert {x.dtype for x in gradient.values()} == {jnp.dtype(jnp.float32)}
