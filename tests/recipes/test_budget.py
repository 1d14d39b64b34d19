import jax
import pytest

from luthier import graph as graphs
from luthier import planner
from luthier.errors import BadInput
from luthier.recipes import scale_to
from luthier.recipes.budget import count_flops, count_parameters
from luthier.recipes.scale import GraphSizes

QUICKSTART = "configs.lm.quickstart"


@pytest.mark.full
@pytest.mark.parametrize("name", ["lm.quickstart", "lm.preferences", "vision.digits:resnet"])
def test_counts_are_those_of_the_plan(name):
    graph = graphs.resolve(f"configs.{name}")
    plan = planner.make(graph, jax.devices()[:1])
    assert count_parameters(graph) == plan.parameters
    assert count_flops(graph) == plan.model_flops.full


@pytest.mark.parametrize(
    "name",
    [
        "lm.quickstart",
        "seq2seq.translation",
        pytest.param("vision.digits:resnet", marks=pytest.mark.slow),
    ],
)
def test_parameters_come_within_the_tolerance(name):
    graph = graphs.resolve(f"configs.{name}")
    before = graphs.to_json(graph)
    changed = scale_to(graph, parameters=2e7)
    assert count_parameters(changed) == pytest.approx(2e7, rel=0.05)
    assert graphs.to_json(graph) == before, "the original is untouched"
    graphs.validate(changed)


@pytest.mark.full
def test_the_proportions_stay_about_the_same():
    graph = graphs.resolve(QUICKSTART)
    changed = scale_to(graph, parameters=1e8)
    old, new = (GraphSizes(graphs.copy_graph(found)) for found in (graph, changed))
    assert 0.8 < (new.num_layers / new.units) / (old.num_layers / old.units) < 1.25
    assert changed.model.dim // changed.model.block.attention.num_heads == 32, (
        "heads keep their size"
    )


def test_what_has_the_size_already_stays():
    graph = graphs.resolve(QUICKSTART)
    assert graphs.equal(scale_to(graph, parameters=count_parameters(graph)), graph)


@pytest.mark.full
def test_flops_come_within_the_tolerance():
    graph = graphs.resolve("configs.series.forecast")
    target = 8.0 * count_flops(graph)
    changed = scale_to(graph, flops_per_step=target, tolerance=0.1)
    assert count_flops(changed) == pytest.approx(target, rel=0.1)


@pytest.mark.parametrize("given", [{}, {"parameters": 1e6, "flops_per_step": 1e9}])
def test_one_budget_is_given(given):
    with pytest.raises(BadInput) as caught:
        scale_to(graphs.resolve(QUICKSTART), **given)
    assert str(caught.value) == (
        "scale_to takes parameters or flops_per_step, one of them; write scale_to(parameters=1e8)"
    )


@pytest.mark.parametrize("name", ["parameters", "flops_per_step"])
@pytest.mark.parametrize("target", [0, -1e6, float("inf"), float("nan")])
def test_a_budget_has_to_be_above_zero(name, target):
    with pytest.raises(BadInput) as caught:
        scale_to(graphs.resolve(QUICKSTART), **{name: target})
    line = f"{name}: {target} is not a finite number above zero; write scale_to({name}=1e8)"
    assert str(caught.value) == line


def test_a_model_alone_has_no_flops_per_step():
    with pytest.raises(BadInput, match="a model alone has no steps"):
        scale_to(graphs.resolve(QUICKSTART).model, flops_per_step=1e9)


def test_what_cannot_be_reached_names_the_nearest_count():
    with pytest.raises(BadInput) as caught:
        scale_to(graphs.resolve(QUICKSTART), parameters=1000)
    assert str(caught.value).startswith("no width and depth counts 1000 within 0.05 of it; ")
    assert "the nearest counts " in str(caught.value)
