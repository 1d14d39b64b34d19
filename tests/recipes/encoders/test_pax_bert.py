import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier.recipes.decoders import pax
from luthier.recipes.encoders import pax_bert

SIZES = {"dim": 16, "num_layers": 2, "num_heads": 4, "head_dim": 4}


def test_it_is_base_a_but_for_the_mask_and_the_activation():
    graph, base = pax_bert(vocab_size=50, **SIZES), pax(vocab_size=50, **SIZES)
    assert graphs.build(graph.block.attention.core).cap == 50.0
    graph.block.attention.core.mask = graphs.get(base, "block.attention.core.mask")
    graph.block.mlp.activation = jax.nn.gelu
    assert str(graphs.to_json(graph)).count("SameDocument") == 0
    assert graph.block.mlp.activation is base.block.mlp.activation


@pytest.mark.full
def test_a_token_sees_those_after_it_in_its_own_text():
    model = graphs.build(pax_bert(vocab_size=50, **SIZES))(rngs=nnx.Rngs(0))
    logits = jax.jit(lambda m, x, s: m(x, segments_BL=s))
    inputs = np.random.default_rng(0).integers(0, 50, (1, 6))
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2]])
    first = logits(model, inputs, segments)
    changed = inputs.copy()
    changed[0, 2] = (changed[0, 2] + 1) % 50
    second = logits(model, changed, segments)
    assert (first[0, 0] != second[0, 0]).any()
    np.testing.assert_array_equal(first[0, 3:], second[0, 3:])
