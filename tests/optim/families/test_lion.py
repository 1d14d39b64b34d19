import jax.numpy as jnp
import numpy as np

from luthier.optim import lion


def test_every_entry_moves_by_the_learning_rate_and_none_stays_undecided():
    parameters = {"a.kernel": jnp.zeros(3)}
    optimizer = lion(0.1, weight_decay=0.0)
    state = optimizer.init(parameters)
    for gradient in ([1e-3, -1e3, 0.0], [1e-3, -1e-9, 0.0]):
        updates, state = optimizer.update({"a.kernel": jnp.asarray(gradient)}, state, parameters)
        np.testing.assert_allclose(updates["a.kernel"], [-0.1, 0.1, 0], rtol=1e-6)
