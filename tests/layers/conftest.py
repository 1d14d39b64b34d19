"""What the tests of layers share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.layers import Tokens


@pytest.fixture(autouse=True)
def _exact_products():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def draw():
    """Return a function that draws a standard normal array of a shape."""
    generator = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(generator.standard_normal(shape), jnp.float32)


@pytest.fixture(scope="session")
def apply():
    """Return a compiled function that calls a module: far faster than one operation at a time."""
    return jax.jit(lambda module, *arguments: module(*arguments))


@pytest.fixture
def pack():
    """Return a function that makes tokens from lengths of documents, one list for each row."""

    def make(rows, length):
        positions = np.zeros((len(rows), length), np.int32)
        segments = np.zeros((len(rows), length), np.int32)
        for i, row in enumerate(rows):
            start = 0
            for segment, size in enumerate(row, 1):
                positions[i, start : start + size] = np.arange(size)
                segments[i, start : start + size] = segment
                start += size
        return Tokens(jnp.asarray(positions), jnp.asarray(segments))

    return make


@pytest.fixture
def distance():
    """Return a function that gives the norm of a difference over the norm."""

    def measure(a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)

    return measure
