import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier.errors import BadInput
from luthier.layers import LearnedPositions, Normal, Rotary, Tokens


def _unit(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 500), st.integers(0, 500), st.integers(0, 2000), st.sampled_from([1e2, 1e4, 5e5])
)
def test_scores_depend_on_the_shift_alone(query_position, key_position, shift, base):
    rotary = Rotary(base)
    query, key = _unit(0, 1, 1, 2, 16), _unit(1, 1, 1, 2, 16)

    def scores(offset):
        at = lambda position: jnp.array([[position + offset]], jnp.int32)
        turned = rotary(query, at(query_position)), rotary(key, at(key_position))
        return jnp.einsum("BLHK,BLHK->BLH", *turned)

    # float32 angles of some thousand radians are good to about 1e-4
    np.testing.assert_allclose(scores(0), scores(shift), atol=5e-3)


def test_rotation_is_that_of_complex_numbers():
    x = _unit(2, 2, 5, 3, 8)
    positions = jnp.broadcast_to(jnp.arange(5), (2, 5))
    z = np.asarray(x[..., :4], np.float64) + 1j * np.asarray(x[..., 4:], np.float64)
    angles = np.arange(5)[:, None, None] * 100.0 ** (-np.arange(4) / 4)
    expected = z * np.exp(1j * angles)
    turned = Rotary(100.0)(x, positions)
    np.testing.assert_allclose(turned[..., :4], expected.real, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(turned[..., 4:], expected.imag, rtol=1e-5, atol=1e-5)


def test_position_zero_is_not_turned():
    x = _unit(3, 1, 1, 2, 8).astype(jnp.bfloat16)
    turned = Rotary()(x, jnp.zeros((1, 1), jnp.int32))
    assert turned.dtype == x.dtype
    assert (turned == x).all()


def test_the_base_may_be_traced():
    x, positions = _unit(4, 1, 3, 1, 8), jnp.arange(3)[None]
    turned = jax.jit(lambda base: Rotary(base)(x, positions))(50.0)
    np.testing.assert_allclose(turned, Rotary(50.0)(x, positions), rtol=1e-5, atol=1e-6)


def test_learned_positions_are_looked_up():
    positions = LearnedPositions(6, Normal(1.0), dim=4, rngs=nnx.Rngs(0))
    at = jnp.array([[0, 1, 0], [3, 4, 5]])
    assert (positions(at) == positions.table[...][at]).all()
    assert positions.table.get_metadata()["logical_axes"] == (None, "embed")


def test_rows_longer_than_the_table_are_refused():
    positions = LearnedPositions(6, dim=4, rngs=nnx.Rngs(0))
    with pytest.raises(BadInput, match="rows of 7 tokens, but only 6 learned positions"):
        positions(jnp.zeros((1, 7), jnp.int32))


def test_single_documents():
    tokens = Tokens.single(2, 3)
    assert tokens.positions_BL.tolist() == [[0, 1, 2]] * 2
    assert tokens.segments_BL.tolist() == [[1, 1, 1]] * 2
