import pytest

from luthier.checkpoint.foreign.families import T5, T5_GATED
from luthier.recipes.encoders import t5, t5_gated

SIZES = {
    "vocab_size": 13,
    "dim": 6,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 2,
    "head_dim": 5,
    "hidden_dim": 10,
    "num_buckets": 8,
}


@pytest.mark.parametrize(
    ("family", "recipe", "extra"), [(T5, t5, 0), (T5_GATED, t5_gated, 4)], ids=["plain", "gated"]
)
def test_there_and_back_is_bit_exact(family, recipe, extra, there_and_back):
    shapes = there_and_back(family, recipe(**SIZES), {})
    assert shapes["encoder.block.1.layer.0.SelfAttention.q.weight"] == (10, 6)
    assert shapes["decoder.block.0.layer.1.EncDecAttention.o.weight"] == (6, 10)
    assert shapes["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] == (8, 2)
    assert len(shapes) == 1 + 2 * 8 + 13 + 4 + extra
    assert ("lm_head.weight" in shapes) == (recipe is t5_gated)


def test_copies_and_what_no_version_uses(resolve):
    found = resolve(T5, t5(**SIZES), {})
    shared = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    assert found.copies == dict.fromkeys(shared, "shared.weight")
    assert "lm_head.weight" not in resolve(T5_GATED, t5_gated(**SIZES), {}).copies
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    assert T5.is_ignored(old)
    assert not T5.is_ignored(old.replace("EncDec", "Self"))


def test_the_wrong_version_is_reported(resolve):
    assert "encoder.blocks.0.mlp.gate.kernel" in resolve(T5, t5_gated(**SIZES), {}).unknown
