import jax
import pytest

from luthier import layers
from luthier.recipes.foreign.pax.feed_forward import experts, feed_forward

BLOCK = "stacked_transformer_tpl__block"
LAYER = f"{BLOCK}__transformer_layer_params_tpl"


@pytest.fixture
def perceptron(lm):
    def make(name, **changes):
        below = {f"{LAYER}__tr_fflayer_tpl__{path}": value for path, value in changes.items()}
        layer = lm(name, **below)
        for part in LAYER.split("__"):
            layer = layer.get(part)
        made = feed_forward(layer.get("tr_fflayer_tpl"), layer, "tr_fflayer_tpl", 16, 32)
        return made, [one.field for one in layer.dump.leftovers if one.is_essential]

    return make


@pytest.fixture
def mixture(lm):
    def make(gating="top2", **changes):
        below = {f"{BLOCK}__moe_layer_tpl__{path}": value for path, value in changes.items()}
        stack = lm("glam", **below)
        for part in BLOCK.split("__"):
            stack = stack.get(part)
        settings = {"num_experts": 4, "gating_func": gating}
        made = experts(stack.get("moe_layer_tpl"), stack, 16, 32, settings)
        return made, [one.field for one in stack.dump.leftovers if one.is_essential]

    return make


def test_a_perceptron_with_and_without_a_gate(perceptron):
    plain, refused = perceptron("gpt")
    assert plain.__fn_or_cls__ is layers.Mlp
    assert (plain.hidden_dim, plain.activation) == (32, jax.nn.gelu)
    gated, _ = perceptron("llama")
    assert gated.__fn_or_cls__ is layers.GatedMlp
    assert gated.activation is jax.nn.silu
    assert not refused


@pytest.mark.parametrize(
    ("field", "value"), [("add_skip_connection", False), ("residual_weight", 0.5)]
)
def test_another_residual_is_refused(perceptron, field, value):
    assert perceptron("gpt", **{field: value})[1] == [field]


def test_places_of_experts_are_counted_by_choices(mixture):
    found, refused = mixture()
    assert found.__fn_or_cls__ is layers.Experts
    assert (found.num_experts, found.router.k, found.dispatch.factor) == (4, 2, 1.0)
    assert found.expert.hidden_dim == 24  # their own
    assert not refused


def test_all_experts_compute_where_gating_is_dense(mixture):
    assert mixture("dense_top2")[0].dispatch.__fn_or_cls__ is layers.AllExperts


REFUSED = {
    "second_expert_policy": "random",
    "moe_gating_embedding_level": "sentence",
    "gating_logit_cap": 5.0,
    "expert_capacity_dim": 8,
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_routes_otherwise_is_refused(mixture, field):
    assert mixture(**{field: REFUSED[field]})[1] == [field]


def test_another_gating_is_refused(mixture):
    assert mixture("expert_choice")[1] == ["gating_func"]
