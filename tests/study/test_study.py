import dataclasses

import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier import study as studies
from luthier.errors import BadInput, ValidationError
from luthier.study import Budget, build_space, check, is_study


def test_building_a_study_leaves_its_experiment_described():
    graph = toys.make_study()
    study = studies.build(graph)
    assert study.base is graph.base
    assert isinstance(study.sampler, fdl.Config)
    assert study.objectives[0].name == "held_out/loss"
    assert study.budget.trials == 12


def test_a_plain_build_is_refused_before_a_trial_could_run():
    with pytest.raises(BadInput, match=r"build a study with luthier\.study\.build"):
        graphs.build(toys.make_study())


def test_a_study_is_recorded_and_read_again():
    graph = toys.make_study("tpe", pruner=None)
    again = graphs.from_json(graphs.to_json(graph), toys.PACKAGES)
    assert graphs.equal(again, graph)
    assert studies.build(again).space == studies.build(graph).space


def test_a_study_is_overridden_and_compared_like_any_graph():
    graph = toys.make_study()
    words = ["base.steps=9", "budget.trials=3", "space.dimensions.rate.high=0.5"]
    changed = graphs.apply(graph, words)
    study = studies.build(changed)
    assert (study.base.steps, study.budget.trials, study.space.dimensions["rate"].high) == (
        9,
        3,
        0.5,
    )
    assert {change.path for change in graphs.diff(graph, changed)} == {
        "base.steps",
        "budget.trials",
        "space.dimensions.rate",
    }


def test_a_space_of_nodes_is_built_but_its_options_are_not():
    option = fdl.Config(toys.Adaptive)
    choice = fdl.Config(studies.Choice, options=[fdl.Config(toys.Momentum), option])
    space = fdl.Config(
        studies.Space, {"optimizer": choice, "rate": fdl.Config(studies.Log, 1e-4, 1)}
    )
    built = build_space(space)
    assert built.dimensions["rate"] == studies.Log(1e-4, 1)
    assert built.dimensions["optimizer"].options[1] is option


def test_every_problem_of_a_study_and_its_experiment_is_reported():
    graph = toys.make_study(base=fdl.Config(toys.Toy, width=7), seeds=0)
    graph.sampler.seed = 3
    with pytest.raises(BadInput) as caught:
        check(graph, toys.PACKAGES)
    text = str(caught.value)
    assert "width % heads == 0" in text
    assert "seeds" in text
    assert (
        "sampler.seed: has no effect: the sampler is seeded from the study's seed and the "
        "trial's number; leave it out, and set seed of the study"
    ) in text


def test_the_study_has_few_fields():
    assert len(dataclasses.fields(studies.Study)) <= 16
    assert is_study(toys.make_study())
    assert not is_study(fdl.Config(toys.Toy))


def test_limits_are_above_zero():
    node = fdl.Config(Budget, trials=0, wall_seconds=0.0, device_hours=-1.0, retries=-1)
    with pytest.raises(ValidationError) as caught:
        graphs.validate(node)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["trials", "wall_seconds", "device_hours", "retries"]
    graphs.validate(fdl.Config(Budget))
