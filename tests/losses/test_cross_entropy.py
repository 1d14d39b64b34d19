from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier import parallel
from luthier.losses import (
    Chunked,
    Fused,
    Whole,
    cross_entropy,
    unembedded_cross_entropy,
    weighted_cross_entropy,
)
from luthier.parallel import Mesh, Rules, activation_rules

B, D, V = 3, 8, 13


def reference(logits, targets, z_loss=0.0, label_smoothing=0.0):
    """Float64 NumPy, written as the formula of the papers."""
    logits = np.asarray(logits, np.float64)
    shift = logits.max(-1, keepdims=True)
    log_z = np.log(np.exp(logits - shift).sum(-1)) + shift[..., 0]
    log_probabilities = logits - log_z[..., None]
    smoothed = np.eye(logits.shape[-1])[np.asarray(targets)]
    nats = -(smoothed * log_probabilities).sum(-1)
    smoothed = (1 - label_smoothing) * smoothed + label_smoothing / logits.shape[-1]
    loss = -(smoothed * log_probabilities).sum(-1) + z_loss * log_z**2
    return nats, loss


def sample(seed=0, length=7):
    keys = jax.random.split(jax.random.key(seed), 4)
    hidden = jax.random.normal(keys[0], (B, length, D))
    table = jax.random.normal(keys[1], (V, D))
    targets = jax.random.randint(keys[2], (B, length), 0, V)
    share = jnp.array([0.1, 0.9, 0.5])[:, None]
    weights = (jax.random.uniform(keys[3], (B, length)) < share).astype(jnp.float32)
    return hidden, table, targets, weights


@pytest.mark.full
def test_against_numpy_in_float64():
    hidden, table, targets, _ = sample()
    logits = 5 * hidden @ table.T
    losses = cross_entropy(logits, targets, z_loss=1e-2, label_smoothing=0.1)
    nats, loss = reference(logits, targets, 1e-2, 0.1)
    np.testing.assert_allclose(losses.nats_BL, nats, rtol=1e-6, atol=3e-6)
    np.testing.assert_allclose(losses.loss_BL, loss, rtol=1e-6, atol=3e-6)


def test_against_optax():
    hidden, table, targets, _ = sample(1)
    logits = hidden @ table.T
    losses = cross_entropy(logits, targets, label_smoothing=0.2)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    np.testing.assert_allclose(losses.nats_BL, expected, rtol=1e-5, atol=1e-6)
    labels = optax.smooth_labels(jax.nn.one_hot(targets, V), 0.2)
    expected = optax.softmax_cross_entropy(logits, labels)
    np.testing.assert_allclose(losses.loss_BL, expected, rtol=1e-5, atol=1e-6)


def test_huge_logits_stay_finite():
    losses = cross_entropy(jnp.array([[1e4, -1e4, 0.0]]), jnp.array([1]), label_smoothing=0.1)
    assert losses.nats_BL[0] == 2e4
    assert jnp.isfinite(losses.loss_BL[0])


def test_logits_in_bfloat16_are_reduced_in_float32():
    logits = jax.random.normal(jax.random.key(0), (4, 1000)).astype(jnp.bfloat16)
    losses = cross_entropy(logits, jnp.arange(4), z_loss=1e-4)
    assert losses.nats_BL.dtype == losses.loss_BL.dtype == jnp.float32
    nats, _ = reference(logits.astype(jnp.float32), np.arange(4))
    np.testing.assert_allclose(losses.nats_BL, nats, rtol=1e-6)


@pytest.mark.full
def test_classes_of_logit_minus_infinity_are_none():
    hidden, table, targets, _ = sample(2)
    logits = hidden @ table.T
    padded = jnp.pad(logits, ((0, 0), (0, 0), (0, 3)), constant_values=-jnp.inf)

    def loss(logits):
        losses = cross_entropy(logits, targets, z_loss=1e-3, label_smoothing=0.1)
        return losses.loss_BL.sum()

    value, gradient = jax.value_and_grad(loss)(logits)
    padded_value, padded_gradient = jax.value_and_grad(loss)(padded)
    np.testing.assert_allclose(padded_value, value, rtol=1e-6)
    np.testing.assert_allclose(padded_gradient[..., :V], gradient, rtol=1e-5, atol=1e-7)
    assert not padded_gradient[..., V:].any()


def test_correct_counts_a_tie_once():
    losses = cross_entropy(jnp.zeros((3, 3)), jnp.arange(3))
    assert losses.correct_BL.tolist() == [1, 0, 0]


def test_terms_of_weight_zero_change_nothing():
    hidden, table, targets, _ = sample(3)
    without = cross_entropy(hidden @ table.T, targets)
    with_zeros = cross_entropy(hidden @ table.T, targets, z_loss=0.0, label_smoothing=0.0)
    np.testing.assert_array_equal(without.loss_BL, with_zeros.loss_BL)


def test_hyperparameters_may_be_tracers():
    hidden, table, targets, _ = sample(4)

    @jax.jit
    def loss(z_loss, label_smoothing):
        return cross_entropy(
            hidden @ table.T, targets, z_loss=z_loss, label_smoothing=label_smoothing
        ).loss_BL

    for z_loss, smoothing in ((0.0, 0.0), (1e-3, 0.3)):
        _, expected = reference(hidden @ table.T, targets, z_loss, smoothing)
        np.testing.assert_allclose(loss(z_loss, smoothing), expected, rtol=1e-5, atol=1e-6)
    assert loss._cache_size() == 1


@functools.cache
def objective(chunking, z_loss, smoothing):
    def loss(hidden, table, targets, weights):
        losses = unembedded_cross_entropy(
            hidden,
            lambda hidden: hidden @ table.T,
            targets,
            z_loss=z_loss,
            label_smoothing=smoothing,
            chunking=chunking,
        )
        return jnp.sum(losses.loss_BL * weights), losses

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))


def relative(a, b):
    return float(jnp.linalg.norm(a - b) / jnp.maximum(jnp.linalg.norm(b), 1e-30))


@pytest.mark.full
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    length=st.sampled_from([1, 7, 12]),
    chunk=st.sampled_from([1, 3, 4, 8]),
    z_loss=st.sampled_from([None, 1e-2]),
    smoothing=st.sampled_from([None, 0.15]),
)
def test_chunked_gradients_are_the_whole_ones(seed, length, chunk, z_loss, smoothing):
    arguments = sample(seed, length)
    with jax.default_matmul_precision("highest"):
        (whole, losses), gradients = objective(Whole(), z_loss, smoothing)(*arguments)
        (value, chunked), chunked_gradients = objective(Chunked(chunk), z_loss, smoothing)(
            *arguments
        )
    np.testing.assert_allclose(value, whole, rtol=1e-6)
    np.testing.assert_allclose(chunked.nats_BL, losses.nats_BL, rtol=1e-6, atol=1e-6)
    for a, b in zip(chunked_gradients, gradients, strict=True):
        assert relative(a, b) <= 1e-6


@pytest.mark.full
def test_chunked_gradients_in_float64():
    with jax.enable_x64(True):
        arguments = [
            array.astype(jnp.float64) if array.dtype == jnp.float32 else array
            for array in sample(9, 11)
        ]
        (_, losses), gradients = objective(Whole(), 1e-2, 0.1)(*arguments)
        _, chunked = objective(Chunked(4), 1e-2, 0.1)(*arguments)
        assert losses.nats_BL.dtype == jnp.float64
        for a, b in zip(chunked, gradients, strict=True):
            assert relative(a, b) <= 1e-13


@functools.cache
def summed(chunking, z_loss, smoothing):
    """Three times the weighted sum: a factor that the loss does not know of."""

    def loss(hidden, table, weights, targets):
        total, losses = weighted_cross_entropy(
            hidden,
            lambda hidden: hidden @ table.T,
            targets,
            weights,
            z_loss=z_loss,
            label_smoothing=smoothing,
            chunking=chunking,
        )
        return 3 * total, losses

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)


@pytest.mark.full
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    length=st.sampled_from([1, 7, 12]),
    chunk=st.sampled_from([1, 3, 4, 20]),
    z_loss=st.sampled_from([None, 1e-2]),
    smoothing=st.sampled_from([None, 0.15]),
)
def test_a_fused_loss_has_the_values_and_gradients_of_the_whole(
    seed, length, chunk, z_loss, smoothing
):
    with jax.enable_x64(True):
        hidden, table, targets, weights = sample(seed, length)
        floats = [x.astype(jnp.float64) for x in (hidden, table, 0.5 * weights)]
        whole = jax.jit(summed(Whole(), z_loss, smoothing))(*floats, targets)
        fused = jax.jit(summed(Fused(chunk), z_loss, smoothing))(*floats, targets)
    for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(whole), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_a_fused_loss_pads_the_last_chunk_with_what_has_a_derivative():
    hidden, table, targets, weights = sample(7, 5)

    def loss(table, chunking):
        unembed = lambda hidden: hidden / jnp.linalg.norm(hidden, axis=-1, keepdims=True) @ table.T
        return weighted_cross_entropy(hidden, unembed, targets, weights, chunking=chunking)[0]

    found, expected = (jax.grad(loss)(table, chunking) for chunking in (Fused(2), Whole()))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_fused_loss_keeps_nothing_of_the_model_alive():
    hidden, table, targets, weights = sample(8, 4)

    class Unembed:
        def __call__(self, hidden):
            return hidden @ table.T

    def gradient(unembed):
        def loss(hidden):
            return weighted_cross_entropy(hidden, unembed, targets, weights, chunking=Fused(2))[0]

        return jax.grad(loss)(hidden)

    unembed = Unembed()
    alive = weakref.ref(unembed)
    gradient(unembed)
    del unembed
    gc.collect()
    assert alive() is None


def test_a_fused_loss_makes_the_logits_once():
    """Three products: forward, and one for each gradient; in chunks that are made again, four."""
    hidden, table, targets, weights = sample(6, 12)
    for chunking, products in ((Whole(), 3), (Chunked(4), 4), (Fused(4), 3)):
        jaxpr = str(jax.make_jaxpr(summed(chunking, None, None))(hidden, table, weights, targets))
        assert jaxpr.count("dot_general[") == products, chunking
        # No array holds the logits of all positions.
        assert (f"f32[{B},12,{V}]" in jaxpr) == (chunking == Whole())


def test_a_fused_loss_adds_up_the_gradient_of_narrow_parameters_in_float32():
    length = 512
    hidden = jnp.ones((1, length, 4), jnp.bfloat16)
    table = jnp.zeros((V, 4), jnp.bfloat16)
    targets, weights = jnp.zeros((1, length), jnp.int32), jnp.ones((1, length), jnp.float32)

    def loss(table):
        unembed = lambda hidden: (hidden @ table.T).astype(jnp.float32)
        return weighted_cross_entropy(hidden, unembed, targets, weights, chunking=Fused(1))[0]

    gradient = jax.grad(loss)(table)
    assert gradient.dtype == jnp.bfloat16
    # In bfloat16 the sum of 512 such summands would end where one of them is half a rounding.
    expected = length / V
    np.testing.assert_allclose(gradient[1:].astype(np.float32), expected, rtol=1e-2)


@pytest.mark.parametrize("chunking", [Whole(), Chunked(3)])
def test_masked_tokens_have_no_gradient(chunking):
    hidden, table, targets, weights = sample(5)
    _, (gradient, _) = objective(chunking, 1e-2, 0.1)(hidden, table, targets, weights)
    assert not gradient[weights == 0].any()
    assert gradient[weights != 0].any()


def test_on_accelerators_targets_are_looked_up_without_a_table_of_zeros(monkeypatch):
    """The same numbers, by a comparison: nothing is scattered going back."""
    hidden, table, targets, weights = sample()
    logits = (hidden @ table.T).at[..., V - 1].set(-jnp.inf)
    targets = targets % (V - 1)

    def loss(logits):
        return (cross_entropy(logits, targets, z_loss=1e-3).loss_BL * weights).sum()

    found = {}
    for is_there in (False, True):
        module = sys.modules["luthier.losses.cross_entropy"]
        monkeypatch.setattr(module, "_is_on_accelerator", lambda there=is_there: there)
        text = str(jax.make_jaxpr(jax.grad(loss))(logits))
        assert ("scatter" in text) == (not is_there)
        found[is_there] = jax.value_and_grad(loss)(logits)
    np.testing.assert_array_equal(found[True][0], found[False][0])
    np.testing.assert_allclose(found[True][1], found[False][1], rtol=1e-6, atol=1e-7)


def on(platform):
    """Return rules of a mesh whose devices have a platform, for what is decided while tracing."""
    mesh = types.SimpleNamespace(devices=np.asarray([types.SimpleNamespace(platform=platform)]))
    layout = types.SimpleNamespace(mesh=mesh, mesh_axes=lambda name: (), is_explicit=False)
    return mock.patch("luthier.parallel.activations.current_layout", return_value=layout)


def test_the_platform_is_that_of_the_mesh():
    assert parallel.current_platform() == ""
    with activation_rules(Mesh().arrange(jax.devices()[:1]), Rules()):
        assert parallel.current_platform() == "cpu"
    with on("gpu"):
        assert parallel.current_platform() == "gpu"


@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_the_form_for_gpus_gives_the_same_losses_and_gradients(smoothing):
    """One pass over the logits, and a lookup whose derivative compares: against float64."""
    rng = np.random.default_rng(0)
    logits_BLV = rng.normal(size=(3, 5, 384)) * np.array([1e-3, 1, 30])[:, None, None]
    logits_BLV[0, 0, :300] = -np.inf  # classes that are none
    logits_BLV[1, 1, :3] = 80.0
    targets_BL = jnp.asarray(rng.integers(300, 384, (3, 5)))
    weights_BL = jnp.asarray(rng.uniform(size=(3, 5)))

    def loss(logits_BLV):
        found = cross_entropy(logits_BLV, targets_BL, z_loss=1e-4, label_smoothing=smoothing)
        return (found.loss_BL * weights_BL).sum(), found

    with jax.enable_x64(True):
        plain = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(logits_BLV))
    with on("gpu"):
        assert "scatter" not in str(jax.make_jaxpr(jax.grad(loss, has_aux=True))(logits_BLV))
        found = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(logits_BLV, jnp.float32))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)
    with on("gpu"):  # as `logsumexp`: no class at all, and a number that is none
        odd = jnp.array([[[-jnp.inf] * 4, [0.0, jnp.nan, 1.0, 2.0]]])
        assert np.isnan(cross_entropy(odd, jnp.zeros((1, 2), jnp.int32)).nats_BL).all()


def test_the_first_of_the_largest_logits_is_what_is_predicted():
    """As by `argmax`, which is not called on a CPU: ties, infinities and NaN are decided alike."""
    rng = np.random.default_rng(0)
    logits_BLV = rng.integers(-2, 3, (4, 64, 5)).astype(np.float32)  # full of ties
    logits_BLV[0, :8] = -np.inf
    logits_BLV[1, :8, 2:4] = np.inf
    logits_BLV[2, :8, 1:3] = np.nan
    for target in range(5):
        targets_BL = np.full((4, 64), target)
        found = cross_entropy(jnp.asarray(logits_BLV), jnp.asarray(targets_BL)).correct_BL
        np.testing.assert_array_equal(found, jnp.argmax(logits_BLV, -1) == target)


@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_the_form_for_tpus_of_narrow_logits_rounds_no_earlier(smoothing):
    """Logits in bfloat16 give what float32 logits of the same values give, and their gradient."""
    rng = np.random.default_rng(0)
    logits_BLV = rng.normal(size=(3, 5, 384)) * np.array([1e-3, 1, 30])[:, None, None]
    logits_BLV[0, 0, :300] = -np.inf  # classes that are none
    logits_BLV[1, 1, 300:303] = 80.0
    stored_BLV = jnp.asarray(logits_BLV, jnp.bfloat16)
    targets_BL = jnp.asarray(rng.integers(300, 384, (3, 5))).at[1, 1].set(300)
    targets_BL = targets_BL.at[2].set(stored_BLV[2].argmax(-1))  # probabilities near one
    weights_BL = jnp.asarray(rng.uniform(size=(3, 5)))

    def loss(logits_BLV):
        found = cross_entropy(logits_BLV, targets_BL, z_loss=1e-4, label_smoothing=smoothing)
        return (found.loss_BL * weights_BL).sum(), found

    exact, gradient = jax.grad(loss, has_aux=True)(stored_BLV.astype(jnp.float32))[::-1]
    with on("tpu"):
        text = str(jax.make_jaxpr(jax.grad(loss, has_aux=True))(stored_BLV))
        found, narrow = jax.grad(loss, has_aux=True)(stored_BLV)[::-1]
    assert ("optimization_barrier" in text) == (smoothing is None)
    for field in ("nats_BL", "loss_BL", "correct_BL"):
        np.testing.assert_allclose(getattr(found, field), getattr(exact, field), rtol=2e-6)
    infinite, target = jnp.array([[[1.0, jnp.inf, 0.0]]], jnp.bfloat16), jnp.zeros((1, 1), int)
    with on("tpu"):
        assert cross_entropy(infinite, target, label_smoothing=smoothing).nats_BL == jnp.inf
    assert narrow.dtype == jnp.bfloat16
    finite = np.isfinite(stored_BLV.astype(np.float32))
    expected = np.asarray(gradient.astype(jnp.bfloat16), np.float32)[finite]
    np.testing.assert_allclose(np.float32(narrow)[finite], expected, rtol=2**-7, atol=1e-9)
