import math

import pytest

from luthier import layers
from luthier.recipes.foreign.pax.initializers import kernel


@pytest.fixture
def drawn(node):
    def make(method, scale, shape, fans=None):
        init = {"class": "praxis.WeightInit", "set": {"method": method, "scale": scale}}
        layer = node("Linear", params_init=init)
        return kernel(layer, shape, fans), layer

    return make


CASES = [
    ("xavier", 2.0, (4, 6), layers.FanAverage, {"scale": 4.0}),
    # Three dimensions: fan in 4 * 2, fan out 4 * 8.
    ("xavier", 1.0, (4, 2, 8), layers.Uniform, {"limit": math.sqrt(6 / 40)}),
    ("gaussian", 0.5, (4, 6), layers.Normal, {"stddev": 0.5}),
    ("gaussian_sqrt_dim", 1.0, (4, 6), layers.Normal, {"stddev": 0.5}),
    ("gaussian_sqrt_fanin", 1.0, (16, 6), layers.Normal, {"stddev": 0.25}),
    ("gaussian_sqrt_fanout", 1.0, (6, 16), layers.Normal, {"stddev": 0.25}),
    ("gaussian_sqrt_fanavg", 1.0, (10, 6), layers.Normal, {"stddev": 8**-0.5}),
    ("truncated_gaussian", 1.0, (4, 6), layers.TruncatedNormal, {"stddev": 0.8796256610342398}),
    ("uniform", 0.5, (4, 6), layers.Uniform, {"limit": 0.5}),
    ("uniform_sqrt_fanavg", 1.0, (2, 4), layers.Uniform, {"limit": 1.0}),
    ("uniform_unit_scaling", 1.0, (3, 4), layers.Uniform, {"limit": 1.0}),
    ("constant", 0.0, (4,), layers.Zeros, {}),
    ("constant", 1.0, (4,), layers.Ones, {}),
]


@pytest.mark.parametrize(("method", "scale", "shape", "kind", "settings"), CASES)
def test_every_method_has_its_initializer(drawn, method, scale, shape, kind, settings):
    found, layer = drawn(method, scale, shape)
    assert found.__fn_or_cls__ is kind
    assert dict(found.__arguments__) == pytest.approx(settings)
    assert not layer.dump.leftovers


def test_explicit_fans_are_used(drawn):
    found, _ = drawn("gaussian_sqrt_fanin", 1.0, (4, 2, 8), fans=(4, 16))
    assert found.stddev == 0.5


def test_an_unknown_method_is_reported_and_does_not_hinder(drawn):
    found, layer = drawn("delta_orthogonal", 1.0, (4, 6))
    assert found.__fn_or_cls__ is layers.FanAverage
    (leftover,) = layer.dump.leftovers
    assert (leftover.field, leftover.value, leftover.is_essential) == (
        "method",
        "delta_orthogonal",
        False,
    )


def test_the_default_is_that_of_the_layer_above(lm):
    head = lm("gpt").get("softmax_tpl")
    linear = head.get("feed_forward_tpl").get("linear_tpl")
    assert kernel(linear, (16, 48)).stddev == 0.25
