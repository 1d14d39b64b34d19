import jax.numpy as jnp
import numpy as np
import pytest

from luthier.contrib.optimizers import scale_by_shampoo, scale_by_soap, soap
from luthier.optim import Layout

LAYOUTS = {"k": Layout((3, 4, 2, 5), ("layers", "embed", "heads", "k"), 1)}
PARAMETERS = {"k": jnp.ones(LAYOUTS["k"].shape, jnp.bfloat16)}


def begin(parameters, layouts, largest_dim):
    return scale_by_soap(0.9, 0.95, 0.9, 1e-8, 10, largest_dim).init(parameters, layouts=layouts)


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


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_matrix_with_one_side_is_multiplied_on_that_side_only(is_turned):
    gradient = jnp.asarray([[1.0, 0, 0], [0, 4, 0]])
    gradient = gradient.T if is_turned else gradient
    layouts = {"k": Layout(gradient.shape, None, 1)}
    stage = scale_by_shampoo(0.0, 0.0, 0.0, 1e-6, 1, 2)
    state = stage.init({"k": gradient}, layouts=layouts)
    assert (set(state.left), set(state.right)) == ((set(), {"k"}) if is_turned else ({"k"}, set()))
    updates, _ = stage.update(
        {"k": gradient}, state, {"k": gradient}, count=jnp.int32(0), layouts=layouts
    )
    np.testing.assert_allclose(updates["k"], jnp.sign(gradient), atol=1e-3)


def test_kernels_outside_the_mask_are_adams():
    parameters = {"unembedding.kernel": jnp.ones((4, 4)), "up.kernel": jnp.ones((4, 4))}
    parts = soap(0.1).init(parameters).stages[1].parts
    assert set(parts["matrices"].left) == {"up.kernel"}
    assert set(parts["rest"].first_moment) == {"unembedding.kernel"}
