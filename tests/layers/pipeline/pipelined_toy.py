"""A small stack of layers that reads all that a layer can read, and its gradient."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from luthier.layers import Scanned
from luthier.parallel import Mesh, Rules, activation_rules, constrain
from tests.compiling import QUICK

ROWS, DIM, LAYERS = 16, 8, 8


class Layer(nnx.Module):
    def __init__(self, rngs):
        kernel = jax.random.normal(rngs.params(), (DIM, DIM)) / 3
        self.kernel = nnx.Param(kernel, logical_axes=("embed", None))


class Scale(nnx.Module):
    def __init__(self, rngs):
        self.scale = nnx.Param(jax.random.uniform(rngs.params(), (DIM,)) + 0.5)


def function(layer, index, x, own, rows):
    """Apply a layer: random by row and layer, with an offset by row; give sums over rows."""
    keys, offsets = rows
    fold = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, index), ()))
    x = x * layer.scale[...] if hasattr(layer, "scale") else x @ layer.kernel[...]
    y = jnp.tanh(x + offsets[:, None]) * (0.5 + fold(keys)[:, None]).astype(x.dtype)
    y = constrain(y, ("batch", "embed"))
    return y, {"sum": y.sum(), "layer": index * len(x)}


# Compiled without optimizing: these compare sums, not speeds.


@functools.cache
def plain(makers=(Layer,), dtype=jnp.float32):
    """Return what `run` does of layers one after the other."""
    return run(Scanned(), makers, dtype=dtype)


def run(stack, makers=(Layer,), stages=1, num_layers=LAYERS, dtype=jnp.float32, **sizes):
    """Return gradients by parameters, rows and inputs, and what the stack returned."""
    layers = Scanned().create(makers, num_layers, nnx.Rngs(0))
    graphdef, state = nnx.split(layers)
    state = jax.tree.map(lambda x: x.astype(dtype), state)
    x = jax.random.normal(jax.random.key(1), (ROWS, DIM), dtype)
    keys = jax.random.split(jax.random.key(2), ROWS)
    offsets = jnp.linspace(0, 1, ROWS, dtype=dtype)

    def loss(state, offsets, x):
        rows = (keys, offsets)
        y, given = stack.apply(nnx.merge(graphdef, state), function, x, rows=rows)
        sums = jax.tree.leaves(given)
        weighted = sum(jnp.sum(s.astype(jnp.float32) * jnp.arange(s.size)) for s in sums)
        return jnp.square(y.astype(jnp.float32)).sum() + weighted, (y, given)

    mesh = Mesh(stage=stages, **sizes).arrange(jax.devices())
    with activation_rules(mesh, Rules()) if stages > 1 else contextlib.nullcontext():
        gradient = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
        lowered = jax.jit(gradient).lower(state, offsets, x)
        gradients, (y, given) = lowered.compile(compiler_options=QUICK)(state, offsets, x)
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves((gradients, y))]
    return leaves, given
