import jax.numpy as jnp
import numpy as np
import pytest

from luthier.metrics import top_k_correct


@pytest.mark.parametrize("k", [1, 2, 5])
def test_against_a_sort(k):
    generator = np.random.default_rng(0)
    logits, targets = generator.standard_normal((50, 9)), generator.integers(0, 9, 50)
    expected = [t in np.argsort(-row)[:k] for row, t in zip(logits, targets, strict=True)]
    found = top_k_correct(jnp.float32(logits), jnp.asarray(targets), k)
    np.testing.assert_array_equal(found, np.float32(expected))


def test_equal_logits_are_guessed_k_at_a_time():
    found = top_k_correct(jnp.zeros((4, 4)), jnp.arange(4), 2)
    np.testing.assert_array_equal(found, [1, 1, 0, 0])


def test_more_guesses_than_classes_are_always_right():
    assert top_k_correct(jnp.float32([[1, 2]]), jnp.array([0]), 5) == 1


def test_what_is_no_number_is_not_right():
    assert top_k_correct(jnp.float32([[np.nan, np.nan]]), jnp.array([1]), 1) == 0
