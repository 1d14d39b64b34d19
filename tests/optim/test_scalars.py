import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.optim import runtime

VALUES = (1e-8, 1 / 3, 0.1, 0.7, 0.95, 1.0, 3.0, 1e4)


class Scalar:
    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return self.value


@pytest.mark.parametrize("function", [lambda x, h: x / h, lambda x, h: x * jnp.log1p(h)])
def test_a_constant_and_a_traced_value_give_the_same_bits(function):
    x = jnp.asarray(np.random.default_rng(0).normal(size=1000), jnp.float32)

    def apply(value, count):
        return function(x, runtime(value, count))

    traced = jax.jit(lambda value, count: apply(Scalar(value), count))
    for value in VALUES:
        constant = jax.jit(functools.partial(apply, value))(jnp.int32(0))
        np.testing.assert_array_equal(constant, traced(np.float32(value), jnp.int32(0)))


def test_the_value_is_that_of_the_number_in_float32():
    for value in (*VALUES, 0, 7, -0.0):
        found = runtime(value, 3)
        assert found.dtype == jnp.float32
        assert found == np.float32(value)


def test_float64_keeps_its_digits():
    with jax.enable_x64(True):
        assert runtime(0.1, 0).dtype == jnp.float64
        assert runtime(0.1, 0) == 0.1


def test_a_vector_of_counts_gives_a_vector():
    np.testing.assert_array_equal(runtime(2.0, jnp.arange(3)), [2.0, 2.0, 2.0])
