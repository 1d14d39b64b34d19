import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import AllExperts, Capacity, Mlp
from luthier.layers.experts.dispatch import create_each
from luthier.layers.experts.routing import RoutedExperts

E, D = 3, 4


@pytest.fixture(scope="module")
def experts():
    template = functools.partial(Mlp, hidden_dim=5)
    return create_each(template, E, 2, nnx.Rngs(params=0), dim=D)


def _choice(experts_BLK):
    experts_BLK = jnp.asarray(experts_BLK, jnp.int32)
    weights_BLK = 1 / (1 + jnp.arange(experts_BLK.size, dtype=jnp.float32))
    zeros_BLE = jnp.zeros((*experts_BLK.shape[:2], E))
    return RoutedExperts(experts_BLK, weights_BLK.reshape(experts_BLK.shape), zeros_BLE, zeros_BLE)


def _expected(experts, x_BLD, choice, kept_BLK):
    """Apply every expert that is chosen and kept, one choice at a time."""
    graphdef, state = nnx.split(experts)
    y_BLD = np.zeros(x_BLD.shape)
    for b, l, k in np.argwhere(kept_BLK):
        number = int(choice.experts_BLK[b, l, k])
        expert = nnx.merge(graphdef, jax.tree.map(lambda x, e=number: x[e], state))
        y_BLD[b, l] += choice.weights_BLK[b, l, k] * expert(x_BLD[b : b + 1, l : l + 1])[0, 0]
    return y_BLD


# Row 0: expert 0 is wanted by four tokens. Row 1: a token of padding, of expert 3, which is none.
CHOSEN = [[[0, 1], [0, 2], [1, 0], [0, 1]], [[2, 1], [3, 3], [2, 0], [1, 2]]]


@pytest.mark.full
def test_all_experts_weigh_the_chosen(experts, draw):
    x_BLD, choice = draw(2, 4, D), _choice(CHOSEN)
    y_BLD, dropped = jax.jit(AllExperts())(experts, x_BLD, choice)
    expected = _expected(experts, x_BLD, choice, np.array(CHOSEN) < E)
    np.testing.assert_allclose(y_BLD, expected, atol=1e-6)
    assert float(dropped) == 0


@pytest.mark.parametrize(
    ("factor", "places", "kept"),
    [
        (1.5, 4, np.array(CHOSEN) < E),
        # ceil(0.75 * 2 * 4 / 3) = 2 places: first choices before second ones, then in order.
        (
            0.75,
            2,
            [[[1, 1], [1, 1], [1, 0], [0, 0]], [[1, 1], [0, 0], [1, 1], [1, 0]]],
        ),
        (0.1, 1, [[[1, 0], [0, 1], [1, 0], [0, 0]], [[1, 0], [0, 0], [0, 1], [1, 0]]]),
    ],
)
def test_capacity_drops_what_finds_no_place(experts, draw, factor, places, kept):
    x_BLD, choice, kept_BLK = draw(2, 4, D), _choice(CHOSEN), np.array(kept, bool)
    y_BLD, dropped = jax.jit(Capacity(factor))(experts, x_BLD, choice)
    np.testing.assert_allclose(y_BLD, _expected(experts, x_BLD, choice, kept_BLK), atol=1e-6)
    assert float(dropped) == (np.array(CHOSEN) < E).sum() - kept_BLK.sum()
    for row in range(2):
        loads = np.bincount(np.array(CHOSEN)[row][kept_BLK[row]], minlength=E)
        assert loads.max() <= places


def test_a_row_does_not_depend_on_other_rows(experts, draw):
    x_BLD, choice = draw(2, 4, D), _choice(CHOSEN)
    dispatch = jax.jit(Capacity(0.75))
    both, _ = dispatch(experts, x_BLD, choice)
    alone, _ = dispatch(experts, x_BLD[1:], jax.tree.map(lambda x: x[1:], choice))
    np.testing.assert_allclose(both[1:], alone, atol=1e-6)


@pytest.mark.full
def test_a_traced_factor_is_rejected(experts, draw):
    choice = _choice(CHOSEN)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda factor: Capacity(factor)(experts, draw(2, 4, D), choice))(1.0)
