import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from luthier.optim import chain, clip_by_global_norm, global_norm

ZERO = jnp.int32(0)


def test_the_global_norm_is_that_of_one_vector():
    arrays = {"a": np.full((3, 4), 2.0, np.float32), "b": np.ones(5, np.float32)}
    np.testing.assert_allclose(global_norm(arrays), np.sqrt(53), rtol=1e-6)
    np.testing.assert_allclose(global_norm(arrays), optax.tree.norm(arrays), rtol=1e-6)
    assert global_norm({}) == 0


def test_the_global_norm_of_narrow_arrays_is_accumulated_wide():
    arrays = {"a": jnp.full(4096, 0.1, jnp.bfloat16)}
    expected = np.linalg.norm(np.asarray(arrays["a"], np.float64))
    assert global_norm(arrays).dtype == jnp.float32
    np.testing.assert_allclose(global_norm(arrays), expected, rtol=1e-6)


@pytest.mark.parametrize(("limit", "norm"), [(0.5, 0.5), (5.0, 5.0), (20.0, 10.0)])
def test_clipping(limit, norm):
    clip = clip_by_global_norm(limit)
    gradients = {"a": jnp.asarray([6.0]), "b": jnp.asarray([[8.0]])}
    clipped, _ = clip.update(gradients, clip.init(gradients), count=ZERO)
    np.testing.assert_allclose(global_norm(clipped), norm, rtol=1e-6)
    np.testing.assert_allclose(clipped["b"] / clipped["a"], [[8 / 6]], rtol=1e-6)


def test_clipping_leaves_zeros_and_shows_what_is_not_finite():
    clip = clip_by_global_norm(1.0)
    zeros, _ = clip.update({"a": jnp.zeros(3)}, clip.init({}), count=ZERO)
    assert (zeros["a"] == 0).all()
    broken, _ = clip.update({"a": jnp.asarray([1.0, jnp.nan])}, clip.init({}), count=ZERO)
    assert jnp.isnan(broken["a"]).all()


def test_chain_takes_a_list_of_any_transformations():
    transformation = chain([optax.scale(2.0), clip_by_global_norm(1.0), optax.identity()])
    gradients = {"a": jnp.asarray([3.0])}
    updates, _ = jax.jit(transformation.update)(
        gradients, transformation.init(gradients), count=ZERO
    )
    assert updates["a"] == 1
