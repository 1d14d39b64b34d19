import jax
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier.layers.experts import ACTIVE_SHARE
from luthier.recipes.decoders import glam, glam_1162b

SIZES = {"vocab_size": 61, "dim": 16, "num_layers": 4, "num_heads": 4, "head_dim": 8}
EXPERTS = {"hidden_dim": 24, "num_experts": 4, "capacity": 2.0}  # places for all


def test_sizes_are_those_of_the_paper(num_parameters, abstract):
    """Table 4 of arXiv 2112.06905: 1.2 trillion parameters, 96.6 billion active."""
    D, F, E, N, K, V, pairs = 8192, 32_768, 64, 128, 128, 256_000, 32
    attention = 4 * D * N * K + 32 * N
    expert, gated = 2 * D * F, 3 * D * F
    whole = pairs * (2 * (attention + 2 * D) + E * expert + D * E + gated) + V * D + D
    assert num_parameters(glam_1162b()) == whole
    assert whole == pytest.approx(1.2e12, rel=0.05)
    state = nnx.to_flat_state(nnx.state(abstract(glam_1162b()), nnx.Param))
    active = sum(
        int(np.prod(v.get_value().shape)) * v.get_metadata().get(ACTIVE_SHARE, 1) for _, v in state
    )
    assert active == whole - pairs * (E - 2) * expert
    assert active / 1e9 == pytest.approx(96.6, rel=0.001)


def test_layers_with_experts_and_without_take_turns(abstract):
    model = abstract(glam(**SIZES, **EXPERTS))
    first, second = model.blocks.cycle
    assert first.mlp.experts.up.kernel.shape == (2, 4, 16, 24)
    assert second.mlp.gate.kernel.shape == second.mlp.up.kernel.shape == (2, 16, 24)
    assert first.attention.bias.table.shape == second.attention.bias.table.shape == (2, 32, 4)
    biases = [p for p, _ in nnx.to_flat_state(nnx.state(model)) if p[-1] == "bias"]
    assert biases == []


def test_initial_values_are_those_of_gshard(abstract):
    sizes = {"dim": 64, "num_layers": 2, "num_heads": 4, "head_dim": 16, "hidden_dim": 256}
    model = abstract(glam(vocab_size=512, num_experts=4, **sizes))
    first, second = model.blocks.cycle
    narrow, wide = (f"Uniform(limit={(3 / inputs) ** 0.5})" for inputs in (64, 256))
    attention = first.attention.attention
    for parameter, expected in (
        (attention.query.kernel, f"FanIn(scale={1 / 16})"),  # a deviation of (64 * 16) ** -0.5
        (attention.key.kernel, "FanIn(scale=1.0)"),
        (attention.value.kernel, "FanIn(scale=1.0)"),
        (attention.output.kernel, "FanIn(scale=1.0)"),
        (first.attention.bias.table, f"Normal(stddev={(4 * 32) ** -0.5})"),
        (first.mlp.router.logits.projection.kernel, narrow),
        (first.mlp.experts.up.kernel, narrow),
        (first.mlp.experts.down.kernel, wide),
        (second.mlp.gate.kernel, narrow),
        (second.mlp.up.kernel, narrow),
        (second.mlp.down.kernel, wide),
        (model.embedding.table, "Normal(stddev=1.0)"),
    ):
        assert parameter.get_metadata()["initializer"] == expected


def reference(model, inputs):
    """GLaM in float64, written out from the formulas of Praxis, where all choices find a place."""
    arrays = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(nnx.state(model)))
    L = inputs.shape[1]
    past = np.maximum(np.arange(L)[:, None] - np.arange(L)[None, :], 0)  # below 16: as they are

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def attend(x, p):
        a = p["attention"]
        q, k, v = (np.einsum("BLD,DHK->BLHK", x, a[n]["kernel"]) for n in ("query", "key", "value"))
        scores = np.einsum("BLHK,BSHK->BHLS", q, k) + p["bias"]["table"][past].transpose(2, 0, 1)
        weights = np.exp(scores) * np.tril(np.ones((L, L)))
        weights /= weights.sum(-1, keepdims=True)
        context = np.einsum("BHLS,BSHK->BLHK", weights, v)
        return np.einsum("BLHK,HKD->BLD", context, a["output"]["kernel"])

    def mixed(x, p):
        logits = x @ p["router"]["logits"]["projection"]["kernel"]
        gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        best = np.sort(gates, -1)[..., -2:-1]
        gates = np.where(gates >= best, gates, 0)
        gates /= gates.sum(-1, keepdims=True)
        e = p["experts"]
        hidden = gelu(np.einsum("BLD,EDF->BLEF", x, e["up"]["kernel"]))
        return np.einsum("BLEF,EFD,BLE->BLD", hidden, e["down"]["kernel"], gates)

    def gated(x, p):
        return (gelu(x @ p["gate"]["kernel"]) * (x @ p["up"]["kernel"])) @ p["down"]["kernel"]

    table = arrays["embedding"]["table"]
    x = table[inputs]
    for i in range(SIZES["num_layers"]):
        kind = arrays["blocks"]["cycle"][i % 2]
        p = jax.tree.map(lambda a, i=i: a[i // 2], kind)
        x = x + attend(norm(x, p["attention_norm"]["scale"]), p["attention"])
        y = norm(x, p["mlp_norm"]["scale"])
        x = x + (gated if i % 2 else mixed)(y, p["mlp"])
    return norm(x, arrays["norm"]["scale"]) / np.sqrt(SIZES["dim"]) @ table.T


@pytest.mark.full
def test_logits_are_those_of_the_formulas():
    model = graphs.build(glam(**SIZES, **EXPERTS))(rngs=nnx.Rngs(0))
    inputs = np.random.default_rng(0).integers(0, 61, (2, 11))
    with jax.default_matmul_precision("highest"):
        logits = jax.jit(lambda model, inputs: model(inputs))(model, inputs)
    np.testing.assert_allclose(logits, reference(model, inputs), rtol=1e-4, atol=1e-4)
