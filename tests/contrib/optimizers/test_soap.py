import jax.numpy as jnp
import numpy as np
import pytest

from luthier.contrib.optimizers import scale_by_soap
from luthier.optim import Layout


def _run(stage, gradients):
    parameters = {"k": jnp.zeros_like(gradients[0])}
    state, updates = stage.init(parameters), []
    layouts = {"k": Layout((5, 5), None, 1)}
    for count, gradient in enumerate(gradients):
        update, state = stage.update(
            {"k": gradient}, state, parameters, count=jnp.int32(count), layouts=layouts
        )
        updates.append(update["k"])
    return updates, state


def _gradients(count):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(5, 5)), jnp.float32) for _ in range(count)]


@pytest.mark.full
def test_the_first_gradient_gives_a_basis_and_no_update():
    updates, state = _run(scale_by_soap(0.9, 0.95, 0.9, 1e-8, 10, 100), _gradients(1))
    assert (updates[0] == 0).all()
    left, right = state.left_map["k"], state.right_map["k"]
    np.testing.assert_allclose(left.T @ left, np.eye(5), atol=1e-6)
    diagonal = left.T @ _gradients(1)[0] @ right
    off = diagonal - np.diag(np.diag(diagonal))
    assert np.abs(off).max() < 1e-5 * np.abs(diagonal).max()


def test_bases_stay_orthogonal_and_are_renewed_when_due():
    gradients = _gradients(8)
    _, state = _run(scale_by_soap(0.9, 0.95, 0.9, 1e-8, 3, 100), gradients)
    left = state.left_map["k"]
    np.testing.assert_allclose(left.T @ left, np.eye(5), atol=1e-6)
    _, before = _run(scale_by_soap(0.9, 0.95, 0.9, 1e-8, 3, 100), gradients[:7])
    _, at = _run(scale_by_soap(0.9, 0.95, 0.9, 1e-8, 3, 100), gradients[:6])
    np.testing.assert_array_equal(left, before.left_map["k"])  # counts 6 and 7
    assert (before.left_map["k"] != at.left_map["k"]).any()


def test_without_sides_it_is_adam_from_the_second_gradient_on():
    stage = scale_by_soap(0.9, 0.95, 0.9, 1e-8, 10, 1)
    gradients = _gradients(2)
    updates, state = _run(stage, gradients)
    assert state.left == state.right == {}
    np.testing.assert_allclose(updates[1], jnp.sign(gradients[1]), rtol=1e-5)
