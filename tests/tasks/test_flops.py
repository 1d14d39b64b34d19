import jax
import jax.numpy as jnp
import pytest

from luthier.tasks import Flops
from luthier.tasks import count_flops as count

LAYERS, DIM, HIDDEN, ROWS, LENGTH, HEADS = 3, 8, 16, 2, 4, 2


def _weights():
    return {"up": jnp.ones((LAYERS, DIM, HIDDEN)), "down": jnp.ones((LAYERS, HIDDEN, DIM))}


def _mlp(x, w):
    return x + jax.nn.relu(x @ w["up"]) @ w["down"]


def _scanned(weights, x, body=_mlp):
    return jax.lax.scan(lambda x, w: (body(x, w), None), x, weights)[0].sum()


def _unrolled(weights, x):
    for layer in range(LAYERS):
        x = _mlp(x, jax.tree.map(lambda w, layer=layer: w[layer], weights))
    return x.sum()


FORWARD = LAYERS * 2 * 2 * ROWS * LENGTH * DIM * HIDDEN


@pytest.mark.parametrize("forward", [_scanned, _unrolled])
def test_a_scan_counts_as_often_as_it_runs(forward):
    x = jnp.ones((ROWS, LENGTH, DIM))
    assert count(jax.make_jaxpr(forward)(_weights(), x)) == Flops(weights=FORWARD)


def test_the_gradient_costs_twice_the_forward_pass_and_remat_one_more():
    x = jnp.ones((ROWS, LENGTH, DIM))
    gradient = jax.make_jaxpr(jax.grad(_scanned, argnums=(0, 1)))(_weights(), x)
    assert count(gradient).total == 3 * FORWARD

    def remat(weights, x):
        return _scanned(weights, x, jax.checkpoint(_mlp))

    # The last product of each layer is not needed again.
    recomputed = count(jax.make_jaxpr(jax.grad(remat, argnums=(0, 1)))(_weights(), x)).total
    assert 3 * FORWARD < recomputed <= 4 * FORWARD


def test_attention_products_are_counted_apart_from_weights():
    q = jnp.ones((ROWS, LENGTH, HEADS, DIM))
    jaxpr = jax.make_jaxpr(lambda q: jnp.einsum("blhk,bmhk->bhlm", q, q))(q)
    assert count(jaxpr) == Flops(batched=2 * ROWS * HEADS * LENGTH * LENGTH * DIM)


def test_a_branch_counts_as_its_largest_side():
    def branches(x):
        return jax.lax.cond(x.sum() > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

    assert count(jax.make_jaxpr(branches)(jnp.ones((4, 4)))).total == 2 * 2 * 4**3


def test_calls_inside_calls_are_counted():
    inner = jax.jit(lambda x: x @ x)
    outer = jax.custom_jvp(lambda x: inner(x))
    outer.defjvp(lambda p, t: (outer(*p), t[0]))
    assert count(jax.make_jaxpr(jax.jit(outer))(jnp.ones((4, 4)))).total == 2 * 4**3


def test_a_convolution_counts_kernel_times_outputs():
    x, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 5))

    def convolve(x, kernel):
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)

    flops = count(jax.make_jaxpr(convolve)(x, kernel)).total
    assert flops == 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)
