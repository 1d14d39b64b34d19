import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.trainer import count_bins


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
def test_counts_are_those_of_numpy(scale):
    x = (scale * np.random.default_rng(0).normal(size=(40, 30))).astype(np.float32)
    low, high, counts = jax.jit(count_bins, static_argnums=1)(x, 16)
    expected, edges = np.histogram(x, 16)
    assert (float(low), float(high)) == (x.min(), x.max()) == (edges[0], edges[-1])
    # An entry within rounding of an edge may be counted on its other side.
    assert np.abs(np.asarray(counts) - expected).max() <= 1
    assert counts.sum() == x.size


@pytest.mark.full
def test_one_number_and_no_finite_number():
    low, high, counts = count_bins(jnp.full(5, 2.0), 4)
    assert (low, high) == (1.5, 2.5)
    np.testing.assert_array_equal(counts, np.histogram(np.full(5, 2.0), 4)[0])
    low, high, counts = count_bins(jnp.asarray([jnp.nan, jnp.inf]), 4)
    assert (low, high, counts.sum()) == (-0.5, 0.5, 0)
    low, high, counts = count_bins(jnp.asarray([jnp.nan, 1.0, 3.0, -jnp.inf]), 2)
    assert (low, high, counts.tolist()) == (1.0, 3.0, [1, 1])


@pytest.mark.full
def test_sharded_arrays_are_counted_whole():
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))
    count = jax.jit(count_bins, static_argnums=1)
    np.testing.assert_array_equal(count(spread, 16)[2], count(x, 16)[2])
