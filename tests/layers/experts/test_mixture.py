import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    AllExperts,
    Attention,
    Capacity,
    Dropless,
    Experts,
    GatedMlp,
    Mlp,
    PreNormBlock,
    RMSNorm,
    TopK,
)
from luthier.layers.experts import by_site, observing
from luthier.losses import load_balance
from luthier.program import split

GOLDEN = Path(__file__).parent / "goldens" / "mixtral.npz"
E, K, D = 4, 2, 6


def _layer(dispatch, **settings):
    return Experts(
        E,
        functools.partial(TopK, K),
        functools.partial(GatedMlp, hidden_dim=8),
        dispatch,
        dim=D,
        rngs=nnx.Rngs(params=0),
        **settings,
    )


@jax.jit
def _observed(module, *arguments):
    with observing() as seen:
        y_BLD = module(*arguments)
    (sums,) = seen
    return y_BLD, sums


def _below(prefix, arrays):
    return {n.removeprefix(prefix): arrays[n] for n in arrays.files if n.startswith(prefix)}


@pytest.mark.parametrize("dispatch", [AllExperts(), Capacity(E / K), Dropless()])
def test_it_is_the_mixture_of_mixtral(dispatch, distance):
    with np.load(GOLDEN) as golden, jax.enable_x64(True):
        layer = _layer(dispatch, dtype=jnp.float64, param_dtype=jnp.float64)
        structure, parameters, _ = split(layer)
        weights, given = golden["weights"], _below("parameter/", golden)
        assert {n: p.shape for n, p in parameters.items()} == {n: p.shape for n, p in given.items()}

        def loss(parameters, x):
            with observing() as seen:
                y = structure.merge(parameters)(x)
            return jnp.sum(y * weights), (y, seen[0])

        gradients, (y, sums) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(given, golden["x"])
        # Theirs takes the softmax in float32.
        assert distance(y, golden["y"]) < 1e-6
        assert distance(gradients[1], golden["gradient/x"]) < 1e-6
        for name, gradient in gradients[0].items():
            assert distance(gradient, golden[f"gradient/{name}"]) < 1e-6, name
        # Theirs counts each of the K choices in full.
        sums = by_site(sums)
        balance = load_balance(sums.choices_E, sums.probabilities_E, sums.tokens)
        assert K * float(balance[0]) == pytest.approx(float(golden["load_balance"]), rel=1e-6)


@pytest.mark.parametrize("dispatch", [AllExperts(), Capacity(0.5), Dropless()])
def test_padding_takes_no_place_and_counts_nothing(dispatch, draw, pack, apply):
    layer, x_BLD = _layer(dispatch), draw(2, 10, D)
    padded, full = pack([[4], [3, 2]], 10), pack([[4], [3, 2]], 5)
    cut_BLD = x_BLD.at[:, 5:].set(100.0)
    y_BLD, sums = _observed(layer, cut_BLD, padded)
    assert not y_BLD[:, 5:].any()
    assert float(sums.tokens) == 9
    assert float(sums.wanted) == float(sums.choices_E.sum()) == 9 * K
    assert np.isfinite(sums.squared_log_z)
    assert np.isfinite(sums.probabilities_E).all()
    if not isinstance(dispatch, Capacity):  # there, shorter rows have fewer places
        np.testing.assert_allclose(y_BLD[:, :5], apply(layer, x_BLD[:, :5], full), atol=1e-6)


def test_dropped_choices_are_reported(draw, apply):
    layer, x_BLD = _layer(Capacity(0.5)), draw(3, 16, D)
    _, sums = _observed(layer, x_BLD)
    places = 4  # ceil(0.5 * 2 * 16 / 4) of each expert in each row
    choice = apply(layer.router, x_BLD)
    loads = [np.bincount(row.reshape(-1), minlength=E) for row in np.asarray(choice.experts_BLK)]
    expected = sum(np.maximum(load - places, 0).sum() for load in loads)
    assert expected > 0
    assert float(sums.dropped) == expected


@pytest.mark.full
def test_a_shared_expert_sees_every_token(draw, apply, pack):
    shared = functools.partial(Mlp, hidden_dim=3)
    both, alone = _layer(Dropless(), shared=shared), _layer(Dropless())
    x_BLD, tokens = draw(2, 8, D), pack([[8], [3]], 8)
    expected_BLD = apply(alone, x_BLD, tokens) + both.shared(x_BLD)
    np.testing.assert_allclose(apply(both, x_BLD, tokens), expected_BLD, atol=1e-6)


@pytest.mark.parametrize("dispatch", [AllExperts(), Capacity(E / K), Dropless()])
def test_it_computes_in_bfloat16(dispatch, draw, apply, distance):
    narrow = _layer(dispatch, dtype=jnp.bfloat16)
    x_BLD = draw(2, 8, D).astype(jnp.bfloat16)
    y_BLD = apply(narrow, x_BLD)
    assert y_BLD.dtype == jnp.bfloat16
    assert distance(y_BLD, apply(_layer(dispatch), x_BLD.astype(jnp.float32))) < 0.01


@pytest.mark.full
def test_a_block_passes_its_experts_the_padding(draw, pack):
    block = PreNormBlock(
        functools.partial(Attention, num_heads=2),
        functools.partial(
            Experts,
            E,
            functools.partial(TopK, K),
            functools.partial(GatedMlp, hidden_dim=8),
            Dropless(),
        ),
        RMSNorm,
        dim=D,
        rngs=nnx.Rngs(params=0),
    )
    _, sums = _observed(block, draw(2, 8, D), pack([[5], [3, 2]], 8))
    assert float(sums.tokens) == 10
