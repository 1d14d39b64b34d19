"""Logits against an independent implementation; tools/goldens/make_decoders.py made the files."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    Attention,
    Embedding,
    GatedMlp,
    LayerNorm,
    LearnedPositions,
    Linear,
    Mlp,
    PreNormBlock,
    RMSNorm,
    Rotary,
    TiedUnembedding,
    Unembedding,
    Zeros,
)
from luthier.models import Decoder, generate

FOLDER = Path(__file__).parent / "goldens"
VOCAB, DIM, LAYERS, HEADS, HIDDEN = 61, 32, 2, 4, 48


def gpt2():
    linear = functools.partial(Linear, bias=Zeros())
    norm = functools.partial(LayerNorm, epsilon=1e-5)
    block = functools.partial(
        PreNormBlock,
        attention=functools.partial(Attention, HEADS, projection=linear, output=linear),
        mlp=functools.partial(Mlp, HIDDEN, jax.nn.gelu, up=linear, down=linear),
        norm=norm,
    )
    embedding = functools.partial(Embedding, position=functools.partial(LearnedPositions, 40))
    return Decoder(VOCAB, DIM, LAYERS, block, norm, embedding, TiedUnembedding, rngs=nnx.Rngs(0))


def llama():
    norm = functools.partial(RMSNorm, epsilon=1e-5)
    block = functools.partial(
        PreNormBlock,
        attention=functools.partial(Attention, HEADS, num_kv_heads=2, rotary=Rotary(500.0)),
        mlp=functools.partial(GatedMlp, HIDDEN, jax.nn.silu),
        norm=norm,
    )
    return Decoder(VOCAB, DIM, LAYERS, block, norm, Embedding, Unembedding, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module", params=[gpt2, llama], ids=lambda make: make.__name__)
def golden(request):
    """Return the model with the weights of the file, and the file's arrays."""
    with np.load(FOLDER / f"{request.param.__name__}.npz") as file:
        arrays = dict(file)
    model = nnx.eval_shape(request.param)
    graphdef, state = nnx.split(model)
    flat = {".".join(path): variable for path, variable in nnx.to_flat_state(state)}
    weights = {k.removeprefix("parameters/"): v for k, v in arrays.items() if "/" in k}
    assert flat.keys() == weights.keys()
    for name, variable in flat.items():
        assert variable.shape == weights[name].shape, name
        variable.set_value(jnp.asarray(weights[name]))
    return nnx.merge(graphdef, state), arrays


def test_logits(golden):
    model, arrays = golden
    logits = jax.jit(lambda model, inputs: model(inputs))(model, arrays["inputs"])
    np.testing.assert_allclose(logits, arrays["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_greedy_continuation(golden):
    model, arrays = golden
    continued = generate(model, arrays["inputs"].tolist(), max_new_tokens=8, temperature=0.0)
    assert continued == arrays["greedy"].tolist()
