import jax
import jax.numpy as jnp

from luthier.layers import Causal, Contiguous, EinsumAttention
from luthier.layers.attention.context_parallel import blocks
from luthier.layers.attention.context_parallel.ring import Ring, RingRows
from luthier.parallel import current_layout


def test_a_ring_attends_by_groups(heads, tokens, on_mesh, distance):
    query, key, value = heads
    rows = RingRows(query.reshape(2, 32, 2, 4, 8), key, value, tokens, tokens, None)
    settings = blocks.ScoreSettings(jnp.float32(8**-0.5), None, None)
    with on_mesh(sequence=2):
        ring = Ring(current_layout(), ("sequence",), 2, Causal(), Contiguous(), None)
        found = jax.jit(lambda rows: ring(rows, None, settings))(rows)
    expected = EinsumAttention()(*heads, tokens, tokens)
    assert distance(found.reshape(expected.shape), expected) < 1e-6
