import fiddle as fdl
import jax
import pytest

from luthier import graph as graphs
from luthier import layers, planner
from luthier.errors import ValidationError
from luthier.planner.pipelines import pipelines
from luthier.recipes import pipeline

CIRCULAR = fdl.Config(layers.Circular, repeats=2)


def graph(*overrides):
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), overrides)


def problems(changed, num_devices=8):
    with pytest.raises(ValidationError) as caught:
        planner.make(changed, jax.devices()[:num_devices])
    return [f"{p.path}: {p.what}; {p.remedy}" for p in caught.value.problems]


@pytest.mark.full
def test_a_plan_reports_the_bubble_and_counts_the_model_as_it_is():
    sizes = ("model.num_layers=4", "evaluations.held_out.global_batch_size=8")
    plain = planner.make(graph(*sizes), jax.devices()[:1])
    plan = planner.make(pipeline(graph(*sizes), 2, 4, CIRCULAR), jax.devices()[:2])
    assert plan.model_flops == plain.model_flops
    assert plan.parameters == plain.parameters
    assert plan.hardware_flops > plain.hardware_flops * 9 / 8
    assert plan.to_dict()["pipelines"] == {
        "model.stack": {
            "stages": 2,
            "microbatches": 4,
            "schedule": "Circular(repeats=2)",
            "ticks": 9,
            "bubble_fraction": 1 / 9,
        }
    }
    assert list(map(str, plan.pipelines)) == [
        "model.stack: Circular(repeats=2) of 2 stages, 4 microbatches: "
        "9 ticks, bubble fraction 11.1%"
    ]
    assert plain.pipelines == ()
    assert plain.to_dict()["pipelines"] == {}


def test_one_stage_is_no_pipeline():
    assert pipelines(pipeline(graph(), 1, 4), 1) == []


def test_all_indivisible_sizes_are_reported_at_once():
    sizes = ("model.num_layers=6", "training.global_batch_size=8", "training.accumulation=2")
    evaluation = "evaluations.held_out.global_batch_size=10"
    assert problems(pipeline(graph(*sizes, evaluation), 4, 6, CIRCULAR)) == [
        "model.num_layers: 6 layers cannot be split evenly over 4 stages x 2 repeats; "
        "use a multiple of 8 layers, or fewer stages or repeats",
        "model.stack.microbatches: 6 microbatches cannot be split evenly over 4 stages; "
        "set microbatches=8",
        "training.global_batch_size: 8 rows cannot be cut into 6 microbatches for each of 2 steps "
        "of accumulation, each of them for 2 devices; use a multiple of 24",
        "evaluations.held_out.global_batch_size: 10 rows cannot be cut into 6 microbatches, each "
        "of them for 2 devices; use a multiple of 12",
    ]


def test_fewer_microbatches_are_proposed_where_they_fit():
    sizes = ("model.num_layers=4", "training.global_batch_size=8")
    evaluation = "evaluations.held_out.global_batch_size=24"
    assert problems(pipeline(graph(*sizes, evaluation), 2, 12), num_devices=2) == [
        "training.global_batch_size: 8 rows cannot be cut into 12 microbatches; "
        "use a multiple of 12, or set model.stack.microbatches=4",
    ]
