import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.optim import Ema

DECAYS = (0.0, 0.5, 0.9, 0.99, 0.995, 0.999, 0.9999, 0.99999)


class Scalar:
    def __init__(self, value, complement):
        self.value, self.complement = value, complement

    def __jax_array__(self):
        return self.value

    def __rsub__(self, other):
        assert other == 1
        return self.complement


@pytest.mark.parametrize(("decay", "warmup"), [(0.9, 0), (0.999, 9), (0.5, 9), (0.0, 0)])
def test_the_closed_form_in_float64(decay, warmup):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 7)).astype(np.float32)
    ema = Ema(decay, warmup)
    average = ema.init({"a": jnp.asarray(values[0])})
    expected = values[0].astype(np.float64)
    update = jax.jit(ema.update)
    for t, value in enumerate(values[1:]):
        average = update(average, {"a": value}, jnp.int32(t))
        now = min(decay, (1 + t) / (warmup + 1 + t)) if warmup else decay
        expected = now * expected + (1 - now) * value
    np.testing.assert_allclose(average["a"], expected, rtol=1e-5, atol=1e-6)


def test_a_traced_decay_gives_the_bits_of_a_constant():
    rng = np.random.default_rng(0)
    average = {"a": jnp.asarray(rng.normal(size=100), jnp.float32)}
    parameters = {"a": jnp.asarray(rng.normal(size=100), jnp.float32)}

    def update(decay, step):
        return Ema(decay).update(average, parameters, step)["a"]

    traced = jax.jit(lambda v, c, step: update(Scalar(v, c), step))
    for decay in DECAYS:
        constant = jax.jit(functools.partial(update, decay))(jnp.int32(10**6))
        found = traced(np.float32(decay), np.float32(1 - decay), jnp.int32(10**6))
        np.testing.assert_array_equal(found, constant)
    assert traced._cache_size() == 1


def test_the_average_starts_as_a_wide_copy():
    parameters = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(2)}
    average = Ema().init(parameters)
    assert {x.dtype for x in average.values()} == {jnp.dtype(jnp.float32)}
    assert average["b"].unsafe_buffer_pointer() != parameters["b"].unsafe_buffer_pointer()
    assert Ema().update(average, parameters, 0)["a"].dtype == jnp.float32


def test_parameters_that_stand_still_are_the_average():
    parameters = {"a": jnp.asarray([1.0, -2.5])}
    average = Ema(0.999).init(parameters)
    for step in range(3):
        average = Ema(0.999).update(average, parameters, step)
    assert (average["a"] == parameters["a"]).all()
