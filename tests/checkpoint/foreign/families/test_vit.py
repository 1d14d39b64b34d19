from luthier.checkpoint.foreign.families import VIT
from luthier.recipes.encoders import vit

MODEL = vit(
    dim=6,
    num_layers=2,
    num_heads=2,
    hidden_dim=10,
    image_size=(4, 9),
    patch_size=(2, 3),
    num_classes=5,
)


def test_there_and_back_is_bit_exact(there_and_back):
    shapes = there_and_back(VIT, MODEL, {})
    assert shapes["vit.embeddings.cls_token"] == (1, 1, 6)
    assert shapes["vit.embeddings.position_embeddings"] == (1, 7, 6)
    assert shapes["vit.embeddings.patch_embeddings.projection.weight"] == (6, 3, 2, 3)
    assert shapes["classifier.weight"] == (5, 6)
    assert len(shapes) == 4 + 2 * 16 + 4


def test_a_pooler_is_left_out():
    assert VIT.is_ignored("vit.pooler.dense.weight")
    assert not VIT.is_ignored("vit.layernorm.weight")
