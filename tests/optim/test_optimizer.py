import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from luthier.optim import Constant, Piecewise, assemble, scale_by_adam


@pytest.mark.full
def test_stages_of_optax_make_an_optimizer():
    parameters = {"a": jnp.asarray([1.0, 2.0]), "b": jnp.ones((2, 2))}
    gradients = {"a": jnp.asarray([0.5, -1.0]), "b": jnp.full((2, 2), 0.1)}
    ours = assemble([optax.clip_by_global_norm(1.0), optax.scale_by_lion(0.9, 0.99)], 0.1)
    theirs = optax.chain(optax.clip_by_global_norm(1.0), optax.lion(0.1, 0.9, 0.99, weight_decay=0))
    found, _ = ours.transformation.update(
        gradients, ours.transformation.init(parameters), parameters
    )
    expected, _ = theirs.update(gradients, theirs.init(parameters), parameters)
    for name in parameters:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    assert ours.learning_rate == Constant(0.1)


def test_the_schedule_follows_the_number_of_updates():
    optimizer = assemble([], Piecewise([1.0, 0.5, 0.0], [1, 2]))
    update = jax.jit(optimizer.transformation.update)
    state = optimizer.transformation.init({"a": jnp.zeros(())})
    found = []
    for step in range(3):
        assert state.num_updates == step
        updates, state = update({"a": jnp.ones(())}, state, {"a": jnp.zeros(())})
        found.append(float(updates["a"]))
        assert found[-1] == -float(optimizer.learning_rate(step))
    assert found == [-1.0, -0.5, 0.0]


@pytest.mark.full
def test_gradients_are_widened_before_the_first_stage():
    optimizer = assemble([scale_by_adam(0.9, 0.95, 1e-8)], 1.0)
    parameters = {"a": jnp.ones(3, jnp.bfloat16)}
    state = optimizer.transformation.init(parameters)
    updates, state = optimizer.transformation.update(parameters, state, parameters)
    assert {leaf.dtype for leaf in jax.tree.leaves((updates, state.stages))} == {
        jnp.dtype(jnp.float32)
    }
