import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import layers
from luthier.errors import BadInput
from luthier.recipes import pipeline, remat

QUICKSTART = "configs.lm.quickstart"


def test_the_model_stays_and_its_stack_becomes_a_pipeline():
    graph = graphs.resolve(QUICKSTART)
    before = graphs.to_json(graph)
    changed = pipeline(graph, 2, 8, fdl.Config(layers.Circular, repeats=2))
    assert graphs.build(changed.model.stack) == layers.Pipelined(8, layers.Circular(2))
    assert graphs.get(changed, "parallelism.mesh.stage") == 2
    assert graphs.get(changed, "parallelism.rules.activations.batch")[0] == "stage"
    paths = [change.path for change in graphs.diff(graph, changed)]
    assert sorted(paths) == [
        "model.stack",
        "parallelism.mesh.stage",
        "parallelism.rules.activations.batch",
    ]
    assert graphs.to_json(graph) == before, "the original is untouched"
    graphs.validate(changed)


def test_a_second_call_replaces_the_first():
    graph = graphs.resolve(QUICKSTART)
    twice = pipeline(pipeline(graph, 4, 8), 2, 4)
    assert graphs.equal(twice, pipeline(graph, 2, 4))


def test_remat_policies_stay_and_can_be_set_later():
    graph = graphs.resolve(QUICKSTART)
    before, after = pipeline(remat(graph), 2, 4), remat(pipeline(graph, 2, 4))
    assert graphs.build(before.model.stack) == graphs.build(after.model.stack)
    assert graphs.build(before.model.stack).remat == layers.FullRemat()


@pytest.mark.parametrize(
    "words",
    [
        "pipeline(stages=2, microbatches=4)",
        "pipeline(2, 4, luthier.layers.GPipe)",
        "pipeline(2, 4, schedule=luthier.layers.Circular(repeats=2))",
    ],
)
def test_on_the_command_line(words):
    shelf = "luthier.recipes"
    graph = graphs.apply(graphs.resolve(QUICKSTART), [f"fiddler:{words}"], shelves=[shelf])
    stack = graphs.build(graph.model.stack)
    assert stack.schedule == (layers.Circular(2) if "Circular" in words else layers.GPipe())


@pytest.mark.parametrize("name", ["configs.vision.digits", "configs.seq2seq.translation"])
def test_other_models_with_stacks(name):
    graph = pipeline(graphs.resolve(name), 2, 4)
    stacks = [p.value for p in graphs.walk(graph) if p.part == "stack"]
    assert stacks
    assert all(graphs.build(stack).microbatches == 4 for stack in stacks)


def test_a_model_alone_has_no_mesh():
    changed = pipeline(graphs.resolve(QUICKSTART).model, 2, 4)
    assert graphs.build(changed.stack) == layers.Pipelined(4)


def test_what_cannot_be_in_a_pipeline_is_refused():
    graph = graphs.resolve(QUICKSTART)
    graph.model.stack = fdl.Config(layers.Unrolled)
    with pytest.raises(BadInput) as caught:
        pipeline(graph, 2, 4)
    assert str(caught.value) == (
        "model.stack: the layers of Unrolled cannot be in a pipeline; set model.stack=Scanned"
    )
    with pytest.raises(BadInput) as caught:
        pipeline(graphs.resolve("configs.vision.digits:resnet"), 2, 4)
    assert str(caught.value) == (
        "model: the model has no stack of layers; "
        "the fiddler is for models of equal layers, such as Decoder"
    )
