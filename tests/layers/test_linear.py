import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import FanIn, Linear, MatrixProduct, Normal, QuantizedProduct
from luthier.parallel import Mesh, Rules, activation_rules, activation_rules_table, constrain

HEADS = {
    "inputs": (6,),
    "outputs": (2, 4),
    "input_axes": ("embed",),
    "output_axes": ("heads", "head_dim"),
}
EMBED = {
    "inputs": (2, 4),
    "outputs": (6,),
    "input_axes": ("heads", "head_dim"),
    "output_axes": ("embed",),
}


def test_maps_groups_of_dimensions(draw):
    up = Linear(bias=Normal(1.0), **HEADS, rngs=nnx.Rngs(0))
    down = Linear(**EMBED, rngs=nnx.Rngs(1))
    x_BLD = draw(3, 5, 6)
    y_BLHK = jnp.einsum("BLD,DHK->BLHK", x_BLD, up.kernel[...]) + up.bias[...]
    np.testing.assert_allclose(up(x_BLD), y_BLHK, rtol=1e-5, atol=1e-6)
    z_BLD = jnp.einsum("BLHK,HKD->BLD", y_BLHK, down.kernel[...])
    np.testing.assert_allclose(down(y_BLHK), z_BLD, rtol=1e-5, atol=1e-6)
    assert up.kernel.get_metadata()["logical_axes"] == ("embed", "heads", "head_dim")
    assert up.bias.get_metadata()["logical_axes"] == ("heads", "head_dim")
    assert down.bias is None


def test_variance_scaling_knows_what_is_summed_over():
    sizes = {**EMBED, "inputs": (20, 10), "outputs": (300,)}
    kernel = Linear(FanIn(), **sizes, rngs=nnx.Rngs(0)).kernel[...]
    np.testing.assert_allclose(kernel.std(), 200**-0.5, rtol=0.02)


def test_gradients(draw):
    linear = Linear(**HEADS, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(linear)
    x, weights = draw(3, 5, 6), draw(3, 5, 2, 4)

    def ours(state, x):
        return (nnx.merge(graphdef, state)(x) * weights).sum()

    def plain(kernel, x):
        return (jnp.einsum("BLD,DHK->BLHK", x, kernel) * weights).sum()

    (state_grad, x_grad) = jax.grad(ours, (0, 1))(state, x)
    kernel_grad, x_grad_plain = jax.grad(plain, (0, 1))(linear.kernel[...], x)
    np.testing.assert_allclose(state_grad["kernel"][...], kernel_grad, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(x_grad, x_grad_plain, rtol=1e-5, atol=1e-5)


def test_the_backward_pass_has_two_products(draw):
    linear = Linear(**HEADS, rngs=nnx.Rngs(0))
    text = str(jax.make_jaxpr(jax.grad(lambda x: linear(x).sum()))(draw(3, 5, 6)))
    assert text.count("dot_general[") == 2  # forward, and to x; none is computed again


def test_computes_in_its_dtype(draw):
    linear = Linear(bias=Normal(), **HEADS, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert linear.kernel.dtype == jnp.float32
    assert linear(draw(3, 6)).dtype == jnp.bfloat16


@pytest.mark.parametrize("product", [MatrixProduct(), QuantizedProduct(gradient=jnp.int8)])
def test_where_the_length_is_shared_out_each_device_maps_its_own_positions(product, draw):
    linear = Linear(product=product, **HEADS, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(linear)
    x_BLD, axes = draw(4, 64, 6), ("batch", "length", "embed")

    def loss(state, x_BLD):
        return (nnx.merge(graphdef, state)(constrain(x_BLD, axes)) ** 2).mean()

    expected = jax.jit(jax.value_and_grad(loss))(state, x_BLD)
    mesh = Mesh(data=2, sequence=2).arrange(jax.devices()[:4])
    with activation_rules(mesh, Rules(activations=activation_rules_table())):
        compiled = jax.jit(jax.value_and_grad(loss)).lower(state, x_BLD).compile()
        found = compiled(*jax.device_put((state, x_BLD), compiled.input_shardings[0]))
    for leaf, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-5, atol=1e-6)
    text = compiled.as_text()
    assert "all-gather" not in text
    sizes = [shape.split(",") for shape in re.findall(r"= \w+\[([\d,]+)\]\S* dot\(", text)]
    made = {math.prod(map(int, shape)) for shape in sizes}
    assert made == {64 * 8, 6 * 8}  # half of the rows and of their positions; and the gradient
