from luthier.checkpoint.foreign.families import OLMO2


def test_norms_stand_after_the_parts(shapes_of, layer, foreign_layer):
    ours = layer | {
        "blocks.1.attention_norm.scale": (8,),
        "blocks.1.mlp_norm.scale": (8,),
        "blocks.1.attention.query_key.query_norm.scale": (12,),
    }
    assert shapes_of(OLMO2, ours) == foreign_layer | {
        "model.layers.1.post_attention_layernorm.weight": (8,),
        "model.layers.1.post_feedforward_layernorm.weight": (8,),
        "model.layers.1.self_attn.q_norm.weight": (12,),
    }
