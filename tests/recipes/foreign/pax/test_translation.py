"""Each part of a Pax dump becomes the node that it means here."""

from __future__ import annotations

import math

import fiddle as fdl
import jax
import numpy as np
import pytest

from luthier import data as datasets
from luthier import graph as graphs
from luthier import layers, optim
from luthier.recipes import decoders
from luthier.recipes.foreign import differences, essence
from luthier.recipes.foreign.pax import parts
from luthier.recipes.foreign.pax.attention import AttentionSizes, attention
from luthier.recipes.foreign.pax.data import batch_size, data
from luthier.recipes.foreign.pax.decoder import decoder
from luthier.recipes.foreign.pax.feed_forward import experts, feed_forward
from luthier.recipes.foreign.pax.initializers import kernel
from luthier.recipes.foreign.pax.optimizers import average, optimizer
from luthier.recipes.foreign.pax.schedules import learning_rate

BLOCK = "stacked_transformer_tpl__block__transformer_layer_params_tpl"
PLAIN = "stacked_transformer_tpl__transformer_layer_params_tpl"


@pytest.fixture
def made(lm):
    """The attention of a golden, changed, and what it left over."""

    def make(name, where=BLOCK, head_dim=8, dropout=0.0, **changes):
        below = {f"{where}__tr_atten_tpl__{path}": value for path, value in changes.items()}
        found = lm(name, **below)
        for part in where.split("__"):
            found = found.get(part)
        sizes = AttentionSizes(16, 2, head_dim, dropout)
        template = attention(found.get("tr_atten_tpl"), found, "tr_atten_tpl", sizes)
        return template, found.dump

    return make


def fields(dump):
    return [(one.field, one.is_essential) for one in dump.leftovers]


def test_each_dimension_has_a_scale(made):
    found, dump = made("gpt")
    assert found.__fn_or_cls__ is layers.Attention
    assert found.query_key.__fn_or_cls__ is layers.QueryScale
    assert dict(found.core.__arguments__) == {"cap": 50.0}
    assert not fields(dump)


def test_a_scale_that_is_not_that_of_a_head_is_kept(made):
    found, _ = made("gpt", head_dim=4, internal_enable_per_dim_scale=False)
    assert found.core.scale == 8**-0.5  # of the dim over the heads
    found, _ = made("gpt", internal_enable_query_scale=False)
    assert found.core.scale == 1.0
    found, _ = made("gpt", scale_logits_by_head_dims=True)
    assert found.core.scale == pytest.approx(1 / 8)


def test_dropout_and_caps_are_those_of_the_core(made):
    found, _ = made("gpt", dropout=0.1, atten_logit_cap=0.0)
    assert dict(found.core.__arguments__) == {"dropout": 0.1}


def test_what_follows_the_rotation_follows_it_here(made):
    found, dump = made("gpt", use_rotary_position_emb=True)
    assert found.__fn_or_cls__ is layers.RotatedFirstAttention
    assert found.rotary.base == 10_000.0
    assert not dump.interleaved


def test_a_first_wavelength_stretches_the_others(made):
    found, _ = made("llama", rope_min_max_timescales=[10, 50_000])
    assert (found.rotary.base, found.rotary.scaling.factor) == (5000.0, 10.0)


def test_llama_of_pax_is_passed_to_the_weights(made):
    turn = {"class": "paxml.contrib.LLaMARotaryEmbedding", "set": {"max_timescale": 10_000}}
    turn["set"]["min_timescale"] = 1
    _, dump = made("gpt", use_rotary_position_emb=True, rotary_position_emb_tpl=turn)
    assert dump.interleaved
    assert not fields(dump)


def test_groups_share_keys_and_values(made):
    found, dump = made("llama")
    assert found.num_kv_heads == 2
    assert dump.heads_first is False
    found, dump = made("shared")
    assert found.num_kv_heads == 1
    assert dump.heads_first is True


def test_groups_must_divide_the_heads(made):
    _, dump = made("llama", num_kv_heads=3)
    assert fields(dump) == [("num_kv_heads", True)]


def test_relative_positions_have_a_table_in_every_layer(made):
    found, _ = made("glam")
    assert found.__fn_or_cls__ is layers.OwnBias
    buckets = found.bias.buckets
    assert buckets.__fn_or_cls__ is layers.PastBuckets
    assert (buckets.num_buckets, buckets.max_distance) == (8, 16)


REFUSED = {
    "dconv_qkv": True,
    "attention_extra_logit": 0.0,
    "ngrammer_tpl": {"class": "praxis.VQNgrammer", "set": {}},
    "rotary_position_emb_tpl": {"class": "praxis.OtherRotaryEmbedding", "set": {}},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_attends_otherwise_is_refused(made, field):
    _, dump = made("gpt", **{"use_rotary_position_emb": True, field: REFUSED[field]})
    assert fields(dump) == [(field, True)]


def test_norms_beside_a_scale_of_dimensions_are_refused(made):
    _, dump = made("post", where=PLAIN, internal_enable_per_dim_scale=True)
    assert fields(dump) == [("ln_tpl", True)]


def test_relative_positions_before_a_cap_are_refused(made):
    _, dump = made("glam", atten_logit_cap=50.0)
    assert fields(dump) == [("atten_logit_cap", True)]


def test_another_attention_is_refused(lm):
    other = {"class": "praxis.layers.LocalSelfAttention", "set": {}}
    layer = lm("gpt", **{f"{BLOCK}__tr_atten_tpl": other})
    for part in BLOCK.split("__"):
        layer = layer.get(part)
    attention(layer.get("tr_atten_tpl"), layer, "tr_atten_tpl", AttentionSizes(16, 2, 8, 0.0))
    (leftover,) = layer.dump.leftovers
    assert (leftover.value, leftover.is_essential) == ("LocalSelfAttention", True)


BLOCK_FEED_FORWARD = "stacked_transformer_tpl__block"
LAYER = f"{BLOCK_FEED_FORWARD}__transformer_layer_params_tpl"


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
        below = {
            f"{BLOCK_FEED_FORWARD}__moe_layer_tpl__{path}": value for path, value in changes.items()
        }
        stack = lm("glam", **below)
        for part in BLOCK_FEED_FORWARD.split("__"):
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


REFUSED_FEED_FORWARD = {
    "second_expert_policy": "random",
    "moe_gating_embedding_level": "sentence",
    "gating_logit_cap": 5.0,
    "expert_capacity_dim": 8,
}


@pytest.mark.parametrize("field", REFUSED_FEED_FORWARD)
def test_what_routes_otherwise_is_refused(mixture, field):
    assert mixture(**{field: REFUSED_FEED_FORWARD[field]})[1] == [field]


def test_another_gating_is_refused(mixture):
    assert mixture("expert_choice")[1] == ["gating_func"]


BLOCK_DECODER = "stacked_transformer_tpl__block"
LAYER_DECODER = f"{BLOCK_DECODER}__transformer_layer_params_tpl"


@pytest.fixture
def made_of_decoder(lm):
    def make(name, **changes):
        node = lm(name, **changes)
        return decoder(node), [one.field for one in node.dump.leftovers if one.is_essential]

    return make


def test_gpt3_is_that_of_our_recipe(made_of_decoder):
    found, refused = made_of_decoder("c4")
    sizes = {"vocab_size": 48, "dim": 16, "num_layers": 3, "num_heads": 2, "head_dim": 8}
    ours = decoders.pax_gpt3(**sizes, hidden_dim=32, max_length=16)
    assert not differences(essence(found), essence(ours))
    assert not refused


def test_base_model_a_is_that_of_our_recipe(made_of_decoder):
    found, _ = made_of_decoder("gpt")
    sizes = {"vocab_size": 48, "dim": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8}
    assert not differences(essence(found), essence(decoders.pax(**sizes, hidden_dim=32)))


BLOCKS = {
    "gpt": layers.PreNormBlock,
    "shared": layers.SandwichBlock,
    "post": layers.PostNormBlock,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_norms_stand_where_they_stood(made_of_decoder, name):
    assert made_of_decoder(name)[0].block.__fn_or_cls__ is BLOCKS[name]


def test_layers_of_several_kinds_take_turns(made_of_decoder):
    found, _ = made_of_decoder("glam")
    assert found.num_layers == 4
    first, second = found.block
    assert first.mlp.__fn_or_cls__ is layers.Experts
    assert second.mlp.__fn_or_cls__ is layers.GatedMlp


def test_kinds_that_do_not_repeat_are_all_reported(made_of_decoder):
    mixed = {f"{BLOCK_DECODER}__moe_layers": [1], f"{BLOCK_DECODER}__num_layers": 3}
    found, _ = made_of_decoder("glam", **mixed)
    assert found.num_layers == 6
    kinds = [block.mlp.__fn_or_cls__ for block in found.block]
    assert kinds == [layers.GatedMlp, layers.Experts, layers.GatedMlp]


def test_a_pipeline_is_a_stack_of_its_layers(made_of_decoder, content):
    inner = content("gpt")["task"]["set"]["model"]["set"]["lm_tpl"]["set"]
    settings = {"num_pipeline_stages": 2, "circular_repeat": 3, "num_pipeline_microbatches": 4}
    pipeline = {
        "class": "praxis.layers.transformers.PipelinedTransformer",
        "set": {**settings, "pipeline_stage": inner["stacked_transformer_tpl"]},
    }
    found, refused = made_of_decoder("gpt", stacked_transformer_tpl=pipeline)
    assert found.num_layers == 2 * 3 * 2
    assert not refused


def test_dropout_of_residuals_weights_and_input(made_of_decoder):
    rates = {f"{BLOCK_DECODER}__dropout_prob": 0.1, f"{BLOCK_DECODER}__input_dropout_prob": 0.2}
    found, refused = made_of_decoder("gpt", **rates)
    assert found.block.dropout.rate == found.block.attention.core.dropout == 0.1
    assert found.embedding.dropout.rate == 0.2
    assert not refused


REMATS = {"save_nothing": layers.FullRemat, "save_out_proj": layers.SaveNamed}


@pytest.mark.parametrize("policy", REMATS)
def test_what_is_kept_for_the_backward_pass(made_of_decoder, policy):
    enum = {"enum": "praxis.AutodiffCheckpointType", "value": policy}
    found, _ = made_of_decoder("gpt", stacked_transformer_tpl__checkpoint_policy=enum)
    assert found.stack.remat.__fn_or_cls__ is REMATS[policy]


def test_an_unknown_policy_is_reported(lm):
    enum = {"enum": "praxis.AutodiffCheckpointType", "value": "save_quantized"}
    node = lm("gpt", stacked_transformer_tpl__checkpoint_policy=enum)
    assert "stack" not in decoder(node).__arguments__
    (left,) = node.dump.leftovers
    assert (left.value, left.is_essential) == ("save_quantized", False)


def test_an_embedding_of_its_own(made_of_decoder):
    found, _ = made_of_decoder("shared")
    assert found.unembedding.__fn_or_cls__ is layers.Unembedding
    assert found.unembedding.bias.__fn_or_cls__ is layers.Zeros
    assert found.embedding.scale == 4.0


OTHER = {"class": "praxis.Other", "set": {}}
REFUSED_DECODER = {
    "model_type": {"enum": "praxis.LanguageModelType", "value": "prefix"},
    "ngrammer_tpl": OTHER,
    "position_emb_tpl": OTHER,
    "final_ln_tpl": OTHER,
    "separate_embedding_tpl": OTHER,
    "stacked_transformer_tpl": OTHER,
    "model_dims": None,
    "entropy_loss_weight": 0.1,
}


@pytest.mark.parametrize("field", REFUSED_DECODER)
def test_what_computes_something_else_is_refused(made_of_decoder, field):
    assert field in made_of_decoder("gpt", **{field: REFUSED_DECODER[field]})[1]


BELOW = {
    f"{LAYER_DECODER}__norm_policy": "other",
    f"{LAYER_DECODER}__tr_fflayer_tpl": OTHER,
    f"{LAYER_DECODER}__residual_droppath_prob": 0.1,
    f"{BLOCK_DECODER}__use_cross_attention": True,
    "softmax_tpl__scale_before_logits": True,
    "softmax_tpl__feed_forward_tpl": OTHER,
}


@pytest.mark.parametrize("path", BELOW)
def test_what_computes_something_else_below_is_refused(made_of_decoder, path):
    assert path.rpartition("__")[2] in made_of_decoder("gpt", **{path: BELOW[path]})[1]


def test_norms_of_a_layer_have_one_template(made_of_decoder):
    other = {"class": "praxis.layers.normalizations.RmsNorm", "set": {"epsilon": 1e-6}}
    assert made_of_decoder("gpt", **{f"{LAYER_DECODER}__ln_tpl": other})[1] == ["ln_tpl"]


def test_a_product_of_another_kind_is_left(lm):
    eight = {"class": "praxis.layers.injection.fp8_ops.Fp8EinsumOp", "set": {}}
    node = lm("gpt", **{f"{LAYER_DECODER}__tr_atten_tpl__proj_tpl__einsum_tpl": eight})
    decoder(node)
    (left,) = [one for one in node.unread(is_essential=True) if one.is_essential]
    assert (left.field, left.value) == ("einsum_tpl", "Fp8EinsumOp")


def test_the_graph_of_every_golden_can_be_written(made_of_decoder):
    for name in ("gpt", "c4", "llama", "shared", "glam", "post"):
        found, refused = made_of_decoder(name)
        assert graphs.equal(found, graphs.from_json(graphs.to_json(found)))
        assert not refused


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


TRAIN = "task__train__learner__optimizer"


@pytest.fixture
def learner(dump):
    def make(name, **changes):
        found = dump(name, **{f"{TRAIN}__{path}": value for path, value in changes.items()})
        return found.task.get("train").get("learner")

    return make


@pytest.fixture
def alone(node):
    def make(kind, **settings):
        plain = {"learning_rate": 0.1, "lr_schedule": None}
        inner = {"class": f"praxis.optimizers.{kind}", "set": plain | settings}
        return node("Learner", optimizer=inner)

    return make


def test_adam_with_a_cap_on_updates(learner):
    found = optimizer(learner("gpt"))
    assert found.__fn_or_cls__ is optim.capped_adamw
    assert (found.b1, found.b2, found.eps, found.clip_norm) == (0.9, 0.99, 1e-6, 5.0)
    assert (found.max_update_rms, found.weight_decay, found.decay_mask.pattern) == (1.0, 1e-3, "")


def test_gpt3_has_no_cap(learner):
    found = optimizer(learner("c4"))
    assert found.max_update_rms is None
    assert (found.weight_decay, found.clip_norm) == (0.1, 1.0)


def test_adam_as_optax_has_it(learner):
    found = optimizer(learner("gpt", sharded_adam=False, decoupled_weight_decay=0.2))
    assert found.__fn_or_cls__ is optim.adamw
    assert found.weight_decay == 0.0  # Pax leaves it out there


def test_a_decoupled_decay_leaves_norms(learner):
    found = optimizer(learner("gpt", weight_decay=0.0, decoupled_weight_decay=0.2))
    assert found.weight_decay == 0.2
    mask = optim.Matching(found.decay_mask.pattern)
    chosen = [mask(name) for name in ("blocks.mlp.up.kernel", "blocks.mlp_norm.scale", "norm.bias")]
    assert chosen == [True, False, False]


def test_adafactor(alone):
    found = optimizer(
        alone(
            "ShardedAdafactor",
            decay_method="adam",
            decay_adam=0.98,
            beta1=0.9,
            clip_threshold=1.0,
            factored=True,
            epsilon1_grad_sq_reg=1e-30,
            weight_decay=1e-3,
        )
    )
    assert found.__fn_or_cls__ is optim.adafactor
    assert (found.decay.b2, found.momentum, found.least_parameter_rms) == (0.98, 0.9, None)
    assert found.factored_dims.__fn_or_cls__ is optim.LastDims


def test_the_power_decay_of_adafactor(alone):
    found = optimizer(alone("ShardedAdafactor", decay_method="pow", decay_pow=0.7, factored=True))
    assert found.decay.__fn_or_cls__ is optim.PowerDecay
    assert found.decay.exponent == 0.7


@pytest.mark.parametrize(
    ("kind", "settings", "leftovers"),
    [
        (
            "ShardedAdafactor",
            {"layerwise_adaptation": True, "factored": False, "decay_method": "other"},
            {
                "layerwise_adaptation": "it has no equivalent here",
                "factored": "second moments are factored here",
                "decay_method": "supported: adam and pow",
            },
        ),
        ("Lion", {"clip_threshold": 1.0}, {"clip_threshold": "all of one size here"}),
        (
            "Adam",
            {"sharded_adam": False, "epsilon_root": 1e-8},
            {"epsilon_root": "nothing is added below the root here"},
        ),
    ],
)
def test_what_an_optimizer_cannot_follow_is_reported(alone, kind, settings, leftovers):
    learner = alone(kind, **settings)
    assert optimizer(learner) is not None
    found = {leftover.field: leftover.why for leftover in learner.dump.leftovers}
    assert found.keys() == leftovers.keys()
    for field, why in leftovers.items():
        assert why in found[field]


def test_momentum_and_lion(alone):
    assert optimizer(alone("Sgd", momentum=0.9, nesterov=True)).__fn_or_cls__ is optim.nesterov
    assert optimizer(alone("ShardedSgd", momentum=None)).momentum == 0.0
    assert optimizer(alone("Lion", beta1=0.9, beta2=0.98)).b2 == 0.98


def test_an_unknown_optimizer_is_reported(alone):
    learner = alone("ShardedDistributedShampoo")
    assert optimizer(learner) is None
    (leftover,) = learner.dump.leftovers
    assert str(leftover) == (
        "task.optimizer = ShardedDistributedShampoo (Learner): "
        "supported: Adam, ShardedAdafactor, Lion, Sgd, ShardedSgd; set optimizer"
    )
    assert not leftover.is_essential


def test_the_average_of_parameters(learner):
    assert average(learner("gpt")) is None
    assert average(learner("shared")).decay == 0.99


def test_other_regularizers_are_reported(learner):
    found = learner("gpt", l2_regularizer_weight=0.1, clip_gradient_single_norm_to_value=1.0)
    optimizer(found)
    fields = [one.field for one in found.dump.leftovers]
    assert fields == ["l2_regularizer_weight", "clip_gradient_single_norm_to_value"]


RAMP = {"warmup_steps": 4, "decay_start": 6, "decay_end": 16, "min_ratio": 0.1, "max": 1.0}


@pytest.fixture
def rates(node):
    """The rates of some steps, and what was left over."""

    def make(kind, **settings):
        schedule = {"class": f"praxis.schedules.{kind}", "set": settings}
        optimizer = node("Adam", learning_rate=0.5, lr_schedule=schedule)
        found = graphs.build(learning_rate(optimizer))
        steps = (0, 2, 4, 6, 11, 16, 20)
        values = [float(found(step)) if callable(found) else found for step in steps]
        return np.array(values), [one.field for one in optimizer.dump.leftovers]

    return make


CASES_SCHEDULES = {
    "Constant": ({"value": 0.5}, [0.25] * 7),
    "LinearRampupExponentialDecay": (RAMP, [0, 0.25, 0.5, 0.5, 0.5 * 0.1**0.5, 0.05, 0.05]),
    "LinearRampupCosineDecay": (RAMP, [0, 0.25, 0.5, 0.5, 0.275, 0.05, 0.05]),
    "LinearRampupPolynomialDecay": (
        {**RAMP, "power": 1},
        [0, 0.25, 0.5, 0.5, 0.275, 0.05, 0.05],
    ),
    "LinearRampupSqrtDecay": (
        {"peak": 1.0, "warmup_steps": 4},
        [0, 0.25, 0.5, *(0.5 * np.sqrt(4 / np.array([6, 11, 16, 20])))],
    ),
    "Cosine": (
        {"initial_value": 1.0, "final_value": 0.0, "total_steps": 4},
        [0.5, 0.25, 0, 0, 0, 0, 0],
    ),
    "PiecewiseConstant": (
        {"boundaries": [4, 11], "values": [1.0, 0.1, 0.01]},
        [0.5, 0.5, 0.05, 0.05, 0.005, 0.005, 0.005],
    ),
    "Linear": ({"start": [0, 1.0], "limit": [4, 0.5]}, [0.5, 0.375, *[0.25] * 5]),
    "Exponential": (
        {"start": [0, 1.0], "limit": [4, 0.25]},
        [0.5, 0.25, *[0.125] * 5],
    ),
}


@pytest.mark.parametrize("kind", CASES_SCHEDULES)
def test_rates_are_those_of_praxis(rates, kind):
    settings, expected = CASES_SCHEDULES[kind]
    found, left = rates(kind, **settings)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert not left


def test_a_fall_from_the_first_step_on(rates):
    falling = RAMP | {"warmup_steps": 0, "decay_start": 0, "decay_end": 10}
    found, _ = rates("LinearRampupCosineDecay", **falling)
    assert found[0] == 0.5
    assert found[-1] == pytest.approx(0.05)


def test_an_unknown_schedule_leaves_the_rate(rates):
    found, left = rates("CycleSchedule", schedules=[])
    assert set(found) == {0.5}
    assert left == ["lr_schedule"]


def test_without_a_schedule_there_is_the_rate(node):
    assert learning_rate(node("Adam", learning_rate=0.5, lr_schedule=None)) == 0.5


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


@pytest.fixture
def nodes(dump):
    return lambda name, **changes: dump(name, **changes).datasets


def test_c4_is_known(nodes):
    found = data(nodes("c4"), 48)
    assert found.training.__fn_or_cls__ is datasets.Packed
    assert found.training.length == 16
    assert found.validation.__fn_or_cls__ is datasets.Pretokenized


def test_synthetic_rows_are_known(nodes):
    found = nodes("gpt")
    known = data(found, 48)
    assert dict(known.training.__arguments__) == {"vocab_size": 48, "length": 16}
    assert known.validation.seed == 1
    assert batch_size(found) == 4
    assert not found[0].dump.leftovers


def test_other_data_is_reported(node):
    found = node("SeqIOInput", is_training=True, mixture_name="my_mixture", batch_size=8)
    found.dump.datasets = [found]
    assert data([found], 48).training is None
    (leftover,) = found.dump.leftovers
    assert (leftover.field, leftover.value) == ("mixture_name", "my_mixture")
    assert leftover.why == "such data is not known here; set data"
    assert batch_size([found]) == 8


def test_rows_of_all_hosts(node):
    found = node("SeqIOInput", is_training=True, batch_size=8, num_infeed_hosts=4)
    assert batch_size([found]) == 32
    assert batch_size([]) is None
