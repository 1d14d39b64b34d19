import functools

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from scipy import special, stats

from luthier.layers import (
    FanAverage,
    FanIn,
    Normal,
    Ones,
    TruncatedNormal,
    Uniform,
    Zeros,
    describe,
    standard_normal,
    truncated_normal,
)
from luthier.layers.initializers import erf_inv
from luthier.parallel import Mesh, make_mesh

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


# Normal samples.


def test_erf_inv_is_that_of_scipy():
    one = np.float32(1)
    ends = [np.nextafter(one, 0), 1 - 2**-20, 1e-30, 1e-7, 0.0]
    x = np.concatenate([np.linspace(-0.999999, 0.999999, 200_001), ends, np.negative(ends)])
    x = x.astype(np.float32)
    expected = special.erfinv(x.astype(np.float64))
    np.testing.assert_allclose(erf_inv(jnp.asarray(x)), expected, rtol=1e-6)


def test_samples_are_standard_normal():
    z = np.asarray(standard_normal(jax.random.key(0), (400_000,)), np.float64)
    assert z.dtype == np.float64
    assert np.isfinite(z).all()
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert abs(z.mean()) < 0.01
    assert abs(z.std() - 1) < 0.01
    assert abs(stats.kurtosis(z)) < 0.05


def test_samples_agree_with_jaxs_own_to_rounding():
    key = jax.random.key(5)
    own = jax.random.normal(key, (10_000,))
    np.testing.assert_allclose(standard_normal(key, (10_000,)), own, rtol=3e-6)


def test_truncated_samples_stay_within_two_deviations():
    z = np.asarray(truncated_normal(jax.random.key(0), (200_000,)), np.float64)
    assert np.abs(z).max() <= 2
    assert stats.kstest(z, stats.truncnorm(-2, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("shape", [(32, 32), (264, 32), (7, 8), (1024,)])
@pytest.mark.parametrize("draw", [standard_normal, truncated_normal])
def test_the_bits_do_not_depend_on_the_layout(shape, draw):
    key, whole = jax.random.key(1), None
    for axes in (
        (),
        ("data",),
        (None, "data"),
        ("fsdp", "tensor"),
        ("tensor", "fsdp"),
        (None, "fsdp"),
    ):
        sizes = Mesh(data=8).sizes(8) if "data" in axes else Mesh(fsdp=4, tensor=2).sizes(8)
        mesh = make_mesh(sizes, jax.devices()[:8])
        counts = [1 if axis is None else sizes[axis] for axis in axes]
        even = all(size % n == 0 for size, n in zip(shape, counts, strict=False))
        if len(axes) > len(shape) or not even:
            continue
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        found = np.asarray(jax.jit(draw, static_argnums=1, out_shardings=sharding)(key, shape))
        whole = found if whole is None else whole
        np.testing.assert_array_equal(found, whole, err_msg=str(axes))
