import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import Normal, TiedUnembedding, Unembedding, Zeros


def test_a_head_of_its_own_may_have_a_bias_below_the_cap():
    sizes = {"vocab_size": 5, "dim": 4}
    head = Unembedding(bias=Normal(1.0), cap=2.0, pad_to_multiple=8, **sizes, rngs=nnx.Rngs(0))
    x_BLD = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 4)), jnp.float32)
    assert head.bias.shape == (5,)
    logits = x_BLD @ head.kernel[...][:, :5] + head.bias[...]
    np.testing.assert_allclose(head(x_BLD, None), 2 * jnp.tanh(logits / 2), rtol=1e-5)
    assert Unembedding(**sizes, rngs=nnx.Rngs(0)).bias is None


def test_a_tied_head_with_a_bias_needs_keys_for_it():
    with pytest.raises(TypeError, match="a bias needs rngs"):
        TiedUnembedding(bias=Zeros(), vocab_size=5)
    assert TiedUnembedding(bias=Zeros(), vocab_size=5, rngs=nnx.Rngs(0)).bias.shape == (5,)
    assert TiedUnembedding(vocab_size=5).bias is None
