import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier.losses import TokenLosses
from luthier.metrics import (
    ACCURACY,
    BITS_PER_BYTE,
    LOSS,
    NATS_PER_BYTE,
    NATS_PER_TOKEN,
    PERPLEXITY,
    Ratio,
)
from luthier.tasks import byte_ratios, exact_match, token_ratios, weighted_sum


def test_what_has_weight_zero_counts_nothing():
    assert weighted_sum(jnp.array([1.0, jnp.nan, 3.0]), jnp.array([1.0, 0, 2])) == 7


def test_means_over_tokens_and_bytes():
    losses = TokenLosses(jnp.array([[1.0, 2]]), jnp.array([[2.0, 4]]), jnp.array([[0.0, 1]]))
    weights = jnp.array([[1.0, 3]])
    found = token_ratios(losses, weights)
    values = {metric: metric.value(ratio) for metric, ratio in found.items()}
    assert values[NATS_PER_TOKEN] == 7 / 4
    assert values[LOSS] == 14 / 4
    assert values[ACCURACY] == 3 / 4
    assert values[PERPLEXITY] == pytest.approx(np.exp(7 / 4))
    of_bytes = byte_ratios(jnp.float32(7), jnp.array([[2, 4]]), weights)
    assert NATS_PER_BYTE.value(of_bytes[NATS_PER_BYTE]) == 7 / 14
    assert BITS_PER_BYTE.value(of_bytes[BITS_PER_BYTE]) == pytest.approx(0.5 / np.log(2))


def _texts(length):
    """Rows of texts side by side: (tokens, whether each is right, whether each counts)."""
    token = st.tuples(st.booleans(), st.booleans())
    return st.lists(st.lists(token, min_size=1, max_size=4), max_size=4).filter(
        lambda texts: sum(map(len, texts)) <= length
    )


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(st.lists(_texts(12), min_size=1, max_size=3))
def test_exact_match_counts_texts_without_a_mistake(rows):
    correct, weights, segments = np.zeros((3, len(rows), 12), np.float32)
    matches = texts = 0
    for row, own in enumerate(rows):
        at = 0
        for number, tokens in enumerate(own, 1):
            for right, counts in tokens:
                correct[row, at], weights[row, at], segments[row, at] = right, 0.5 * counts, number
                at += 1
            texts += any(counts for _, counts in tokens)
            matches += any(counts for _, counts in tokens) and all(
                right for right, counts in tokens if counts
            )
    found = exact_match(jnp.array(correct), jnp.array(weights), jnp.array(segments, jnp.int32))
    assert found.host() == Ratio(matches, texts)
