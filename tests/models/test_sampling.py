import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from luthier.models import restrict, sample

PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.25, 0.2])
LOGITS = jnp.log(jnp.asarray(PROBABILITIES, jnp.float32))[None]


def support(logits_BV):
    return np.flatnonzero(np.isfinite(logits_BV[0])).tolist()


@pytest.mark.parametrize(
    ("top_k", "top_p", "expected"),
    [
        (None, None, [0, 1, 2, 3, 4]),
        (1, None, [1]),
        (2, None, [1, 3]),
        (99, None, [0, 1, 2, 3, 4]),
        (None, 0.001, [1]),
        (None, 0.39, [1]),
        (None, 0.41, [1, 3]),
        (None, 0.84, [1, 3, 4]),
        (None, 1.0, [0, 1, 2, 3, 4]),
        (2, 0.6, [1]),  # 0.4 / 0.65 is more than 0.6
        (2, 0.7, [1, 3]),
    ],
)
def test_supports(top_k, top_p, expected):
    assert support(restrict(LOGITS, top_k, top_p)) == expected
    traced = jax.jit(restrict)(
        LOGITS,
        None if top_k is None else jnp.int32(top_k),
        None if top_p is None else jnp.float32(top_p),
    )
    assert support(traced) == expected


@settings(max_examples=50, deadline=None)
@given(
    # XLA takes subnormal numbers for zeros: to it 1e-45 and 0 are a tie.
    hnp.arrays(np.float32, (1, 6), elements=st.floats(-5, 5, width=32, allow_subnormal=False)),
    st.integers(1, 7),
    st.floats(0.01, 1.0),
)
def test_what_is_kept_is_likelier_than_what_is_not(logits, top_k, top_p):
    kept = np.asarray(restrict(jnp.asarray(logits), top_k, top_p))[0]
    inside, outside = logits[0][np.isfinite(kept)], logits[0][~np.isfinite(kept)]
    assert inside.size
    assert (kept[np.isfinite(kept)] == inside).all()
    assert not outside.size or inside.min() > outside.max()
    assert len(set(inside.tolist())) <= top_k


def frequencies(**settings):
    keys = jax.random.split(jax.random.key(0), 20_000)
    draws = sample(keys, jnp.broadcast_to(LOGITS, (20_000, 5)), **settings)
    return np.bincount(draws, minlength=5) / 20_000


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, PROBABILITIES**2),
        ({"temperature": 3.0}, PROBABILITIES ** (1 / 3)),
        ({"top_k": 3}, PROBABILITIES * [0, 1, 0, 1, 1]),
        ({"top_p": 0.5}, PROBABILITIES * [0, 1, 0, 1, 0]),
        ({"temperature": 0.0}, np.array([0, 1, 0, 0, 0])),
        ({"temperature": 1e-4}, np.array([0, 1, 0, 0, 0])),
    ],
)
def test_frequencies(settings, weights):
    np.testing.assert_allclose(frequencies(**settings), weights / weights.sum(), atol=0.015)


@pytest.mark.full
def test_a_row_does_not_depend_on_the_others():
    keys = jax.random.split(jax.random.key(1), 8)
    logits = jax.random.normal(jax.random.key(2), (8, 50))
    together = sample(keys, logits, top_k=10, top_p=0.9)
    alone = [
        int(sample(keys[i : i + 1], logits[i : i + 1], top_k=10, top_p=0.9)[0]) for i in (0, 5)
    ]
    assert together[jnp.array([0, 5])].tolist() == alone
