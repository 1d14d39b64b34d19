import pytest

from luthier.recipes.decoders import mistral, mistral_7b

SIZES = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 40}


@pytest.mark.full
def test_number_of_parameters(num_parameters):
    assert num_parameters(mistral_7b()) == 7_241_732_096


@pytest.mark.full
def test_logits_and_cache(assert_equals_golden):
    graph = mistral(window=7, vocab_size=61, dim=24, rotary_base=500.0, epsilon=1e-6, **SIZES)
    assert_equals_golden("mistral", graph)


@pytest.mark.slow
def test_trains(assert_trains):
    assert_trains(mistral(window=9, vocab_size=258, dim=16, **SIZES, pad_to_multiple=8))
