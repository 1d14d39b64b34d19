import optuna
import pytest

from luthier import graph as graphs
from luthier import metrics
from luthier import study as studies
from luthier.errors import BadInput

KNOWN = {"held_out": [metrics.Metric("accuracy", "higher"), metrics.Metric("loss")]}


def test_samplers_go_by_names():
    assert graphs.build(studies.sampler("grid")) == studies.Grid()
    assert isinstance(graphs.build(studies.sampler("tpe")), optuna.samplers.TPESampler)
    with pytest.raises(BadInput) as caught:
        studies.sampler("gird")
    assert str(caught.value) == (
        "--sampler: there is no sampler 'gird'; did you mean grid?; there are tpe, random, "
        "quasi-random, grid, cma-es, nsga-ii"
    )


def test_objectives_know_the_direction_of_their_metric():
    found = graphs.build(studies.objective("held_out/accuracy:mean3", KNOWN))
    assert (found.name, found.direction, found.over) == (
        "held_out/accuracy",
        "higher",
        studies.MeanOfLast(3),
    )
    assert graphs.build(studies.objective("held_out/loss:best", KNOWN)).over == studies.Best()
    assert graphs.build(studies.objective("step_time", KNOWN)) == studies.StepTime()
    assert graphs.build(studies.default_objective(KNOWN)[0]).name == "held_out/accuracy"
    assert studies.default_objective(None) == []
