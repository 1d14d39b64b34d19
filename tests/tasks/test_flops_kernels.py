"""Kernels, which no jaxpr shows as products, count as they declare."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental import pallas

from luthier.layers import abstract_forms
from luthier.layers.declared import kernel, visible
from luthier.tasks import Flops
from luthier.tasks import count_flops as count

B, L, H, K = 2, 64, 4, 16
SCORES = 2 * B * H * L * L * K
QUERY = jax.ShapeDtypeStruct((B, L, H, K), jnp.bfloat16)


def _products(q):
    scores = jnp.einsum("blhk,bmhk->bhlm", q, q)
    return jnp.einsum("bhlm,bmhk->blhk", scores, q)


def _opaque(*arrays):
    return jax.pure_callback(lambda *x: np.zeros_like(x[0]), arrays[0], *arrays)


@jax.custom_vjp
def _attend(q):
    return kernel(_opaque, _products, flops=2 * SCORES)(q)


def _backward(q, change):
    return (kernel(_opaque, _opaque, flops=5 * SCORES)(q, change),)


_attend.defvjp(lambda q: (_attend(q), q), _backward)


def _loss(q):
    with visible(Fraction(1, 2)):
        return _attend(q).astype(jnp.float32).sum()


def test_a_kernel_counts_what_it_declares_and_what_a_mask_hides_of_it():
    forward = Flops(batched=2 * SCORES, hidden=SCORES)
    assert count(jax.make_jaxpr(_loss)(QUERY)) == forward
    with abstract_forms():
        assert count(jax.make_jaxpr(_loss)(QUERY)) == forward


def test_both_directions_count_and_when_computed_again():
    def layers(q, body):
        return body(body(body(q))).sum()

    kept = jax.make_jaxpr(jax.grad(lambda q: layers(q, _attend)))(QUERY)
    assert count(kept).total == 3 * (2 + 5) * SCORES
    again = jax.make_jaxpr(jax.grad(lambda q: layers(q, jax.checkpoint(_attend))))(QUERY)
    # Going back, this kernel needs its inputs alone: nothing is computed again.
    assert count(again).total == 3 * (2 + 5) * SCORES


def test_attention_of_cudnn_counts_by_its_shapes(monkeypatch):
    # Without a GPU it cannot be traced: it asks for the library and the device.
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(cudnn, "check_is_flash_attention", lambda *_, **__: None)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)

    def loss(q):
        found = jax.nn.dot_product_attention(q, q, q, is_causal=True, implementation="cudnn")
        return found.astype(jnp.float32).sum()

    assert count(jax.make_jaxpr(loss)(QUERY)).total == 2 * SCORES
    assert count(jax.make_jaxpr(jax.grad(loss))(QUERY)).total == (2 + 5) * SCORES


@pytest.mark.full
def test_kernels_of_pallas_count_by_their_estimate_or_by_their_body():
    def square(x_ref, y_ref):
        y_ref[...] = x_ref[...] @ x_ref[...]

    shape = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
    block = pallas.BlockSpec((None, 8, 8), lambda i: (i, 0, 0))

    def run(x, **options):
        call = pallas.pallas_call(
            square, out_shape=shape, grid=(4,), in_specs=[block], out_specs=block, **options
        )
        return call(x)

    assert count(jax.make_jaxpr(run)(shape)).total == 4 * 2 * 8**3
    estimate = pallas.CostEstimate(flops=77, transcendentals=0, bytes_accessed=0)
    jaxpr = jax.make_jaxpr(lambda x: run(x, cost_estimate=estimate))(shape)
    assert count(jaxpr) == Flops(batched=77)
