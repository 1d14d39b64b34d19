import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import tasks
from luthier.recipes.encoders import bert, bert_base, bert_large

TINY = {"vocab_size": 62, "max_length": 24, "dim": 16, "num_layers": 2, "num_heads": 4}

# As published with heads for both tasks, less the one for next sentences: 2 D + 2.
PUBLISHED = [(bert_base, 110_106_428 - 1_538), (bert_large, 336_226_108 - 2_050)]


@pytest.mark.parametrize(("recipe", "expected"), PUBLISHED)
def test_number_of_parameters(recipe, expected, num_parameters):
    assert num_parameters(recipe()) == expected


@pytest.mark.full
def test_trains(assert_trains, text_batch):
    task = fdl.Config(tasks.MaskedModelling, mask_token=61, vocab_size=62, rate=0.3)
    assert_trains(bert(**TINY, hidden_dim=24), task, text_batch(24, 61))


def test_one_rate_for_all_dropout():
    graph = graphs.apply(bert(**TINY, hidden_dim=24), ["block.dropout.rate=0.3"])
    rates = (graph.block.attention.core.dropout, graph.embedding.dropout.rate)
    assert [graphs.evaluate(rate) for rate in rates] == [0.3, 0.3]
