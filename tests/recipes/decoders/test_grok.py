import jax
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier.layers.experts import ACTIVE_SHARE
from luthier.recipes.decoders import grok, grok_1

# Shapes of the checkpoint that xAI published, of one layer; its biases are none.
CHECKPOINT = {
    "attention.query.kernel": (6144, 48 * 128),
    "attention.key.kernel": (6144, 8 * 128),
    "attention.value.kernel": (6144, 8 * 128),
    "attention.output.kernel": (48 * 128, 6144),
    "mlp.router.logits.projection.kernel": (6144, 8),
    "mlp.experts.gate.kernel": (8, 6144, 32_768),
    "mlp.experts.up.kernel": (8, 6144, 32_768),
    "mlp.experts.down.kernel": (8, 32_768, 6144),
}


@pytest.fixture(scope="module")
def parameters(abstract):
    state = nnx.to_flat_state(nnx.state(abstract(grok_1()), nnx.Param))
    return {".".join(map(str, path)): variable for path, variable in state}


def test_kernels_are_as_large_as_those_of_the_checkpoint(parameters):
    kernels = {n: v for n, v in parameters.items() if n.endswith("kernel")}
    assert kernels.keys() == {f"blocks.{name}" for name in CHECKPOINT}
    for name, shape in CHECKPOINT.items():
        assert kernels[f"blocks.{name}"].get_value().size == 64 * np.prod(shape), name
    assert parameters["embedding.table"].get_value().shape == (131_072, 6144)


def test_number_of_parameters_is_that_of_the_name(parameters):
    """314 billion as published; 315.7 by its shapes, of which 84.6 are active ("25%")."""
    sizes = {n: v.get_value().size for n, v in parameters.items()}
    active = sum(
        size * parameters[n].get_metadata().get(ACTIVE_SHARE, 1) for n, size in sizes.items()
    )
    assert sum(sizes.values()) == 315_684_952_064
    assert sum(sizes.values()) / 1e9 == pytest.approx(314, rel=0.006)
    assert active / sum(sizes.values()) == pytest.approx(0.25, abs=0.03)


def test_initial_values_are_those_of_pax(parameters):
    initializers = {n: v.get_metadata()["initializer"] for n, v in parameters.items()}
    up, down = (f"Uniform(limit={(3 / inputs) ** 0.5})" for inputs in (6144, 32_768))
    for name in CHECKPOINT:
        attends = name.startswith("attention")
        drawn = "Normal(stddev=0.023)" if attends else down if "down" in name else up
        assert initializers[f"blocks.{name}"] == drawn, name
    assert initializers["blocks.attention.key.bias"] == "Zeros()"
    assert initializers["embedding.table"] == "Normal(stddev=1.0)"


@pytest.mark.full
def test_logits_are_those_of_the_hidden_states_over_the_root_of_the_width():
    sizes = {"dim": 32, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "hidden_dim": 48}
    model = graphs.build(grok(vocab_size=61, num_layers=2, **sizes))(rngs=nnx.Rngs(0))
    inputs = np.random.default_rng(0).integers(0, 61, (2, 8))
    with jax.default_matmul_precision("highest"):
        hidden, logits = jax.jit(lambda m, x: (m.hidden(x), m(x)))(model, inputs)
    expected = np.asarray(hidden) @ np.asarray(model.embedding.table[...]).T / 32**0.5
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
