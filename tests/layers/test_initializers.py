import functools

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.layers import FanAverage, FanIn, Normal, Ones, TruncatedNormal, Uniform, Zeros
from luthier.layers.initializers import describe

SHAPE = (400, 100)


@pytest.mark.parametrize(
    ("initializer", "stddev"),
    [
        (Normal(0.3), 0.3),
        (TruncatedNormal(0.3), 0.3),
        (Uniform(0.3), 0.3 / 3**0.5),
        (FanIn(), 400**-0.5),
        (FanIn(2.0), (2 / 400) ** 0.5),
        (FanAverage(), (2 / 500) ** 0.5),
        (FanAverage(0.5), (1 / 500) ** 0.5),
    ],
    ids=repr,
)
def test_moments(initializer, stddev):
    sample = np.asarray(initializer(jax.random.key(0), SHAPE, jnp.float32), np.float64)
    assert sample.shape == SHAPE
    assert abs(sample.mean()) < 4 * stddev / sample.size**0.5
    np.testing.assert_allclose(sample.std(), stddev, rtol=0.02)


def test_supports():
    truncated = TruncatedNormal(1.0)(jax.random.key(0), SHAPE, jnp.float32)
    assert abs(truncated).max() <= 2 / 0.8796
    uniform = FanAverage()(jax.random.key(0), SHAPE, jnp.float32)
    assert abs(uniform).max() <= (6 / 500) ** 0.5
    assert 0.29 < abs(Uniform(0.3)(jax.random.key(0), SHAPE, jnp.float32)).max() <= 0.3


def test_constants():
    assert (Ones()(None, (2, 3), jnp.bfloat16) == jnp.ones((2, 3), jnp.bfloat16)).all()
    assert (Zeros()(None, (2, 3), jnp.float32) == jnp.zeros((2, 3))).all()


@pytest.mark.parametrize("initializer", [Normal, TruncatedNormal, Uniform, FanIn, FanAverage])
def test_values_may_be_traced(initializer):
    draw = lambda value: initializer(value)(jax.random.key(0), (4, 4), jnp.float32)
    np.testing.assert_allclose(jax.jit(draw)(0.5), draw(0.5), rtol=1e-6)


def test_initializers_are_values():
    assert Normal(0.1) == fdl.build(fdl.Config(Normal, stddev=0.1))
    assert hash(Normal(0.1)) == hash(Normal(0.1))
    assert repr(FanIn(2.0)) == "FanIn(scale=2.0)"


def test_samples_are_cast_from_float32():
    key = jax.random.key(3)
    full, half = (Normal()(key, (8, 8), dtype) for dtype in (jnp.float32, jnp.bfloat16))
    assert (full.astype(jnp.bfloat16) == half).all()


def test_initializers_are_described_as_people_write_them():
    initializers = {
        "Normal(stddev=0.02)": Normal(0.02),
        "Ones()": Ones(),
        "Normal(stddev=...)": Normal(jnp.ones(())),
        "normal": jax.nn.initializers.normal(0.3),
        "zeros": jax.nn.initializers.zeros,
        "zeros(dtype=None)": functools.partial(jax.nn.initializers.zeros, dtype=None),
    }
    assert {text: describe(initializer) for text, initializer in initializers.items()} == {
        text: text for text in initializers
    }
