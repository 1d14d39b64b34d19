"""`fiddler:gpu` and `fiddler:tpu`: what they set, which cores they leave, and the same model."""

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
@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_all_that_is_faster_is_set_and_no_parameter_changes(name, platform):
    config = luthier.experiment(name)
    documents = {"max_documents": 4} if platform == "gpu" else {}
    words = ", ".join(f"{key}={value}" for key, value in documents.items())
    changed = graph.apply(config, [f"fiddler:{platform}({words})"])
    model = changed.model
    assert model.dtype == jnp.bfloat16
    assert model.unembedding.logits_dtype == jnp.bfloat16
    assert graph.get(model, "stack.unroll") == ("auto" if platform == "gpu" else 1)
    for own, before in zip(blocks(changed), blocks(config), strict=True):
        assert own.attention.joint
        core, old = own.attention.core, graph.as_node(graph.get(before, "attention.core"))
        assert core.__fn_or_cls__ is layers.AutoAttention
        assert (core.kernels, core.max_documents) == (True, documents.get("max_documents", 16))
        for setting in ("mask", "scale", "cap"):  # windows of local layers, scales, caps
            assert repr(graph.get(core, setting)) == repr(graph.get(old, setting))
    assert parameters(changed) == parameters(config)
    # Twice is once, so that a config that has it can be swept with it.
    again = getattr(recipes, platform)(changed, **documents)
    assert not luthier.diff(changed, again).changes


def test_stacks_of_dropless_experts_stay_loops():
    mixture = "Experts(num_experts=4, router=TopK(k=2), expert=GatedMlp(hidden_dim=8))"
    words = [f"model.block.mlp={mixture}", "model.block.mlp.dispatch={}()", "fiddler:gpu"]
    for dispatch, unroll in (("Dropless", 1), ("Capacity", "auto")):
        named = [word.format(dispatch) for word in words]
        assert graph.get(luthier.experiment("quickstart", named), "model.stack.unroll") == unroll


def test_what_is_exchanged_is_attended_to_by_kernels_too():
    changed = luthier.experiment("quickstart", ["fiddler:all_to_all(2)", "fiddler:gpu"])
    core = changed.model.block.attention.core
    assert core.__fn_or_cls__ is layers.AllToAllAttention
    assert (core.core.kernels, core.core.max_documents) == (True, 16)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_sequences_may_be_split_afterwards(platform):
    words = [f"fiddler:{platform}", "fiddler:ring(2)"]
    core = luthier.experiment("quickstart", words).model.block.attention.core
    assert core.__fn_or_cls__ is layers.RingAttention
    words = [f"fiddler:{platform}", "fiddler:all_to_all(2)"]
    core = luthier.experiment("quickstart", words).model.block.attention.core
    assert core.core.kernels


def test_a_core_that_attends_otherwise_stays():
    config = luthier.experiment("quickstart", ["fiddler:ring(2)"])
    attention = recipes.gpu(config).model.block.attention
    assert attention.core.__fn_or_cls__ is layers.RingAttention
    assert attention.joint


def test_a_model_alone_may_be_given():
    model = luthier.experiment("quickstart").model
    assert recipes.gpu(model, logits_dtype=jnp.float32).dtype == jnp.bfloat16
