import math

import pytest

from luthier import graph as graphs
from luthier import optim
from luthier.recipes import published


@pytest.mark.parametrize("make", [published.rampup_cosine, published.rampup_exponential])
def test_the_rise_the_plateau_and_the_end(make):
    rate = graphs.build(make(2.0, 10, 20, 120))
    assert [float(rate(step)) for step in (0, 5, 10, 19, 20)] == pytest.approx([0, 1, 2, 2, 2])
    assert [float(rate(step)) for step in (120, 121, 10_000)] == pytest.approx([0.2] * 3)


def test_halfway_down():
    assert float(graphs.build(published.rampup_cosine(2.0, 10, 20, 120))(70)) == pytest.approx(1.1)
    expected = 2 * math.sqrt(0.1)
    assert float(graphs.build(published.rampup_exponential(2.0, 10, 20, 120))(70)) == pytest.approx(
        expected
    )


@pytest.mark.parametrize("make", [published.rampup_cosine, published.rampup_exponential])
def test_without_a_rise(make):
    rate = graphs.build(make(2.0, 0, 1, 100))
    assert [float(rate(step)) for step in (0, 1)] == [2, 2]
    assert float(rate(2)) < 2


@pytest.mark.parametrize("make", [published.rampup_cosine, published.rampup_exponential])
def test_the_peak_and_the_ratio_are_values_that_all_parts_share(make):
    graph = make(2.0, 10, 20, 120, ratio=0.5)
    graphs.set_value(graph, "schedules[0].peak", 4.0)
    rate = graphs.build(graph)
    assert [float(rate(step)) for step in (10, 20, 120)] == pytest.approx([4, 4, 2])


@pytest.mark.parametrize(
    ("make", "peak"), [(published.pax_c4_adam, 1e-3), (published.pax_gpt3_adam, 6e-5)]
)
def test_optimizers_are_those_of_the_capped_adam(make, peak):
    graph = make()
    graphs.validate(graph)
    assert graph.__fn_or_cls__ is optim.capped_adamw
    assert graphs.evaluate(graph.learning_rate.schedules[0].peak) == peak
    assert isinstance(graphs.build(graph), optim.Optimizer)


def test_the_decay_of_gpt3_begins_one_step_after_the_rise():
    boundaries = published.pax_gpt3_adam(
        1e-4, warmup_steps=50, decay_end=1000
    ).learning_rate.boundaries
    assert [graphs.evaluate(boundary) for boundary in boundaries] == [51]
