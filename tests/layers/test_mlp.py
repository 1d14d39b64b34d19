import functools

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers import GatedMlp, Linear, Mlp, Normal

BIASED = functools.partial(Linear, bias=Normal(1.0))


def test_mlp_is_its_formula(draw, distance, apply):
    mlp = Mlp(24, jax.nn.gelu, up=BIASED, down=BIASED, dim=8, rngs=nnx.Rngs(0))
    x = draw(2, 5, 8)
    hidden = jax.nn.gelu(x @ mlp.up.kernel[...] + mlp.up.bias[...])
    assert distance(apply(mlp, x), hidden @ mlp.down.kernel[...] + mlp.down.bias[...]) < 1e-6


def test_gated_mlp_is_its_formula(draw, distance, apply):
    mlp = GatedMlp(24, jax.nn.silu, dim=8, rngs=nnx.Rngs(0))
    x = draw(2, 5, 8)
    hidden = jax.nn.silu(x @ mlp.gate.kernel[...]) * (x @ mlp.up.kernel[...])
    assert distance(apply(mlp, x), hidden @ mlp.down.kernel[...]) < 1e-6


def test_any_function_is_an_activation(draw, distance, apply):
    mlp = Mlp(24, lambda x: jnp.square(jax.nn.relu(x)), dim=8, rngs=nnx.Rngs(0))
    x = draw(2, 5, 8)
    hidden = jnp.square(jax.nn.relu(x @ mlp.up.kernel[...]))
    assert distance(apply(mlp, x), hidden @ mlp.down.kernel[...]) < 1e-6


def test_logical_axes():
    mlp = GatedMlp(24, dim=8, rngs=nnx.Rngs(0))
    axes = {
        path[0]: p.get_metadata()["logical_axes"] for path, p in nnx.to_flat_state(nnx.state(mlp))
    }
    assert axes == {
        "gate": ("embed", "mlp"),
        "up": ("embed", "mlp"),
        "down": ("mlp", "embed"),
    }


def test_only_the_inputs_of_the_activation_are_kept(draw):
    mlp = Mlp(24, jax.nn.gelu, dim=8, rngs=nnx.Rngs(0))
    _, backward = jax.vjp(mlp, draw(2, 5, 8))
    wide = [leaf for leaf in jax.tree.leaves(backward) if leaf.shape == (2, 5, 24)]
    assert len(wide) <= 2


def test_computes_in_its_dtype(draw):
    mlp = Mlp(24, dim=8, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert mlp(draw(2, 5, 8)).dtype == jnp.bfloat16
