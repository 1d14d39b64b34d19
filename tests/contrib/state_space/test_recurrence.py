import jax.numpy as jnp
import numpy as np

from luthier.contrib.state_space import diagonal_recurrence
from luthier.contrib.state_space.recurrence import forgetful


def _complex(generator, *shape):
    return generator.standard_normal(shape) + 1j * generator.standard_normal(shape)


def test_all_steps_at_once_are_one_after_the_other(recur, double):
    generator = np.random.default_rng(0)
    decay = 0.9 * np.exp(1j * generator.uniform(0, 6, (2, 37, 3)))
    inputs, start = _complex(generator, 2, 37, 3), _complex(generator, 2, 3)
    np.testing.assert_allclose(
        diagonal_recurrence(jnp.asarray(decay), jnp.asarray(inputs)),
        recur(decay, inputs),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        diagonal_recurrence(jnp.asarray(decay), jnp.asarray(inputs), jnp.asarray(start)),
        recur(decay, inputs, start),
        rtol=1e-12,
    )


def test_a_new_segment_forgets(pack):
    decay = forgetful(jnp.float32([0.5, 0.25]), pack([[3, 2]], 6))
    assert decay.shape == (1, 6, 2)
    np.testing.assert_array_equal(decay[0, :, 0], [0, 0.5, 0.5, 0, 0.5, 0])


def test_one_token_at_a_time_keeps_what_was_before():
    from luthier.layers import Tokens

    tokens = Tokens(jnp.int32([[4]]), jnp.int32([[1]]))
    assert forgetful(jnp.float32([0.5]), tokens).item() == 0.5
