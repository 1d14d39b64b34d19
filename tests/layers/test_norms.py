import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import LayerNorm, Normal, RMSNorm


def layer_norm(x, norm):
    x = np.asarray(x, np.float64)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + norm.epsilon)
    bias = 0.0 if norm.bias is None else np.asarray(norm.bias[...], np.float64)
    return x * (np.asarray(norm.scale[...], np.float64) + norm.offset) + bias


def rms_norm(x, norm):
    x = np.asarray(x, np.float64)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + norm.epsilon)
    return x * (np.asarray(norm.scale[...], np.float64) + norm.offset)


CASES = [
    (functools.partial(LayerNorm, scale=Normal(1.0), bias=Normal(1.0)), layer_norm),
    (functools.partial(LayerNorm, epsilon=0.1, bias=None), layer_norm),
    (functools.partial(RMSNorm, scale=Normal(1.0)), rms_norm),
    (functools.partial(RMSNorm, epsilon=0.1), rms_norm),
    (functools.partial(RMSNorm, scale=Normal(1.0), offset=1.0), rms_norm),
    (functools.partial(LayerNorm, scale=Normal(1.0), offset=1.0), layer_norm),
]


@pytest.mark.parametrize(("template", "reference"), CASES)
def test_against_the_closed_form(template, reference, draw, distance, apply):
    norm = template(dim=32, rngs=nnx.Rngs(0))
    x = 3.0 * draw(2, 5, 32) + 2.0
    assert distance(apply(norm, x), reference(x, norm)) < 1e-6


@pytest.mark.parametrize(("template", "reference"), CASES)
def test_statistics_are_float32(template, reference, draw, apply):
    norm = template(dim=32, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    x = (draw(2, 5, 32) + 100.0).astype(jnp.bfloat16)
    y = apply(norm, x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), reference(x, norm), rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("template", [LayerNorm, RMSNorm])
def test_epsilon_may_be_traced(template, draw):
    def normalize(epsilon, x):
        norm = template(epsilon, dim=8, rngs=nnx.Rngs(0))
        return nnx.merge(*nnx.split(norm))(x)

    x = draw(3, 8)
    np.testing.assert_allclose(jax.jit(normalize)(0.1, x), normalize(0.1, x), rtol=1e-6)


@pytest.mark.parametrize("template", [LayerNorm, RMSNorm])
def test_constant_input_has_finite_gradients(template):
    norm = template(dim=8, rngs=nnx.Rngs(0))
    gradient = jax.grad(lambda x: norm(x).sum())(jnp.zeros((2, 8)))
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("template", [LayerNorm, RMSNorm])
def test_the_axis_has_a_name(template):
    norm = template(dim=8, axes=("head_dim",), rngs=nnx.Rngs(0))
    assert norm.scale.get_metadata()["logical_axes"] == ("head_dim",)
    plain = template(dim=8, rngs=nnx.Rngs(0))
    assert plain.scale.get_metadata()["logical_axes"] == ("embed",)
