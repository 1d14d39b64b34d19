import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from scipy import special, stats

from luthier.layers.initializers import erf_inv, standard_normal, truncated_normal
from luthier.parallel import Mesh, make_mesh


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
