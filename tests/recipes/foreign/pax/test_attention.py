import pytest

from luthier import layers
from luthier.recipes.foreign.pax.attention import AttentionSizes, attention

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
