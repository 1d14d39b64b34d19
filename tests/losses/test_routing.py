import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.losses import load_balance, router_z

CHOICES_NE = jnp.array([[6.0, 3.0, 3.0, 0.0], [3.0, 3.0, 3.0, 3.0]])
PROBABILITIES_NE = jnp.array([[3.0, 2.0, 1.0, 0.0], [0.5, 1.5, 2.5, 1.5]])
TOKENS_N = jnp.array([6.0, 6.0])


def test_the_load_balance_is_that_of_the_paper():
    shares, means = np.array(CHOICES_NE) / 12, np.array(PROBABILITIES_NE) / 6
    expected = 4 * (shares * means).sum(-1)
    found = load_balance(CHOICES_NE, PROBABILITIES_NE, TOKENS_N)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert float(found[1]) == pytest.approx(1)


def test_given_the_choices_of_the_whole_parts_add_up():
    parts = [PROBABILITIES_NE * share for share in (0.25, 0.75)]
    found = sum(load_balance(CHOICES_NE, part, TOKENS_N) for part in parts)
    whole = load_balance(CHOICES_NE, PROBABILITIES_NE, TOKENS_N)
    np.testing.assert_allclose(found, whole, rtol=1e-6)


def test_the_derivative_passes_through_the_probabilities_alone():
    by_choices, by_probabilities = jax.grad(
        lambda c, p: load_balance(c, p, TOKENS_N).sum(), argnums=(0, 1)
    )(CHOICES_NE, PROBABILITIES_NE)
    assert not by_choices.any()
    np.testing.assert_allclose(by_probabilities, 4 * CHOICES_NE / 12 / 6, rtol=1e-6)


def test_a_layer_without_tokens_costs_nothing():
    none_NE, none_N = jnp.zeros((2, 4)), jnp.zeros(2)
    assert not load_balance(none_NE, none_NE, none_N).any()
    assert not router_z(none_N, none_N).any()


def test_the_z_loss_is_a_mean_over_tokens():
    np.testing.assert_allclose(router_z(jnp.array([12.0, 3.0]), TOKENS_N), [2, 0.5])
