"""Imported experiments against Pax itself: logits of its own weights, from its own checkpoints.

tools/goldens/make_pax_import.py made the files, with Paxml 1.4.0.
"""

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier import program
from luthier.checkpoint import Restoration, Target
from luthier.checkpoint.foreign import is_stacked
from luthier.program import split
from luthier.recipes.foreign.pax import import_dump
from tests.compiling import QUICK
from .conftest import GOLDENS

ORDINARY, SLOW = ("gpt", "llama", "glam"), ("c4", "shared", "post")
CASES = [*ORDINARY, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def compiled(function, parameters):
    """Run a function that is compiled without optimizing its machine code."""
    return jax.jit(function).lower(parameters).compile(compiler_options=QUICK)(parameters)


@pytest.fixture
def imported(written, weights):
    """The structure of an imported model, with its parameters restored, and the provenance."""

    def make(name, stack=None):
        graph = import_dump(written(name), program, weights=weights(name)).graph
        if stack is not None:
            graph.model.stack = stack
        structure, drawn, _ = split(graphs.build(graph.model)(rngs=nnx.Rngs(0)))
        axes = structure.axes()
        targets = {
            name: Target(tuple(value.shape), value.dtype, None, is_stacked(axes.get(name)))
            for name, value in drawn.items()
        }
        with Restoration(fdl.build(graph.restore), targets, {"vocab": 48}) as restoration:
            return structure, restoration.read(), restoration.table

    return make


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_pax(imported, name):
    structure, parameters, _ = imported(name)
    with np.load(GOLDENS / f"{name}.npz") as file:
        golden = dict(file)
    inputs, segments, positions = (
        jnp.asarray(golden[key], jnp.int32) for key in ("ids", "segment_ids", "segment_pos")
    )
    with jax.default_matmul_precision("highest"):
        logits = compiled(
            lambda p: structure.merge(p)(inputs, positions_BL=positions, segments_BL=segments),
            dict(parameters),
        )
    real, size = np.asarray(segments) > 0, np.abs(golden["logits"]).max()
    assert size > 0.1
    expected = golden["logits"][real]
    np.testing.assert_allclose(logits[real], expected, rtol=0, atol=1e-4 * min(size, 1))


def test_the_provenance_uses_the_names_of_pax(imported):
    rows = {row.parameter: row for row in imported("llama")[2]}
    beginning = "lm.transformer.repeat.sub.x_layers_0"
    query = rows["blocks.attention.query.kernel"]
    assert query.source == f"{beginning}.self_attention.query.w[{{0..2}}]"
    assert query.shape == (3, 32, 4, 8)
    assert rows["embedding.table"].source == "lm.softmax.logits_ffn.linear.w"
    rows = {row.parameter: row for row in imported("gpt")[2]}
    joined = rows["blocks.attention.key.kernel"]
    assert joined.source == f"{beginning}.self_attention.combined_qkv.w[{{0,1}}][1]"


@pytest.mark.slow
def test_layers_may_be_unrolled_here(imported):
    from luthier import layers

    _, parameters, table = imported("shared", stack=fdl.Config(layers.Unrolled))
    rows = {row.parameter: row.source for row in table}
    assert rows["blocks.3.mlp.up.kernel"] == (
        "lm.transformer.repeat.sub.x_layers_1.ff_layer.ffn_layer1.linear.w[1]"
    )
    _, scanned, _ = imported("shared")
    for layer in range(4):
        own = parameters[f"blocks.{layer}.mlp.up.kernel"]
        np.testing.assert_array_equal(own, scanned["blocks.mlp.up.kernel"][layer])
