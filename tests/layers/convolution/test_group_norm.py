import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import GroupNorm, Normal


@pytest.mark.parametrize("num_groups", [1, 2, 6])
def test_against_numpy_in_float64(draw, apply, num_groups):
    x = 2 * draw(3, 4, 5, 6) + 1
    module = GroupNorm(num_groups, 1e-3, Normal(1.0), Normal(1.0), dim=6, rngs=nnx.Rngs(0))
    groups = np.asarray(x, np.float64).reshape(3, 20, num_groups, -1)
    normed = groups - groups.mean((1, 3), keepdims=True)
    normed /= np.sqrt(groups.var((1, 3), keepdims=True) + 1e-3)
    expected = normed.reshape(x.shape) * np.asarray(module.scale[...]) + np.asarray(
        module.bias[...]
    )
    np.testing.assert_allclose(apply(module, x), expected, rtol=1e-4, atol=1e-5)


def test_rows_do_not_see_each_other(draw, apply):
    x = draw(3, 4, 6)
    module = GroupNorm(2, dim=6, rngs=nnx.Rngs(0))
    whole = apply(module, x, jnp.ones(3))
    np.testing.assert_allclose(whole[:1], apply(module, x[:1], None), rtol=1e-5, atol=1e-6)
    assert not hasattr(module, "COUPLES")


def test_channels_that_do_not_divide_are_bad_input():
    with pytest.raises(BadInput, match="6 channels do not divide into 4 groups"):
        GroupNorm(4, dim=6, rngs=nnx.Rngs(0))
