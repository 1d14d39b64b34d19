import fiddle as fdl
import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import tasks
from luthier.recipes import encoders
from luthier.recipes.encoders import t5, t5_gated

TINY = {"vocab_size": 62, "dim": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 24}

# As counted in the published weights.
PUBLISHED = {
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "t5_large": 737_668_096,
    "t5_3b": 2_851_598_336,
    "t5_11b": 11_307_321_344,
    "t5_1_1_small": 76_961_152,
    "t5_1_1_base": 247_577_856,
    "t5_1_1_large": 783_150_080,
    "t5_1_1_xl": 2_849_757_184,
    "t5_1_1_xxl": 11_135_332_352,
}


@pytest.mark.parametrize(("recipe", "expected"), PUBLISHED.items())
def test_number_of_parameters(recipe, expected, num_parameters):
    assert num_parameters(getattr(encoders, recipe)()) == expected


def test_layers_of_the_decoder_may_differ(abstract):
    model = abstract(t5(**TINY, head_dim=6, num_decoder_layers=1))
    assert model.encoder.blocks.mlp.up.kernel.shape == (2, 16, 24)
    assert model.decoder.blocks.mlp.up.kernel.shape == (1, 16, 24)


@pytest.fixture
def pairs(text_batch):
    source, target = text_batch(24, 61), text_batch(18, 61)
    names = {"inputs": "inputs", "segments": "input_segments", "positions": "input_positions"}
    batch = {there: source[here] for here, there in names.items()}
    batch |= {k: target[k] for k in ("segments", "positions", "documents", "weights")}
    batch["targets"] = target["inputs"]
    batch["decoder_inputs"] = np.where(target["positions"] > 0, np.roll(target["inputs"], 1, 1), 0)
    batch["target_bytes"] = np.ones_like(target["inputs"])
    return batch


@pytest.mark.parametrize("recipe", [pytest.param(t5, marks=pytest.mark.slow), t5_gated])
def test_trains(recipe, assert_trains, pairs):
    task = fdl.Config(tasks.SequenceToSequence)
    assert_trains(recipe(**TINY, head_dim=6), task, pairs)


def test_one_rate_for_all_dropout():
    graph = graphs.apply(t5_gated(**TINY), ["encoder.dropout.rate=0.3"])
    rates = (
        graph.decoder.block.cross_attention.core.dropout,
        graph.encoder.block.attention.core.dropout,
        graph.embedding.dropout.rate,
    )
    assert [graphs.evaluate(rate) for rate in rates] == [0.3] * 3


@pytest.mark.full
def test_scores_are_not_scaled_and_queries_start_smaller():
    from flax import nnx

    model = jax.jit(lambda: nnx.state(graphs.build(t5(**TINY, head_dim=64))(rngs=nnx.Rngs(0))))()
    attention = model["encoder"]["blocks"]["attention"]
    ratio = attention["query"]["kernel"][...].std() / attention["key"]["kernel"][...].std()
    assert float(ratio) == pytest.approx(1 / 8, rel=0.1)
    assert graphs.build(t5(**TINY)).keywords["encoder"].keywords["block"] is not None
