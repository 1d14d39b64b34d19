import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import Convolution, DepthwiseConvolution, Normal


def _reference(x, kernel, bias, strides, dilation, padding):
    """The sum of the docstring, in float64 NumPy, tap by tap; kernel [*K, D, F]."""
    x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
    size = kernel.shape[:-2]
    x = np.pad(x, ((0, 0), *padding, (0, 0)))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
    shape = [(n - r) // s + 1 for n, r, s in zip(x.shape[1:-1], reach, strides, strict=True)]
    y = np.zeros((x.shape[0], *shape, kernel.shape[-1]))
    for place in np.ndindex(*shape):
        for tap in np.ndindex(*size):
            at = [s * p + d * k for s, p, d, k in zip(strides, place, dilation, tap, strict=True)]
            y[(slice(None), *place)] += x[(slice(None), *at)] @ kernel[tap]
    return y + np.asarray(bias, np.float64)


CASES = [
    ((11,), (3,), (1,), (1,), None, ((1, 1),)),
    ((11,), (4,), (2,), (1,), None, ((1, 2),)),
    ((11,), (3,), (1,), (2,), ((4, 0),), ((4, 0),)),
    ((7, 6), (3, 2), (2, 1), (1, 1), ((1, 1), (0, 0)), ((1, 1), (0, 0))),
    ((7, 6), (3, 3), (1, 1), (1, 2), None, ((1, 1), (2, 2))),
]


@pytest.mark.parametrize(("shape", "size", "strides", "dilation", "padding", "full"), CASES)
def test_against_the_sum_in_numpy(draw, apply, shape, size, strides, dilation, padding, full):
    x = draw(2, *shape, 3)
    module = Convolution(
        size, strides, dilation, padding, bias=Normal(1.0), in_dim=3, out_dim=4, rngs=nnx.Rngs(0)
    )
    expected = _reference(x, module.kernel[...], module.bias[...], strides, dilation, full)
    np.testing.assert_allclose(apply(module, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "size", "strides", "dilation", "padding", "full"), CASES)
def test_depthwise_is_each_channel_alone(
    draw, apply, shape, size, strides, dilation, padding, full
):
    x = draw(2, *shape, 3)
    module = DepthwiseConvolution(
        size, strides, dilation, padding, bias=Normal(1.0), dim=3, rngs=nnx.Rngs(0)
    )
    kernel, bias = np.asarray(module.kernel[...]), np.asarray(module.bias[...])
    alone = [
        _reference(
            x[..., c : c + 1], kernel[..., c : c + 1], bias[c : c + 1], strides, dilation, full
        )
        for c in range(3)
    ]
    np.testing.assert_allclose(apply(module, x), np.concatenate(alone, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_fan_in_counts_taps_and_channels():
    module = Convolution((5, 5), in_dim=16, out_dim=400, rngs=nnx.Rngs(0))
    assert np.std(module.kernel[...]) == pytest.approx((2 / (25 * 16)) ** 0.5, rel=0.02)
    depthwise = DepthwiseConvolution((9,), dim=2000, rngs=nnx.Rngs(0))
    assert np.std(depthwise.kernel[...]) == pytest.approx((2 / 9) ** 0.5, rel=0.02)


def test_outputs_are_shared_out():
    module = Convolution((3, 3), bias=Normal(), in_dim=3, out_dim=8, rngs=nnx.Rngs(0))
    assert module.kernel.get_metadata()["logical_axes"] == (None, None, None, "embed")
    assert module.bias.get_metadata()["logical_axes"] == ("embed",)


@pytest.mark.parametrize("arguments", [((3,), (1, 1)), ((3, 3), None, (1,)), ((3,) * 4,)])
def test_dimensions_that_do_not_fit_are_bad_input(arguments):
    with pytest.raises(BadInput, match="dimensions"):
        Convolution(*arguments, in_dim=1, out_dim=1, rngs=nnx.Rngs(0))
