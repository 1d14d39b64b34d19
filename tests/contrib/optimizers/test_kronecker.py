import jax.numpy as jnp

from luthier.contrib.optimizers import soap
from luthier.contrib.optimizers.kronecker import begin, multiply
from luthier.optim import Layout

LAYOUTS = {"k": Layout((3, 4, 2, 5), ("layers", "embed", "heads", "k"), 1)}
PARAMETERS = {"k": jnp.ones(LAYOUTS["k"].shape, jnp.bfloat16)}


def test_a_state_has_two_squares_for_each_side():
    state = begin(PARAMETERS, LAYOUTS, 100)
    assert state.left["k"].shape == state.left_map["k"].shape == (3, 4, 4)
    assert state.right["k"].shape == (3, 10, 10)
    assert state.left["k"].dtype == jnp.float32
    assert (state.right_map["k"][2] == jnp.eye(10)).all()


def test_long_sides_have_none():
    state = begin(PARAMETERS, LAYOUTS, 9)
    assert set(state.left) == {"k"}
    assert state.right == state.right_map == {}


def test_only_what_there_is_is_multiplied():
    x = jnp.ones((2, 3))
    assert multiply(None, x, None) is x
    assert (multiply(2 * jnp.eye(2), x, 3 * jnp.eye(3)) == 6).all()


def test_kernels_outside_the_mask_are_adams():
    parameters = {"unembedding.kernel": jnp.ones((4, 4)), "up.kernel": jnp.ones((4, 4))}
    parts = soap(0.1).init(parameters).stages[1].parts
    assert set(parts["matrices"].left) == {"up.kernel"}
    assert set(parts["rest"].first_moment) == {"unembedding.kernel"}
