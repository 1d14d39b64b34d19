import jax
import jax.numpy as jnp

from luthier.plan.flops import model_flops

ROWS, DIM, HIDDEN = 8, 8, 16
FORWARD = 2 * ROWS * DIM * HIDDEN


def test_the_three_conventions():
    jaxpr = jax.make_jaxpr(lambda x, w: x @ w)(jnp.ones((ROWS, DIM)), jnp.ones((DIM, HIDDEN)))
    found = model_flops(jaxpr, parameters=10, tokens=7)
    assert found.full == found.causal == 3 * FORWARD
    assert found.six_n == 420


def test_batched_products_count_half_where_a_causal_kernel_skips_them():
    jaxpr = jax.make_jaxpr(lambda q: jnp.einsum("blk,bmk->blm", q, q))(jnp.ones((2, 4, DIM)))
    found = model_flops(jaxpr, parameters=0, tokens=0)
    assert found.full == 2 * found.causal == 3 * 2 * (2 * 4 * 4 * DIM)
