import functools
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import FullRemat, Groups, Linear, MatrixProduct, QuantizedProduct, Scanned

INT8 = QuantizedProduct()
FP8 = QuantizedProduct(jnp.float8_e4m3fn, jnp.float8_e4m3fn, jnp.float8_e5m2)
TYPES = {"int8": np.int8, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"int8": 127.0, "e4m3": 448.0, "e5m2": 57344.0}


def rounded(x, kind, axis):
    """Return what a factor is rounded to, along the dimension that is summed over."""
    x = np.asarray(x, np.float32)
    scale = np.abs(x).max(axis, keepdims=True) / np.float32(LARGEST[kind])
    ratio = x / scale
    if kind == "int8":
        return np.round(ratio).astype(np.float64) * scale
    return ratio.astype(TYPES[kind]).astype(np.float64) * scale


def gradients(product, x_TI, kernel_IO, weights_TO):
    def weighted(x_TI, kernel_IO):
        return (product(x_TI, kernel_IO) * weights_TO).sum()

    return jax.jit(jax.grad(weighted, (0, 1)))(x_TI, kernel_IO)


@pytest.mark.parametrize(("product", "kind"), [(INT8, "int8"), (FP8, "e4m3")])
def test_it_is_the_product_of_rounded_factors(product, kind, draw, distance):
    x_TI, kernel_IO = draw(7, 16), draw(16, 5)
    expected = rounded(x_TI, kind, 1) @ rounded(kernel_IO, kind, 0)
    assert distance(product(x_TI, kernel_IO), expected) < 1e-6
    assert distance(expected, x_TI @ kernel_IO) < {"int8": 0.01, "e4m3": 0.05}[kind]


def test_weights_alone_are_rounded_where_inputs_are_left(draw, distance):
    x_TI, kernel_IO = draw(7, 16), draw(16, 5)
    found = QuantizedProduct(inputs=None)(x_TI, kernel_IO)
    assert distance(found, np.float64(x_TI) @ rounded(kernel_IO, "int8", 0)) < 1e-6


def test_without_a_type_for_gradients_the_backward_pass_is_the_plain_one(draw):
    factors = draw(7, 16), draw(16, 5), draw(7, 5)
    plain = gradients(MatrixProduct(), *factors)
    for found, expected in zip(gradients(INT8, *factors), plain, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("product", "kind", "of_gradient"),
    [(QuantizedProduct(gradient=jnp.int8), "int8", "int8"), (FP8, "e4m3", "e5m2")],
)
def test_with_one_all_three_products_are_quantized(product, kind, of_gradient, draw, distance):
    x_TI, kernel_IO, weights_TO = draw(7, 16), draw(16, 5), draw(7, 5)
    to_x, to_kernel = gradients(product, x_TI, kernel_IO, weights_TO)
    expected = rounded(weights_TO, of_gradient, 1) @ rounded(kernel_IO, kind, 1).T
    assert distance(to_x, expected) < 1e-6
    expected = rounded(x_TI, kind, 0).T @ rounded(weights_TO, of_gradient, 0)
    assert distance(to_kernel, expected) < 1e-6


@pytest.mark.parametrize("product", [INT8, QuantizedProduct(gradient=jnp.int8), FP8])
def test_tokens_may_be_several_dimensions(product, draw):
    x_BLI, kernel_IO, weights_BLO = draw(3, 7, 16), draw(16, 5), draw(3, 7, 5)
    flat = gradients(product, x_BLI.reshape(21, 16), kernel_IO, weights_BLO.reshape(21, 5))
    found = gradients(product, x_BLI, kernel_IO, weights_BLO)
    np.testing.assert_allclose(found[0].reshape(21, 16), flat[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1], flat[1], rtol=1e-6, atol=1e-6)
    y_TO = product(x_BLI.reshape(21, 16), kernel_IO)
    np.testing.assert_array_equal(product(x_BLI, kernel_IO).reshape(21, 5), y_TO)


def test_sums_of_integers_are_of_32_bits():
    count = 2**16
    x_TI, kernel_IO = jnp.ones((1, count)), jnp.ones((count, 1))
    np.testing.assert_allclose(INT8(x_TI, kernel_IO), count, rtol=2e-2)
    np.testing.assert_allclose(FP8(x_TI, kernel_IO), count, rtol=1e-5)


@pytest.mark.parametrize("product", [INT8, FP8])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(product, bad, draw):
    y_TO = np.asarray(product(draw(4, 6).at[1, 2].set(bad), draw(6, 3)))
    assert not np.isfinite(y_TO[1]).any()
    assert np.isfinite(y_TO[[0, 2, 3]]).all()


def test_results_are_of_the_type_of_the_factors(draw):
    for kind in (jnp.float32, jnp.bfloat16):
        x_TI, kernel_IO = draw(4, 6).astype(kind), draw(6, 3).astype(kind)
        to_x, to_kernel = gradients(FP8, x_TI, kernel_IO, jnp.ones((), kind))
        assert {FP8(x_TI, kernel_IO).dtype, to_x.dtype, to_kernel.dtype} == {jnp.dtype(kind)}


@pytest.mark.parametrize("product", [INT8, QuantizedProduct(gradient=jnp.int8), FP8])
@pytest.mark.parametrize(("tile", "sizes"), [(0, (2, 0, 4)), (2, (2, 0, 4)), (8, (16, 0, 8))])
def test_experts_multiply_as_each_would_alone(product, tile, sizes, draw, distance):
    num_rows = sum(sizes) + tile  # with a tile of no expert
    x_NI, kernel_EIO, weights_NO = draw(num_rows, 8), draw(3, 8, 5), draw(num_rows, 5)
    x_NI, weights_NO = (x.at[sum(sizes) :].set(0) for x in (x_NI, weights_NO))

    def weighted(x_NI, kernel_EIO):
        groups = Groups(jnp.array(sizes), sum(sizes), tile)
        y_NO = product.grouped(x_NI, kernel_EIO, groups)
        return (y_NO * weights_NO).sum(), y_NO

    (to_x, to_kernel), y_NO = jax.jit(jax.grad(weighted, (0, 1), has_aux=True))(x_NI, kernel_EIO)
    start = 0
    for expert, size in enumerate(sizes):
        rows, start = slice(start, start + size), start + size
        if not size:
            assert not to_kernel[expert].any()
            continue
        own = x_NI[rows], kernel_EIO[expert]
        assert distance(y_NO[rows], product(*own)) < 1e-6
        plain = gradients(MatrixProduct(), *own, weights_NO[rows])
        assert distance(to_x[rows], gradients(product, *own, weights_NO[rows])[0]) < 1e-6
        # Columns share a scale among the experts here, since rows of all of them are in one sum.
        assert distance(to_kernel[expert], plain[1]) < (0.2 if product.gradient else 1e-6)


@pytest.mark.parametrize("product", [INT8, FP8])
def test_it_goes_through_scans_and_remat(product, draw):
    x_BD, sizes = draw(4, 6), {"inputs": (6,), "outputs": (6,)}
    axes = {"input_axes": ("embed",), "output_axes": ("mlp",)}
    stack = Scanned(remat=FullRemat())
    make = functools.partial(Linear, product=product, **sizes, **axes)
    graphdef, state = nnx.split(stack.create([lambda rngs: make(rngs=rngs)], 3, nnx.Rngs(0)))

    def scanned(state):
        apply = lambda layer, index, carry, own: (layer(carry), None)
        return stack.apply(nnx.merge(graphdef, state), apply, x_BD)[0].sum()

    def by_hand(kernel_LIO):
        return functools.reduce(product, kernel_LIO, x_BD).sum()

    found, state_gradient = jax.jit(jax.value_and_grad(scanned))(state)
    kernel_LIO = state["kernel"][...]
    expected, gradient = jax.jit(jax.value_and_grad(by_hand))(kernel_LIO)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(state_gradient["kernel"][...], gradient, rtol=1e-5, atol=1e-6)


def test_each_of_many_has_scales_of_its_own(draw):
    x_ETI, kernel_EIO = draw(3, 4, 6), draw(3, 6, 5)
    found = jax.vmap(INT8)(x_ETI, kernel_EIO)
    for y_TO, x_TI, kernel_IO in zip(found, x_ETI, kernel_EIO, strict=True):
        np.testing.assert_allclose(y_TO, INT8(x_TI, kernel_IO), rtol=1e-6)


def test_types_that_are_none_are_refused_all_at_once():
    with pytest.raises(BadInput) as raised:
        QuantizedProduct(inputs=jnp.bfloat16, gradient=jnp.int4)
    choose = "choose among int8, float8_e4m3fn, float8_e5m2"
    assert str(raised.value).splitlines() == [
        f"inputs: factors cannot be quantized to bfloat16; {choose}",
        f"gradient: factors cannot be quantized to int4; {choose}",
    ]
    with pytest.raises(BadInput, match=r"^quantizes neither inputs nor kernel; use MatrixProduct$"):
        QuantizedProduct(None, None)


def test_a_missing_library_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "qwix", None)
    with pytest.raises(BadInput) as raised:
        QuantizedProduct()
    (line,) = str(raised.value).splitlines()
    assert line.startswith("quantized products need qwix: ")
    assert line.endswith("; pip install 'luthier[quantization]'")
