import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier.recipes import decoders
from luthier.recipes.decoders import pax, pax_gpt3

SIZES = {"vocab_size": 258, "dim": 16, "num_layers": 2, "num_heads": 4, "head_dim": 8}

# Billions, as computed from the settings of Paxml 1.4.0 by L (4 D N H + 2 D F) + V D.
PUBLISHED = {"pax_1b": 1.10, "pax_2b": 2.14, "pax_16b": 16.5, "pax_32b": 32.5}


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters(name, num_parameters):
    billions = num_parameters(getattr(decoders, name)()) / 1e9
    assert billions == pytest.approx(PUBLISHED[name], rel=0.005)


def test_number_of_parameters_of_gpt3(num_parameters):
    L, D, V, P = 96, 12_288, 50_257, 16_384
    layer = 4 * D * D + 4 * D + 8 * D * D + 5 * D + 4 * D
    assert num_parameters(decoders.pax_gpt3_175b()) == L * layer + (V + P) * D + 2 * D


def reference(model, inputs):
    """Base model A in float64, written out from the formulas of Praxis."""
    state = nnx.to_pure_dict(nnx.state(model))
    arrays = jax.tree.map(lambda x: np.asarray(x, np.float64), state)
    L, D, K = inputs.shape[1], SIZES["dim"], SIZES["head_dim"]

    def norm(x, p):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * (1 + p["scale"]) + p["bias"]

    def cap(x, c):
        return c * np.tanh(x / c)

    steps = np.exp(-np.log(1e4) / (D // 2 - 1) * np.arange(D // 2)) * np.arange(L)[:, None]
    table = arrays["embedding"]["table"]
    x = table[inputs] * np.sqrt(D) + np.concatenate([np.sin(steps), np.cos(steps)], -1)
    for i in range(SIZES["num_layers"]):
        p = jax.tree.map(lambda a, i=i: a[i], arrays["blocks"])
        y, a = norm(x, p["attention_norm"]), p["attention"]
        q, k, v = (np.einsum("BLD,DHK->BLHK", y, a[n]["kernel"]) for n in ("query", "key", "value"))
        q = q * 1.442695041 / np.sqrt(K) * np.log1p(np.exp(a["query_key"]["theta"]))
        scores = cap(np.einsum("BLHK,BSHK->BHLS", q, k), 50.0)
        weights = np.exp(scores) * np.tril(np.ones((L, L)))
        weights /= weights.sum(-1, keepdims=True)
        context = np.einsum("BHLS,BSHK->BLHK", weights, v)
        x = x + np.einsum("BLHK,HKD->BLD", context, a["output"]["kernel"])
        y, m = norm(x, p["mlp_norm"]), p["mlp"]
        h = y @ m["up"]["kernel"] + m["up"]["bias"]
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + h @ m["down"]["kernel"] + m["down"]["bias"]
    logits = norm(x, arrays["norm"]) @ table.T + arrays["unembedding"]["bias"]
    return cap(logits, 30.0)


@pytest.mark.full
def test_logits_are_those_of_the_formulas():
    model = graphs.build(pax(**SIZES))(rngs=nnx.Rngs(0))
    generator = np.random.default_rng(0)
    for _, variable in nnx.to_flat_state(nnx.state(model)):
        noise = 0.2 * generator.standard_normal(variable.shape)
        variable.set_value(variable.get_value() + jnp.asarray(noise, jnp.float32))
    inputs = generator.integers(0, 258, (2, 11))
    with jax.default_matmul_precision("highest"):
        logits = jax.jit(lambda model, inputs: model(inputs))(model, inputs)
    np.testing.assert_allclose(logits, reference(model, inputs), rtol=1e-5, atol=1e-5)


def test_initial_kernels_have_the_limits_of_pax(abstract):
    graph = pax(**SIZES | {"dim": 64, "num_heads": 4, "head_dim": 16})
    model = graphs.build(graph)(rngs=nnx.Rngs(0))
    attention = model.blocks.attention
    expected = {
        "query": (6 / (3 * 64 * (4 + 16))) ** 0.5,
        "value": (6 / (3 * 64 * (4 + 16))) ** 0.5,
        "output": (6 / (64 * (4 + 16))) ** 0.5,
    }
    for name, limit in expected.items():
        largest = float(jnp.abs(getattr(attention, name).kernel[...]).max())
        assert 0.99 * limit < largest <= 1.0001 * limit, name
    spread = float(jnp.abs(model.blocks.mlp.up.kernel[...]).max())
    assert spread == pytest.approx((6 / (64 + 256)) ** 0.5, rel=0.01)


@pytest.mark.full
@pytest.mark.parametrize("recipe", [pax, pax_gpt3])
def test_the_cache_is_the_forward_pass(recipe):
    model = graphs.build(recipe(**SIZES))(rngs=nnx.Rngs(0))
    inputs = jnp.asarray(np.random.default_rng(0).integers(0, 258, (2, 6)), jnp.int32)
    with jax.default_matmul_precision("highest"):
        logits = jax.jit(lambda model, inputs: model(inputs))(model, inputs)
        decode = jax.jit(lambda model, tokens, cache: model.decode(tokens, cache))
        cache = model.init_cache(2, 6)
        for i in range(6):
            after, cache = decode(model, inputs[:, i : i + 1], cache)
            np.testing.assert_allclose(after, logits[:, i], rtol=1e-5, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("recipe", [pax, pax_gpt3])
def test_trains(recipe, assert_trains):
    assert_trains(recipe(**SIZES, pad_to_multiple=8))
