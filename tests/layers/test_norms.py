import functools
from unittest import mock

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


@pytest.mark.parametrize(("template", "reference"), CASES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_form_for_gpus_has_the_same_results_and_gradients(template, reference, dtype, draw):
    """A rule of its own; statistics are kept, and no barrier stands between the passes."""
    norm = template(dim=32, dtype=dtype, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(norm)
    x = (3.0 * draw(2, 5, 32) + 2.0).astype(dtype)
    weights = draw(2, 5, 32)

    def loss(state, x):
        y = nnx.merge(graphdef, state)(x)
        return (y.astype(jnp.float32) * weights).sum(), y

    def both(state, x):
        value, gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(state, x)
        # Forward mode, of the gradient as well.
        forward = jax.jvp(lambda x: loss(state, x)[0], (x,), (weights.astype(dtype),))[1]
        slope = jax.grad(lambda x: loss(state, x)[0])
        curvature = jax.jvp(slope, (x,), (weights.astype(dtype),))[1]
        return value, gradients, forward, curvature

    plain = jax.jit(both)(state, x)
    with mock.patch("luthier.layers.norms.current_platform", return_value="gpu"):
        found = jax.jit(lambda *args: both(*args))(state, x)
        text = str(jax.make_jaxpr(jax.grad(lambda x: loss(state, x)[0]))(x))
    # Of the cotangent, nothing waits in memory; the barrier that is there is that of statistics.
    assert "prevent_cse=False" in text
    assert "prevent_cse=True" not in text
    assert "optimization_barrier" in text
    error = 0.01 if dtype == jnp.bfloat16 else 2e-6
    np.testing.assert_allclose(
        found[0][1].astype(jnp.float32), reference(x, norm), rtol=error, atol=error
    )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        np.testing.assert_allclose(a, b, rtol=error, atol=error)


@pytest.mark.parametrize("template", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_epsilon_may_be_traced_and_have_an_axis(template, platform, draw):
    """As a hoisted setting of packed trials has."""

    def slope(epsilon, x):
        norm = template(epsilon, dim=8, rngs=nnx.Rngs(0))
        return jax.grad(lambda x: (nnx.merge(*nnx.split(norm))(x) ** 3).sum())(x)

    x = draw(3, 8)
    with mock.patch("luthier.layers.norms.current_platform", return_value=platform):
        found = jax.jit(jax.vmap(slope, (0, None)))(jnp.array([0.1, 2.0]), x)
        for part, epsilon in zip(found, (0.1, 2.0), strict=True):
            np.testing.assert_allclose(part, slope(epsilon, x), rtol=1e-5, atol=1e-6)


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
