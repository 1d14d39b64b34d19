import jax.numpy as jnp
import numpy as np

from luthier.contrib.optimizers import lamb
from luthier.optim import Layout, Matching

LAYOUTS = {"k": Layout((2, 3), ("layers", "embed")), "b": Layout((3,))}


def test_each_layer_moves_in_proportion_to_itself():
    parameters = {"k": jnp.asarray([[3.0, 0, 4], [0, 0, 0]]), "b": jnp.ones(3)}
    gradients = {"k": jnp.ones((2, 3)), "b": jnp.zeros(3)}
    optimizer = lamb(0.1, weight_decay=0.0)
    updates, _ = optimizer.update(gradients, optimizer.init(parameters), parameters, LAYOUTS)
    np.testing.assert_allclose(np.linalg.norm(updates["k"][0]), 0.5, rtol=1e-5)
    # A parameter of zeros must be able to leave them, and no gradient is no step.
    np.testing.assert_allclose(updates["k"][1], -0.1, rtol=1e-4)
    assert (updates["b"] == 0).all()


def test_parameters_outside_the_mask_move_as_adams():
    parameters = {"k": jnp.full((2, 3), 50.0), "b": jnp.full(3, 50.0)}
    gradients = {"k": jnp.ones((2, 3)), "b": jnp.ones(3)}
    optimizer = lamb(0.1, weight_decay=0.0, trust_mask=Matching("k"))
    updates, _ = optimizer.update(gradients, optimizer.init(parameters), parameters, LAYOUTS)
    np.testing.assert_allclose(updates["b"], -0.1, rtol=1e-4)
    np.testing.assert_allclose(updates["k"], -5, rtol=1e-4)
