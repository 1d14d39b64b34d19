import jax.numpy as jnp
import numpy as np
import pytest

from luthier.losses import TokenLosses
from luthier.metrics import ACCURACY, BITS_PER_BYTE, LOSS, NATS_PER_BYTE, NATS_PER_TOKEN, PERPLEXITY
from luthier.tasks.token_ratios import byte_ratios, token_ratios, weighted_sum


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
