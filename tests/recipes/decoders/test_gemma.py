import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import layers
from luthier.recipes import decoders
from luthier.recipes.decoders import gemma, gemma2, gemma3, gemma3_4b

TINY = {"vocab_size": 61, "dim": 24, "num_heads": 4, "head_dim": 8, "hidden_dim": 40}
SHRUNK = {"vocab_size": 258, "dim": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}

# As counted in the published weights; of Gemma 3 from 4B on, those of the language model.
PUBLISHED = {
    "gemma_2b": 2_506_172_416,
    "gemma_7b": 8_537_680_896,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_270m": 268_098_176,
    "gemma3_1b": 999_885_952,
}

# Arxiv 2503.19786, table 1: millions of parameters outside of the embedding.
PUBLISHED_MILLIONS = {"gemma3_4b": 3209, "gemma3_12b": 10_759, "gemma3_27b": 25_600}


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters(name, num_parameters):
    assert num_parameters(getattr(decoders, name)()) == PUBLISHED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED_MILLIONS)
def test_number_of_parameters_outside_of_the_embedding(name, num_parameters):
    graph = getattr(decoders, name)()
    embedding = graph.vocab_size * graphs.evaluate(graph.dim)
    found = (num_parameters(graph) - embedding) / 1e6
    assert found == pytest.approx(PUBLISHED_MILLIONS[name], abs=1.0)


def gemma3_tiny(**changes):
    scaling = fdl.Config(layers.LinearScaling, factor=4.0)
    sizes = TINY | {"dim": 16, "num_heads": 2, "num_kv_heads": 1, "hidden_dim": 24}
    rotary = {"local_rotary_base": 500.0, "global_rotary_base": 2000.0}
    settings = {"num_layers": 7, "window": 7, "locals_per_global": 2, "query_scalar": 6}
    return gemma3(**sizes, **rotary, **settings, **changes, global_rotary_scaling=scaling)


@pytest.mark.full
def test_logits_and_cache(assert_equals_golden):
    graph = gemma(**TINY, num_kv_heads=1, num_layers=2, rotary_base=500.0)
    assert_equals_golden("gemma", graph)


@pytest.mark.full
def test_logits_and_cache_of_2(assert_equals_golden):
    caps = {"attention_cap": 2.0, "logits_cap": 3.0, "rotary_base": 500.0}
    settings = {"num_layers": 3, "window": 7, "query_scalar": 6}
    assert_equals_golden("gemma2", gemma2(**TINY, num_kv_heads=2, **settings, **caps))


@pytest.mark.full
@pytest.mark.parametrize("stack", [layers.Scanned, layers.Unrolled])
def test_logits_and_cache_of_3(assert_equals_golden, stack):
    graph = gemma3_tiny()
    graph.stack = fdl.Config(stack)
    assert_equals_golden("gemma3", graph)


@pytest.mark.slow
def test_trains(assert_trains):
    assert_trains(gemma(**SHRUNK, hidden_dim=24, num_layers=2, pad_to_multiple=8))


@pytest.mark.slow
def test_2_trains(assert_trains):
    graph = gemma2(**SHRUNK, hidden_dim=24, num_layers=3, window=9, pad_to_multiple=8)
    assert_trains(graph)


def test_3_trains(assert_trains):
    sizes = {"num_layers": 4, "window": 9, "locals_per_global": 2, "pad_to_multiple": 8}
    remat = "model.stack=luthier.layers.Scanned(remat=luthier.layers.FullRemat())"
    assert_trains(gemma3(**SHRUNK, hidden_dim=24, **sizes), remat)


def test_one_override_moves_all_layers():
    graph = graphs.apply(
        gemma3_4b(),
        [
            "block[0].attention.num_heads=16",
            "block[0].attention.core.mask.size=256",
            "dim=1024",
            "block[0].attention.core.scale.left=64",
        ],
    )
    assert len(graph.block) == 6
    for block in graph.block:
        assert graphs.evaluate(block.attention.num_heads) == 16
        assert graphs.evaluate(block.attention.core.scale) == 1 / 8
    sizes = [block.attention.core.mask.size for block in graph.block[:5]]
    assert sizes == [256] * 5
    assert graphs.evaluate(graph.embedding.scale) == 32
