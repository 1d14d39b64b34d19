"""`fiddler:gpu`: what it sets, where it leaves a core alone, and that it stays the same model."""

import fiddle as fdl
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import luthier
from luthier import graph, layers, recipes


def blocks(config):
    found = graph.get(config.model, "block")
    return found if isinstance(found, list | tuple) else [found]


def parameters(config):
    model = nnx.eval_shape(lambda: fdl.build(config.model)(rngs=nnx.Rngs(0)))
    return jax.tree.map(lambda x: (x.shape, x.dtype), nnx.to_pure_dict(nnx.state(model)))


@pytest.mark.parametrize("name", ["quickstart", "gpt2_124m", "families:gemma"])
def test_all_that_is_faster_is_set_and_no_parameter_changes(name):
    config = luthier.experiment(name)
    changed = graph.apply(config, ["fiddler:gpu(max_documents=4)"])
    model = changed.model
    assert model.dtype == jnp.bfloat16
    assert model.unembedding.logits_dtype == jnp.bfloat16
    assert model.stack.unroll == graph.evaluate(graph.get(model, "num_layers"))
    for own, before in zip(blocks(changed), blocks(config), strict=True):
        assert own.attention.joint
        core, old = own.attention.core, graph.as_node(graph.get(before, "attention.core"))
        assert core.__fn_or_cls__ is layers.AutoAttention
        assert (core.kernels, core.max_documents) == (True, 4)
        for setting in ("mask", "scale", "cap"):  # windows of local layers, scales, caps
            assert repr(graph.get(core, setting)) == repr(graph.get(old, setting))
    assert parameters(changed) == parameters(config)
    # Twice is once, so that a config that has it can be swept with it.
    assert not luthier.diff(changed, recipes.gpu(changed, max_documents=4)).changes


def test_a_core_that_attends_otherwise_stays():
    config = luthier.experiment("quickstart", ["fiddler:ring(2)"])
    attention = recipes.gpu(config).model.block.attention
    assert attention.core.__fn_or_cls__ is layers.RingAttention
    assert attention.joint


def test_a_model_alone_may_be_given():
    model = luthier.experiment("quickstart").model
    assert recipes.gpu(model, logits_dtype=jnp.float32).dtype == jnp.bfloat16
