"""What the tests of models share: a small decoder, its data, and how results are compared."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph
from luthier.layers import (
    Attention,
    Dropout,
    Embedding,
    GatedMlp,
    Normal,
    PreNormBlock,
    RMSNorm,
    Rotary,
    Scanned,
    Unembedding,
)
from luthier.models import Decoder
from tests.foreign_tensors import filled

VOCAB = 23


@pytest.fixture(autouse=True)
def _exact_products():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="session")
def make_decoder():
    """Return a function that makes a small decoder; equal settings give equal parameters."""

    @functools.lru_cache
    def make(stack=Scanned(), rate=0.5, core=None, dtype=jnp.float32, num_layers=2):
        attention = functools.partial(Attention, 4, num_kv_heads=2, rotary=Rotary())
        if core is not None:
            attention = functools.partial(attention, core=core)
        dropout = functools.partial(Dropout, rate)
        block = functools.partial(
            PreNormBlock,
            attention=attention,
            mlp=functools.partial(GatedMlp, 24),
            norm=RMSNorm,
            dropout=dropout,
        )
        embedding = functools.partial(Embedding, Normal(1.0), dropout=dropout, pad_to_multiple=8)
        decoder = functools.partial(
            Decoder, VOCAB, 16, num_layers, block, RMSNorm, embedding, Unembedding, stack
        )
        init = lambda: decoder(dtype=dtype, rngs=nnx.Rngs(0))
        graphdef, _ = nnx.split(nnx.eval_shape(init))
        return nnx.merge(graphdef, jax.jit(lambda: nnx.state(init()))())

    return make


@pytest.fixture(scope="session")
def ids():
    """Return a function that draws token ids of a shape."""
    generator = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(generator.integers(0, VOCAB, shape), jnp.int32)


@pytest.fixture(scope="session")
def distance():
    """Return a function that gives the norm of a difference over the norm."""

    def measure(a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)

    return measure


@pytest.fixture(scope="session")
def by_layer():
    """Return a function from a state to {name: array}, layers stacked, for every kind of stack."""

    def flatten(state):
        flat = {path: value[...] for path, value in nnx.to_flat_state(state)}
        found = {path: value for path, value in flat.items() if not _numbered(path)}
        for name in {(path[0], *path[2:]) for path in flat if _numbered(path)}:
            layers = sorted(path for path in flat if _numbered(path) and name[1:] == path[2:])
            found[name] = jnp.stack([flat[path] for path in layers])
        return {".".join(map(str, path)): value for path, value in found.items()}

    def _numbered(path):
        return len(path) > 1 and isinstance(path[1], int)

    return flatten


@pytest.fixture(scope="session")
def foreign_golden():
    """Return a function from a golden's name, a graph and a family to (model, arrays, config)."""
    folder = Path(__file__).parent / "goldens"

    def load(name, recipe, family, tensors=None):
        with np.load(folder / f"{name}.npz") as file:
            arrays = dict(file)
        config = json.loads(str(arrays.pop("config")))
        if tensors is None:
            names = [key for key in arrays if key.startswith("foreign/")]
            tensors = {key.removeprefix("foreign/"): arrays.pop(key) for key in names}
        make = graph.build(recipe)
        model = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
        return filled(model, family, tensors), arrays, config

    return load
