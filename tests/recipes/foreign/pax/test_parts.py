import fiddle as fdl
import jax
import pytest

from luthier import layers
from luthier.recipes.foreign.pax import parts


def test_scales_of_norms_are_kept_as_pax_keeps_them(node):
    from_one = parts.norm(node("LayerNorm", epsilon=1e-5, use_bias=True), None, "ln_tpl")
    assert (from_one.offset, from_one.epsilon) == (1.0, 1e-5)
    direct = parts.norm(node("RmsNorm", epsilon=1e-6, direct_scale=True), None, "ln_tpl")
    assert dict(direct.__arguments__) == {"epsilon": 1e-6}
    without = node("LayerNorm", epsilon=1e-5, use_bias=False)
    assert parts.norm(without, None, "ln_tpl").bias is None


def test_another_norm_is_refused(node):
    above = node("Transformer", ln_tpl={"class": "praxis.BatchNorm", "set": {}})
    parts.norm(above.get("ln_tpl"), above, "ln_tpl")
    (leftover,) = above.dump.leftovers
    assert str(leftover) == (
        "task.ln_tpl = BatchNorm (Transformer): supported: LayerNorm and RmsNorm"
    )


@pytest.mark.parametrize(
    ("kind", "function"), [("ReLU", jax.nn.relu), ("Swish", jax.nn.silu), ("GELU", jax.nn.gelu)]
)
def test_activations(node, kind, function):
    assert parts.activation(node(kind), None, "activation_tpl") is function


def test_the_exact_gelu_is_another(node):
    found = parts.activation(node("GELU", approximate=False), None, "activation_tpl")
    assert isinstance(found, fdl.Partial)
    assert found.approximate is False


def test_a_number_must_be_one(node):
    found = node("Any", size="many")
    assert parts.number(found, "size") == 1
    assert [one.field for one in found.dump.leftovers] == ["size"]


def test_caps_and_dropout_are_nothing_at_zero(node):
    found = node("Any", cap=0.0, high=30.0, none=None, rate=0.1, zero=0.0)
    assert [parts.cap(found, name) for name in ("cap", "high", "none")] == [None, 30.0, None]
    assert parts.dropout(found, "zero") is None
    assert parts.dropout(found, "rate").rate == 0.1


def test_biases_stand_where_they_are_asked_for(node):
    found = parts.linear(node("FeedForward"), 4, 6, has_bias=True)
    assert found.bias.__fn_or_cls__ is layers.Zeros
    assert "bias" not in parts.linear(node("FeedForward"), 4, 6, has_bias=False).__arguments__
