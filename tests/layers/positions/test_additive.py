import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import InterleavedSinusoids, LearnedPositions, Normal, Sinusoids

POSITIONS = jnp.array([[0, 1, 2, 0, 1], [7, 8, 9, 10, 500]])


def test_learned_positions_are_looked_up():
    positions = LearnedPositions(6, Normal(1.0), dim=4, rngs=nnx.Rngs(0))
    at = jnp.array([[0, 1, 0], [3, 4, 5]])
    assert (positions(at) == positions.table[...][at]).all()
    assert positions.table.get_metadata()["logical_axes"] == (None, "embed")


def test_rows_longer_than_the_table_are_refused():
    positions = LearnedPositions(6, dim=4, rngs=nnx.Rngs(0))
    with pytest.raises(BadInput, match="rows of 7 tokens, but only 6 learned positions"):
        positions(jnp.zeros((1, 7), jnp.int32))


@pytest.mark.parametrize("dim", [8, 9])
def test_sinusoids_of_vaswani(dim):
    found = InterleavedSinusoids(1000.0, dim=dim)(POSITIONS)
    expected = np.zeros((*POSITIONS.shape, dim))
    for i in range(dim):
        angle = np.asarray(POSITIONS) / 1000.0 ** (2 * (i // 2) / dim)
        expected[..., i] = np.cos(angle) if i % 2 else np.sin(angle)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("dim", [8, 9])
def test_sinusoids_of_pax(dim):
    found = Sinusoids(1.0, 1000.0, dim=dim)(POSITIONS)
    half = dim // 2
    timescales = np.exp(np.arange(half) * np.log(1000.0) / (half - 1))
    angles = np.asarray(POSITIONS)[..., None] / timescales
    expected = np.concatenate([np.sin(angles), np.cos(angles), np.zeros((2, 5, dim % 2))], -1)
    assert timescales[-1] == pytest.approx(1000.0)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("kind", [Sinusoids, InterleavedSinusoids])
def test_sinusoids_have_a_dtype_and_no_parameters(kind):
    assert kind(dim=8, dtype=jnp.bfloat16)(POSITIONS).dtype == jnp.bfloat16
    assert not nnx.to_flat_state(nnx.state(kind(dim=8)))
    longest = Sinusoids(10.0, 1000.0, dim=8)(jnp.array([[10]]))
    np.testing.assert_allclose(longest[0, 0, [0, 3]], np.sin([1.0, 0.01]), rtol=1e-5)
