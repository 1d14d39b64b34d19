import pytest

from luthier import graph as graphs
from luthier.recipes.decoders import gpt2, gpt2_large, gpt2_medium, gpt2_small, gpt2_xl

TINY = {"vocab_size": 61, "max_length": 40, "dim": 24, "num_layers": 2, "num_heads": 4}

# As counted in the published weights.
PUBLISHED = [
    (gpt2_small, 124_439_808),
    (gpt2_medium, 354_823_168),
    (gpt2_large, 774_030_080),
    (gpt2_xl, 1_557_611_200),
]


@pytest.mark.parametrize(("recipe", "expected"), PUBLISHED)
def test_number_of_parameters(recipe, expected, num_parameters):
    assert num_parameters(recipe()) == expected


@pytest.mark.full
def test_logits_and_cache(assert_equals_golden):
    assert_equals_golden("gpt2", gpt2(**TINY, hidden_dim=40))


@pytest.mark.slow
def test_trains(assert_trains):
    sizes = {"vocab_size": 258, "max_length": 32, "dim": 16, "num_layers": 2, "num_heads": 4}
    assert_trains(gpt2(**sizes, pad_to_multiple=8))


def test_sizes_move_what_depends_on_them(abstract):
    graph = graphs.apply(gpt2(**TINY), ["dim=32", "num_layers=8"])
    assert graphs.evaluate(graph.block.mlp.hidden_dim) == 128
    assert graphs.evaluate(graph.block.mlp.down.kernel.stddev) == pytest.approx(0.02 / 4)
    assert graphs.evaluate(graph.block.mlp.up.kernel.stddev) == 0.02
    assert abstract(graph).blocks.mlp.up.kernel.shape == (8, 32, 128)


def test_one_rate_for_all_dropout():
    graph = graphs.apply(gpt2(**TINY), ["block.dropout.rate=0.3"])
    rates = (graph.block.attention.core.dropout, graph.embedding.dropout.rate)
    assert [graphs.evaluate(rate) for rate in rates] == [0.3, 0.3]
