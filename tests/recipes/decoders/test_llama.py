import fiddle as fdl
import pytest

from luthier import layers
from luthier.recipes import decoders
from luthier.recipes.decoders import llama

SIZES = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 40}

# As counted in the published weights.
PUBLISHED = {
    "llama_7b": 6_738_415_616,
    "llama_13b": 13_015_864_320,
    "llama_33b": 32_528_943_616,
    "llama_65b": 65_285_660_672,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama31_8b": 8_030_261_248,
    "llama31_70b": 70_553_706_496,
    "llama31_405b": 405_853_388_800,
    "llama32_1b": 1_235_814_400,
    "llama32_3b": 3_212_749_824,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters(name, num_parameters):
    assert num_parameters(getattr(decoders, name)()) == PUBLISHED[name]


def test_logits_and_cache(assert_equals_golden):
    scaling = fdl.Config(layers.Llama3Scaling, factor=8.0, original_length=64)
    rotary = {"rotary_base": 500.0, "rotary_scaling": scaling}
    assert_equals_golden("llama", llama(vocab_size=61, dim=24, head_dim=8, **SIZES, **rotary))


@pytest.mark.full
def test_trains(assert_trains):
    assert_trains(llama(vocab_size=258, dim=16, **SIZES, pad_to_multiple=8))


def test_one_padding_for_both_ends(abstract):
    model = abstract(llama(vocab_size=61, dim=24, **SIZES, pad_to_multiple=8))
    assert model.embedding.table.shape == (64, 24)
    assert model.unembedding.kernel.shape == (24, 64)
