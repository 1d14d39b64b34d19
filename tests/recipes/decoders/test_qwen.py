import fiddle as fdl
import pytest

from luthier import layers
from luthier.recipes import decoders
from luthier.recipes.decoders import qwen2, qwen3

TINY = {"vocab_size": 61, "dim": 24, "rotary_base": 500.0}
SIZES = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 40}

# As counted in the published weights.
PUBLISHED = {
    "qwen2_500m": 494_032_768,
    "qwen2_1b": 1_543_714_304,
    "qwen2_7b": 7_615_616_512,
    "qwen2_72b": 72_706_203_648,
    "qwen3_600m": 596_049_920,
    "qwen3_1b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters(name, num_parameters):
    assert num_parameters(getattr(decoders, name)()) == PUBLISHED[name]


@pytest.mark.full
def test_logits_and_cache_of_2(assert_equals_golden):
    tied = fdl.Partial(layers.TiedUnembedding)
    assert_equals_golden("qwen2", qwen2(**TINY, **SIZES, unembedding=tied))


@pytest.mark.full
def test_logits_and_cache_of_3(assert_equals_golden):
    assert_equals_golden("qwen3", qwen3(**TINY, **SIZES, head_dim=8))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [qwen2, qwen3])
def test_trains(recipe, assert_trains):
    assert_trains(recipe(vocab_size=258, dim=16, **SIZES, pad_to_multiple=8))
