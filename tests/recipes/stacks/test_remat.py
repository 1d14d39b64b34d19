import fiddle as fdl
import jax
import pytest

from luthier import graph as graphs
from luthier import layers, planner
from luthier.errors import BadInput
from luthier.recipes import remat


def _policy(graph, path="model.stack.remat"):
    return graphs.build(graphs.get(graph, path))


def test_by_default_layers_are_computed_again():
    graph = graphs.resolve("configs.lm.quickstart")
    before = graphs.to_json(graph)
    changed = remat(graph)
    assert _policy(changed) == layers.FullRemat()
    assert [change.path for change in graphs.diff(graph, changed)] == ["model.stack.remat"]
    assert graphs.to_json(graph) == before, "the original is untouched"
    assert graphs.equal(remat(changed), changed)


@pytest.mark.full
def test_model_flops_stay_and_those_of_the_hardware_grow():
    graph = graphs.resolve("configs.lm.quickstart")
    plain, again = (planner.make(g, jax.devices()[:1]) for g in (graph, remat(graph)))
    assert again.model_flops == plain.model_flops
    assert again.hardware_flops > plain.hardware_flops


def test_a_policy_may_have_arguments_and_is_shared_by_all_stacks():
    graph = graphs.resolve("configs.seq2seq.translation")
    changed = remat(graph, fdl.Config(layers.SaveNamed, names=["query"]))
    assert _policy(changed, "model.encoder.stack.remat") == layers.SaveNamed(["query"])
    encoder, decoder = (getattr(changed.model, name).stack for name in ("encoder", "decoder"))
    assert encoder.remat is decoder.remat


def test_a_stack_that_is_a_node_keeps_its_other_settings():
    graph = graphs.resolve("configs.lm.quickstart")
    graph.model.stack = fdl.Config(layers.Scanned, unroll=2)
    changed = remat(graph, layers.SaveProjections)
    assert changed.model.stack.unroll == 2
    assert _policy(changed) == layers.SaveProjections()


def test_a_model_without_stacks_is_refused():
    with pytest.raises(BadInput) as caught:
        remat(graphs.resolve("configs.vision.digits:resnet"))
    assert str(caught.value) == (
        "model: the model has no stack of layers; "
        "the fiddler is for models of equal layers, such as Decoder"
    )
