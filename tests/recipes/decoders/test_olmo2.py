import pytest

from luthier.recipes import decoders
from luthier.recipes.decoders import olmo2

SIZES = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 40}

# As counted in the published weights.
PUBLISHED = {
    "olmo2_1b": 1_484_916_736,
    "olmo2_7b": 7_298_617_344,
    "olmo2_13b": 13_716_198_400,
    "olmo2_32b": 32_234_279_936,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters(name, num_parameters):
    assert num_parameters(getattr(decoders, name)()) == PUBLISHED[name]


@pytest.mark.full
def test_logits_and_cache(assert_equals_golden):
    assert_equals_golden("olmo2", olmo2(vocab_size=61, dim=24, rotary_base=500.0, **SIZES))


@pytest.mark.slow
def test_trains(assert_trains):
    assert_trains(olmo2(vocab_size=258, dim=16, **SIZES, pad_to_multiple=8))
