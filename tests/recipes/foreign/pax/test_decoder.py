import pytest

from luthier import graph as graphs
from luthier import layers
from luthier.recipes import decoders
from luthier.recipes.foreign import differences, essence
from luthier.recipes.foreign.pax.decoder import decoder

BLOCK = "stacked_transformer_tpl__block"
LAYER = f"{BLOCK}__transformer_layer_params_tpl"


@pytest.fixture
def made(lm):
    def make(name, **changes):
        node = lm(name, **changes)
        return decoder(node), [one.field for one in node.dump.leftovers if one.is_essential]

    return make


def test_gpt3_is_that_of_our_recipe(made):
    found, refused = made("c4")
    sizes = {"vocab_size": 48, "dim": 16, "num_layers": 3, "num_heads": 2, "head_dim": 8}
    ours = decoders.pax_gpt3(**sizes, hidden_dim=32, max_length=16)
    assert not differences(essence(found), essence(ours))
    assert not refused


def test_base_model_a_is_that_of_our_recipe(made):
    found, _ = made("gpt")
    sizes = {"vocab_size": 48, "dim": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8}
    assert not differences(essence(found), essence(decoders.pax(**sizes, hidden_dim=32)))


BLOCKS = {
    "gpt": layers.PreNormBlock,
    "shared": layers.SandwichBlock,
    "post": layers.PostNormBlock,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_norms_stand_where_they_stood(made, name):
    assert made(name)[0].block.__fn_or_cls__ is BLOCKS[name]


def test_layers_of_several_kinds_take_turns(made):
    found, _ = made("glam")
    assert found.num_layers == 4
    first, second = found.block
    assert first.mlp.__fn_or_cls__ is layers.Experts
    assert second.mlp.__fn_or_cls__ is layers.GatedMlp


def test_kinds_that_do_not_repeat_are_all_reported(made):
    mixed = {f"{BLOCK}__moe_layers": [1], f"{BLOCK}__num_layers": 3}
    found, _ = made("glam", **mixed)
    assert found.num_layers == 6
    kinds = [block.mlp.__fn_or_cls__ for block in found.block]
    assert kinds == [layers.GatedMlp, layers.Experts, layers.GatedMlp]


def test_a_pipeline_is_a_stack_of_its_layers(made, content):
    inner = content("gpt")["task"]["set"]["model"]["set"]["lm_tpl"]["set"]
    settings = {"num_pipeline_stages": 2, "circular_repeat": 3, "num_pipeline_microbatches": 4}
    pipeline = {
        "class": "praxis.layers.transformers.PipelinedTransformer",
        "set": {**settings, "pipeline_stage": inner["stacked_transformer_tpl"]},
    }
    found, refused = made("gpt", stacked_transformer_tpl=pipeline)
    assert found.num_layers == 2 * 3 * 2
    assert not refused


def test_dropout_of_residuals_weights_and_input(made):
    rates = {f"{BLOCK}__dropout_prob": 0.1, f"{BLOCK}__input_dropout_prob": 0.2}
    found, refused = made("gpt", **rates)
    assert found.block.dropout.rate == found.block.attention.core.dropout == 0.1
    assert found.embedding.dropout.rate == 0.2
    assert not refused


REMATS = {"save_nothing": layers.FullRemat, "save_out_proj": layers.SaveNamed}


@pytest.mark.parametrize("policy", REMATS)
def test_what_is_kept_for_the_backward_pass(made, policy):
    enum = {"enum": "praxis.AutodiffCheckpointType", "value": policy}
    found, _ = made("gpt", stacked_transformer_tpl__checkpoint_policy=enum)
    assert found.stack.remat.__fn_or_cls__ is REMATS[policy]


def test_an_unknown_policy_is_reported(lm):
    enum = {"enum": "praxis.AutodiffCheckpointType", "value": "save_quantized"}
    node = lm("gpt", stacked_transformer_tpl__checkpoint_policy=enum)
    assert "stack" not in decoder(node).__arguments__
    (left,) = node.dump.leftovers
    assert (left.value, left.is_essential) == ("save_quantized", False)


def test_an_embedding_of_its_own(made):
    found, _ = made("shared")
    assert found.unembedding.__fn_or_cls__ is layers.Unembedding
    assert found.unembedding.bias.__fn_or_cls__ is layers.Zeros
    assert found.embedding.scale == 4.0


OTHER = {"class": "praxis.Other", "set": {}}
REFUSED = {
    "model_type": {"enum": "praxis.LanguageModelType", "value": "prefix"},
    "ngrammer_tpl": OTHER,
    "position_emb_tpl": OTHER,
    "final_ln_tpl": OTHER,
    "separate_embedding_tpl": OTHER,
    "stacked_transformer_tpl": OTHER,
    "model_dims": None,
    "entropy_loss_weight": 0.1,
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_computes_something_else_is_refused(made, field):
    assert field in made("gpt", **{field: REFUSED[field]})[1]


BELOW = {
    f"{LAYER}__norm_policy": "other",
    f"{LAYER}__tr_fflayer_tpl": OTHER,
    f"{LAYER}__residual_droppath_prob": 0.1,
    f"{BLOCK}__use_cross_attention": True,
    "softmax_tpl__scale_before_logits": True,
    "softmax_tpl__feed_forward_tpl": OTHER,
}


@pytest.mark.parametrize("path", BELOW)
def test_what_computes_something_else_below_is_refused(made, path):
    assert path.rpartition("__")[2] in made("gpt", **{path: BELOW[path]})[1]


def test_norms_of_a_layer_have_one_template(made):
    other = {"class": "praxis.layers.normalizations.RmsNorm", "set": {"epsilon": 1e-6}}
    assert made("gpt", **{f"{LAYER}__ln_tpl": other})[1] == ["ln_tpl"]


def test_a_product_of_another_kind_is_left(lm):
    eight = {"class": "praxis.layers.injection.fp8_ops.Fp8EinsumOp", "set": {}}
    node = lm("gpt", **{f"{LAYER}__tr_atten_tpl__proj_tpl__einsum_tpl": eight})
    decoder(node)
    (left,) = [one for one in node.unread(is_essential=True) if one.is_essential]
    assert (left.field, left.value) == ("einsum_tpl", "Fp8EinsumOp")


def test_the_graph_of_every_golden_can_be_written(made):
    for name in ("gpt", "c4", "llama", "shared", "glam", "post"):
        found, refused = made(name)
        assert graphs.equal(found, graphs.from_json(graphs.to_json(found)))
        assert not refused
