from fractions import Fraction

import jax
import jax.numpy as jnp

from luthier.layers.declared import visible
from luthier.planner import model_flops

ROWS, DIM, HIDDEN = 8, 8, 16
FORWARD = 2 * ROWS * DIM * HIDDEN


def test_the_three_conventions():
    jaxpr = jax.make_jaxpr(lambda x, w: x @ w)(jnp.ones((ROWS, DIM)), jnp.ones((DIM, HIDDEN)))
    found = model_flops(jaxpr, parameters=10, tokens=7)
    assert found.full == found.causal == 3 * FORWARD
    assert found.six_n == 420


def test_pairs_that_a_mask_hides_count_in_one_convention_only():
    def attend(q):
        with visible(Fraction(3, 8)):
            return jnp.einsum("blk,bmk->blm", q, q)

    jaxpr = jax.make_jaxpr(attend)(jnp.ones((2, 4, DIM)))
    found = model_flops(jaxpr, parameters=0, tokens=0)
    assert found.full == 3 * 2 * (2 * 4 * 4 * DIM)
    assert found.causal == found.full * 3 // 8


def test_other_batched_products_count_whole():
    jaxpr = jax.make_jaxpr(lambda q: jnp.einsum("blk,bmk->blm", q, q))(jnp.ones((2, 4, DIM)))
    found = model_flops(jaxpr, parameters=0, tokens=0)
    assert found.full == found.causal == 3 * 2 * (2 * 4 * 4 * DIM)
