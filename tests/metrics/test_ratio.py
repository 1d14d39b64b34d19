from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from luthier.metrics import Ratio


def test_merging_is_not_the_mean_of_means():
    merged = Ratio(1.0, 1.0) + Ratio(9.0, 3.0)
    assert merged == Ratio(10.0, 4.0)
    assert merged.value() == 2.5


def test_value_of_nothing_is_nan_on_host_and_device():
    assert math.isnan(Ratio.zero().value())
    assert math.isnan(float(jax.jit(Ratio.value)(Ratio(jnp.float32(0), jnp.float32(0)))))


def test_is_a_pytree_with_two_scalars():
    ratio = jax.jit(lambda r: r + r)(Ratio(jnp.float32(1), jnp.float32(2)))
    assert [leaf.dtype for leaf in jax.tree.leaves(ratio)] == [jnp.float32] * 2
    assert ratio.host() == Ratio(2.0, 4.0)
    assert isinstance(ratio.host().numerator, float)


@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 2**10)), min_size=1))
def test_merging_does_not_depend_on_order_or_grouping(pairs):
    ratios = [Ratio(float(n), float(d)) for n, d in pairs]
    forward = sum(ratios, Ratio.zero())
    middle = len(ratios) // 2
    grouped = sum(ratios[middle:], Ratio.zero()) + sum(ratios[:middle], Ratio.zero())
    assert forward == grouped


def test_host_ratios_add_in_double():
    tiny = Ratio(np.float32(1), np.float32(1)).host()
    assert (Ratio(2.0**24, 2.0**24) + tiny).numerator == 2.0**24 + 1
