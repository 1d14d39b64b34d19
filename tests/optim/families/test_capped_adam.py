import jax.numpy as jnp
import numpy as np

from luthier.optim import Layout, capped_adamw, clip_update_rms

LAYOUTS = {"k": Layout((2, 4), ("layers", "embed"))}


def test_the_cap_is_of_each_layer():
    updates = {"k": jnp.asarray([[2.0, -2, 2, 2], [0.5, 0.5, -0.5, 0.5]])}
    stage = clip_update_rms(1.0)
    capped, _ = stage.update(updates, stage.init(updates), count=jnp.int32(0), layouts=LAYOUTS)
    np.testing.assert_allclose(capped["k"], [[1, -1, 1, 1], [0.5, 0.5, -0.5, 0.5]], rtol=1e-6)


def test_rare_large_gradients_are_capped_and_everything_decays_by_default():
    parameters = {"norm.scale": jnp.ones(4)}
    steps = {}
    for cap in (1.0, None):
        optimizer = capped_adamw(0.1, b1=0.0, b2=0.9999, weight_decay=0.5, max_update_rms=cap)
        state = optimizer.init(parameters)
        for size in (1e-4, 1e-4, 1.0):
            gradients = {"norm.scale": jnp.full(4, size)}
            updates, state = optimizer.update(gradients, state, parameters)
        steps[cap] = float(updates["norm.scale"][0])
    np.testing.assert_allclose(steps[1.0], -0.1 * (1 + 0.5), rtol=1e-5)
    assert steps[None] < steps[1.0]


def test_an_infinite_gradient_shows():
    parameters = {"a": jnp.ones(2)}
    optimizer = capped_adamw(0.1, clip_norm=None)
    gradients = {"a": jnp.asarray([jnp.inf, 1.0])}
    updates, _ = optimizer.update(gradients, optimizer.init(parameters), parameters)
    assert jnp.isnan(updates["a"]).any()
