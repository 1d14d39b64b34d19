import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import Dropout, DropoutKeys, fold

KEY = jax.random.key(0)


def keys_of(documents, positions):
    tokens = (jnp.atleast_2d(jnp.array(x)) for x in (documents, positions))
    return DropoutKeys.of_tokens(KEY, *tokens)


@pytest.mark.full
def test_drops_the_rate_and_keeps_the_mean():
    keys = keys_of([[3] * 50, [4] * 50], [list(range(50))] * 2)
    y = Dropout(0.25)(jnp.ones((2, 50, 64)), keys)
    np.testing.assert_allclose((y == 0).mean(), 0.25, atol=0.02)
    np.testing.assert_allclose(jnp.unique(y), [0.0, 1 / 0.75], rtol=1e-6)
    np.testing.assert_allclose(y.mean(), 1.0, atol=0.03)


@pytest.mark.full
def test_masks_belong_to_document_and_position():
    apart = Dropout(0.5)(jnp.ones((2, 4, 16)), keys_of([[7] * 4, [9] * 4], [[0, 1, 2, 3]] * 2))
    packed = Dropout(0.5)(jnp.ones((1, 6, 16)), keys_of([7, 7, 7, 9, 9, 9], [0, 1, 2, 0, 1, 2]))
    assert (packed[0, :3] == apart[0, :3]).all()
    assert (packed[0, 3:] == apart[1, :3]).all()
    assert (packed[0, :3] != packed[0, 3:]).any()


def test_sites_steps_and_tokens_differ():
    keys = keys_of([[1, 1, 2]], [[0, 1, 0]])
    other = DropoutKeys.of_tokens(jax.random.key(1), jnp.array([[1, 1, 2]]), jnp.array([[0, 1, 0]]))
    sites = [keys, keys.fold(0), keys.fold(1), keys.fold(0).fold(1), other]
    rows = np.concatenate([np.asarray(site.uniform((8,))).reshape(3, 8) for site in sites])
    assert len({row.tobytes() for row in rows}) == len(rows)


def test_a_traced_site_is_the_same_site():
    keys = keys_of([[1, 2]], [[0, 0]])
    traced = jax.jit(lambda keys, site: keys.fold(site).uniform((4,)))(keys, 3)
    assert (traced == keys.fold(3).uniform((4,))).all()


def test_no_keys_no_dropout():
    x = jnp.arange(6.0).reshape(1, 2, 3)
    assert Dropout(0.5)(x, None) is x
    assert fold(None, 3) is None


@pytest.mark.parametrize("shape", [(), (16,), (3, 5), (16, 1, 2)])
def test_the_key_of_a_row_draws_for_each_of_its_elements(shape):
    """[B, D], as in a classifier of vectors, and images; each element has a draw of its own."""
    rows = jnp.array([[7], [9], [4]])
    keys = DropoutKeys.of_tokens(KEY, rows, jnp.zeros_like(rows))
    y = Dropout(0.5)(jnp.ones((3, *shape)), keys)
    for row, document in enumerate([7, 9, 4]):
        key = jax.random.fold_in(jax.random.fold_in(KEY, document), 0)
        kept = jax.random.uniform(key, shape) < 0.5
        np.testing.assert_array_equal(y[row], jnp.where(kept, 2.0, 0.0))


@pytest.mark.parametrize(
    ("shape", "keys"), [((2, 5, 4), (2, 3)), ((3, 4), (2, 1)), ((3, 4), (1, 1)), ((), (1, 1))]
)
def test_keys_of_other_tokens_are_refused(shape, keys):
    with pytest.raises(ValueError, match="dropout") as caught:
        Dropout(0.5)(jnp.ones(shape), keys_of(np.ones(keys, int), np.ones(keys, int)))
    assert str(shape) in str(caught.value)
    assert str(keys) in str(caught.value)


def test_the_rate_may_be_traced():
    keys, x = keys_of([[1] * 8], [list(range(8))]), jnp.ones((1, 8, 32))

    @jax.jit
    def apply(rate):
        dropout = Dropout(rate)
        return nnx.merge(*nnx.split(dropout))(x, keys)

    for rate in (0.0, 0.1, 0.9):
        np.testing.assert_allclose(apply(rate), Dropout(rate)(x, keys), rtol=1e-6)
    assert (apply(0.0) == x).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_type_stays(dtype):
    y = Dropout(0.5)(jnp.ones((1, 2, 4), dtype), keys_of([[1, 1]], [[0, 1]]))
    assert y.dtype == dtype


def test_holds_no_arrays():
    assert not jax.tree.leaves(nnx.state(Dropout(0.1)))


def test_works_under_vmap():
    keys, x = keys_of([[1, 1]], [[0, 1]]), jnp.ones((1, 2, 8))
    apply = lambda rate: Dropout(rate)(x, keys)
    both = jax.vmap(apply)(jnp.array([0.2, 0.7]))
    for y, rate in zip(both, (0.2, 0.7), strict=True):
        np.testing.assert_allclose(y, apply(rate), rtol=1e-6)
