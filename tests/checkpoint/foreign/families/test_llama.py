import pytest

from luthier.checkpoint.foreign.families import LLAMA, MISTRAL


@pytest.mark.parametrize("family", [LLAMA, MISTRAL])
def test_names_and_shapes(family, shapes_of, layer, foreign_layer):
    ours = layer | {
        "blocks.1.attention_norm.scale": (8,),
        "blocks.1.mlp_norm.scale": (8,),
        "embedding.table": (7, 8),
        "norm.scale": (8,),
        "unembedding.kernel": (8, 7),
    }
    assert shapes_of(family, ours) == foreign_layer | {
        "model.layers.1.input_layernorm.weight": (8,),
        "model.layers.1.post_attention_layernorm.weight": (8,),
        "model.embed_tokens.weight": (7, 8),
        "model.norm.weight": (8,),
        "lm_head.weight": (7, 8),
    }
    assert not family.is_tied


def test_biases_are_there_where_the_model_has_them(shapes_of):
    assert shapes_of(LLAMA, {"blocks.0.attention.query.bias": (4, 3)}) == {
        "model.layers.0.self_attn.q_proj.bias": (12,)
    }


def test_frequencies_are_no_weights():
    assert LLAMA.is_ignored("model.layers.0.self_attn.rotary_emb.inv_freq")
    assert not LLAMA.is_ignored("model.norm.weight")
