import pytest

from luthier.checkpoint.foreign.families import GEMMA, GEMMA2, GEMMA3


@pytest.mark.parametrize("family", [GEMMA2, GEMMA3])
def test_four_norms_around_each_layer(family, shapes_of, layer, foreign_layer):
    names = {
        "attention_norm": "input",
        "attention_post_norm": "post_attention",
        "mlp_norm": "pre_feedforward",
        "mlp_post_norm": "post_feedforward",
    }
    ours = {f"blocks.1.{name}.scale": (8,) for name in names}
    theirs = {f"model.layers.1.{name}_layernorm.weight": (8,) for name in names.values()}
    assert shapes_of(family, layer | ours) == foreign_layer | theirs


def test_the_first_has_two_norms_and_all_are_tied(shapes_of):
    assert shapes_of(GEMMA, {"blocks.0.mlp_norm.scale": (8,)}) == {
        "model.layers.0.post_attention_layernorm.weight": (8,)
    }
    assert GEMMA.is_tied
    assert GEMMA2.is_tied
    assert GEMMA3.is_tied
