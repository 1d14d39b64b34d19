import json

import fiddle as fdl
import jax
import pytest
from flax import nnx

import luthier
from luthier import graph as graphs
from luthier import planner, program
from luthier.errors import BadInput
from luthier.layers import RMSNorm


@pytest.fixture(scope="module")
def graph():
    return graphs.resolve("configs.lm.quickstart")


@pytest.fixture(scope="module")
def plan(graph):
    return planner.make(graph, jax.devices()[:1])


def test_parameters_are_those_of_the_formula(plan, graph):
    model = plan.program.experiment.model.keywords
    dim, layers, hidden = model["dim"], model["num_layers"], 384
    heads, kv_heads = 4, 2
    attention = 2 * dim * dim + 2 * dim * dim * kv_heads // heads
    table = 264 * dim  # 258 tokens, padded to a multiple of 8
    expected = table + layers * (attention + 3 * dim * hidden + 2 * dim) + dim
    assert plan.parameters == expected == sum(plan.parameters_by_subtree.values())


def test_bytes_fall_with_the_mesh(graph, plan):
    wide = graphs.apply(graph, ["parallelism.mesh.fsdp=8", "parallelism.mesh.data=1"])
    sharded = planner.make(wide, jax.devices()[:8])
    for kind in ("parameters", "optimizer", "gradients"):
        assert sharded.bytes_per_device[kind] < plan.bytes_per_device[kind] / 4
    assert sharded.state_bytes == plan.state_bytes


@pytest.mark.full
def test_flops_do_not_depend_on_the_mesh_or_on_scanning(graph, plan):
    unrolled = graphs.apply(graph, ["model.stack=luthier.layers.Unrolled()"])
    assert planner.make(unrolled, jax.devices()[:1]).model_flops == plan.model_flops
    assert plan.hardware_flops >= plan.model_flops.full * 0.99
    assert plan.model_flops.causal < plan.model_flops.full


@pytest.mark.full
def test_accumulation_and_remat_leave_model_flops_alone(graph, plan):
    changes = [
        "training.accumulation=2",
        "model.stack=luthier.layers.Scanned(remat=luthier.layers.FullRemat())",
    ]
    other = planner.make(graphs.apply(graph, changes), jax.devices()[:1])
    assert other.model_flops == plan.model_flops
    assert other.hardware_flops > 1.2 * plan.hardware_flops


def test_the_plan_is_a_function_and_json(graph, plan):
    again = luthier.plan(graph, jax.devices()[:1])
    assert again.to_dict() == plan.to_dict()
    with pytest.raises(TypeError, match="not both"):
        luthier.plan(None, jax.devices(), slice="cpu:1")
    assert json.loads(json.dumps(plan.to_dict()))["parameters"] == plan.parameters


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluations.held_out.weights=EMA"], "there is no moving average"),
        (["model.vocab_size=100"], "smaller than the tokenizer's 258"),
        (
            ["checkpoints.keep_best:=luthier.metrics.Selector('held_in', 'loss')"],
            "did you mean held_out",
        ),
    ],
)
def test_what_no_single_component_can_see_is_bad_input(graph, overrides, message):
    with pytest.raises(BadInput, match=message):
        planner.make(graphs.apply(graph, overrides), jax.devices()[:1])


class _NormWithKey(RMSNorm):
    """A layer with a random key among its variables."""

    def __init__(self, **more):
        super().__init__(**more)
        self.key = nnx.Variable(jax.random.key(0))


def test_a_random_key_in_the_state_is_two_words(graph, plan):
    changed = graphs.apply(graph, [])
    changed.model.norm = fdl.Partial(_NormWithKey)
    with_key = planner.make(changed, jax.devices()[:1])
    assert with_key.state_bytes == plan.state_bytes + 8
    (entry,) = [a for n, a in with_key.to_dict()["arrays"].items() if n.startswith("variables/")]
    assert entry["dtype"] == "key<fry>"


@pytest.mark.full
def test_sizes_that_no_arithmetic_holds_are_bad_input(graph):
    with pytest.raises(BadInput, match="model: a size of the model is too large"):
        planner.make(graphs.apply(graph, ["model.dim=1000000000000000000"]), jax.devices()[:1])


def make_evaluations(data):
    """A function of the user's: the graph knows the data, and no other setting."""
    return {"held_out": program.Evaluation(data=data, global_batch_size=3)}


def test_problems_of_parts_that_a_function_makes_have_no_origin(graph):
    changed = graphs.apply(graph, [])
    changed.evaluations = fdl.Config(make_evaluations, data=changed.data)
    with pytest.raises(BadInput) as caught:
        planner.make(changed, jax.devices()[:2])
    (problem,) = caught.value.problems
    assert (problem.path, problem.origin) == ("evaluations.held_out.global_batch_size", "")


def test_all_problems_come_at_once_with_what_set_their_values(graph, monkeypatch):
    from luthier.tasks import BatchCoupled, LanguageModelling

    monkeypatch.setattr(LanguageModelling, "reduction", BatchCoupled("in-batch negatives"))
    overrides = [
        "evaluations.held_out.weights=EMA",
        "evaluations.held_out.global_batch_size=3",
        "model.vocab_size=100",
        "training.accumulation=2",
    ]
    changed = graphs.apply(graph, overrides, origin="the test")
    with pytest.raises(BadInput) as caught:
        planner.make(changed, jax.devices()[:2])
    origins = {problem.path: problem.origin for problem in caught.value.problems}
    numbered = enumerate(overrides, 1)
    assert origins == {word.partition("=")[0]: f"the test {i}: {word}" for i, word in numbered}
    assert "in-batch negatives" in str(caught.value)
    changed = graphs.apply(graph, [])
    changed.evaluations["c4.en"] = changed.evaluations.pop("held_out")
    named = ["evaluations['c4.en'].global_batch_size=3"]
    with pytest.raises(BadInput) as caught:
        planner.make(graphs.apply(changed, named, origin="the test"), jax.devices()[:2])
    assert f"[set by the test 1: {named[0]}]" in str(caught.value)
    rows = graphs.apply(graph, ["training.global_batch_size=3"], origin="the test")
    with pytest.raises(BadInput, match=r"set by the test 1: training\.global_batch_size=3"):
        planner.make(rows, jax.devices()[:2])
