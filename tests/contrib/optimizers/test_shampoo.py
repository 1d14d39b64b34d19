import jax.numpy as jnp
import numpy as np
import pytest

from luthier.contrib.optimizers import scale_by_shampoo, shampoo
from luthier.optim import Layout

LAYOUTS = {"k": Layout((2, 4, 5), ("layers", "embed", "mlp"), 1)}


@pytest.mark.full
def test_the_update_has_the_size_of_adams():
    rng = np.random.default_rng(0)
    gradient = {"k": jnp.asarray(rng.normal(size=(2, 4, 5)), jnp.float32)}
    stage = scale_by_shampoo(0.9, 0.95, 0.9, 1e-6, 1, 100)
    state = stage.init(gradient, layouts=LAYOUTS)
    updates, _ = stage.update(gradient, state, gradient, count=jnp.int32(0), layouts=LAYOUTS)
    sizes = np.linalg.norm(np.asarray(updates["k"]).reshape(2, -1), axis=-1)
    np.testing.assert_allclose(sizes, np.sqrt(20), rtol=1e-4)


def test_roots_undo_the_scales_of_a_diagonal_gradient():
    scales = jnp.asarray([1.0, 4.0, 16.0])
    gradient = {"up.kernel": jnp.diag(scales)}
    stage = scale_by_shampoo(0.0, 0.0, 0.0, 1e-6, 1, 100)
    layouts = {"up.kernel": Layout((3, 3), None, 1)}
    state = stage.init(gradient, layouts=layouts)
    updates, _ = stage.update(gradient, state, gradient, count=jnp.int32(0), layouts=layouts)
    np.testing.assert_allclose(updates["up.kernel"], np.eye(3), atol=1e-3)


def test_a_gradient_of_zeros_changes_nothing():
    parameters = {"up.kernel": jnp.ones((3, 3))}
    optimizer = shampoo(0.1, weight_decay=0.0)
    zeros = {"up.kernel": jnp.zeros((3, 3))}
    updates, _ = optimizer.update(zeros, optimizer.init(parameters), parameters)
    assert (updates["up.kernel"] == 0).all()
