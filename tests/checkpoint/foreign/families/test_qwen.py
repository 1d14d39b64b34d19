from luthier.checkpoint.foreign.families import QWEN2, QWEN3


def test_biases_of_qwen2_and_norms_of_qwen3(shapes_of, layer, foreign_layer):
    bias = {"blocks.1.attention.key.bias": (2, 3)}
    expected = foreign_layer | {"model.layers.1.self_attn.k_proj.bias": (6,)}
    assert shapes_of(QWEN2, layer | bias) == expected
    norm = {"blocks.1.attention.query_key.key_norm.scale": (3,)}
    expected = foreign_layer | {"model.layers.1.self_attn.k_norm.weight": (3,)}
    assert shapes_of(QWEN3, layer | norm) == expected
