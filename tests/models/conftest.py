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
from luthier.checkpoint.foreign.layers import Stacked, is_stacked, slots
from luthier.layers import (
    AXES,
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


def put(model, family, tensors):
    """Return the (abstract) model with foreign tensors; every one of them must have its place."""
    graphdef, state = nnx.split(model)
    flat = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    places = slots(
        {k: Stacked(v.shape, is_stacked(v.get_metadata().get(AXES))) for k, v in flat.items()}
    )
    resolved = family.resolve(places, {})
    assert not resolved.unknown
    assert not resolved.broken
    assert resolved.shapes == {name: tensor.shape for name, tensor in tensors.items()}
    values = {name: np.zeros(variable.shape, np.float32) for name, variable in flat.items()}
    for name, view in resolved.views.items():
        whole = tuple(slice(0, size) for size in view.shape)
        array = view.layout.read(tensors[view.foreign].__getitem__, view.shape, whole, {})
        index = places[name].index
        values[places[name].parameter][... if index is None else index] = array
    for name, variable in flat.items():
        variable.set_value(jnp.asarray(values[name]))
    return nnx.merge(graphdef, state)


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
        return put(model, family, tensors), arrays, config

    return load
