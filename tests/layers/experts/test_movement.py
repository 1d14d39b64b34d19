import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.layers.experts.dispatch import collect, inverse, spread

# Five tokens of two choices each, seven places: choice 0 of token 1 and both of token 4 have none,
# and places 2 and 5 stay empty; a token may have two places.
PLACES_TK = np.array([[3, 0], [7, 1], [6, 4], [7, 7], [7, 7]], np.int32)
SOURCES_M = np.array([1, 3, 10, 0, 5, 10, 4], np.int32)


def test_the_inverse_of_the_places_are_the_sources():
    np.testing.assert_array_equal(inverse(jnp.asarray(PLACES_TK), 7), SOURCES_M)


def test_places_hold_their_tokens_and_choices_get_what_is_there(draw):
    x_TD, y_MD = draw(5, 3), draw(7, 3)
    spread_MD = np.zeros((7, 3), np.float32)
    collected_TKD = np.zeros((5, 2, 3), np.float32)
    for t, k in np.ndindex(5, 2):
        if PLACES_TK[t, k] < 7:
            spread_MD[PLACES_TK[t, k]] = x_TD[t]
            collected_TKD[t, k] = y_MD[PLACES_TK[t, k]]
    np.testing.assert_array_equal(spread(x_TD, SOURCES_M, PLACES_TK), spread_MD)
    np.testing.assert_array_equal(collect(y_MD, SOURCES_M, PLACES_TK), collected_TKD)


@pytest.mark.parametrize(("move", "size"), [(spread, 5), (collect, 7)])
def test_the_derivative_is_that_of_a_gather(move, size, draw, distance):
    array, rows = draw(size, 3), SOURCES_M // 2 if move is spread else PLACES_TK

    def gathered(array):
        return array.at[rows].get(mode="fill", fill_value=0)

    def loss(function, array):
        return jnp.sum(jnp.sin(function(array)) * jnp.arange(3.0))

    found = jax.grad(lambda x: loss(lambda x: move(x, SOURCES_M, PLACES_TK), x))(array)
    assert distance(found, jax.grad(lambda x: loss(gathered, x))(array)) < 1e-6


def test_what_is_not_finite_at_an_empty_place_goes_nowhere():
    y_MD = jnp.ones((7, 1)).at[jnp.array([2, 5])].set(jnp.nan)
    assert np.isfinite(collect(y_MD, SOURCES_M, PLACES_TK)).all()
    gradient = jax.vjp(lambda x: spread(x, SOURCES_M, PLACES_TK), jnp.ones((5, 1)))[1](y_MD)[0]
    assert np.isfinite(gradient).all()
