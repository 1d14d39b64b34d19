import fiddle as fdl
import pytest

from luthier import durations, optim, program
from luthier import graph as graphs
from luthier.graph import floor_divide, value
from luthier.recipes import published
from luthier.recipes.tiny import shorten


def experiment(rate, steps):
    graph = graphs.resolve("configs.lm.quickstart")
    graph.optimizer.learning_rate = rate
    graph.training = fdl.Config(program.Training, steps=steps, global_batch_size=8)
    return graph


def numbers(node, *names):
    return [graphs.evaluate(getattr(node, name)) for name in names]


@pytest.mark.parametrize("rampup", [published.rampup_cosine, published.rampup_exponential])
def test_all_parts_of_a_schedule_stay(rampup):
    graph = experiment(rampup(1e-3, 4000, 4001, 300_000), 10_000_000)
    shorten(graph, 10)
    rise, fall = graph.optimizer.learning_rate.schedules
    assert numbers(rise, "warmup_steps", "total_steps") == [1, 2]
    name = "total_steps" if rampup is published.rampup_cosine else "decay_steps"
    assert numbers(fall, name) == [8]
    assert [graphs.evaluate(b) for b in graph.optimizer.learning_rate.boundaries] == [2]
    assert graph.training.steps == 10
    graphs.validate(graph)


def test_what_is_computed_of_the_steps_follows():
    steps = value(900, name="steps")
    rate = fdl.Config(
        optim.WarmupCosine, peak=1.0, warmup_steps=floor_divide(steps, 5), total_steps=steps
    )
    graph = experiment(rate, steps)
    shorten(graph, 10)
    assert numbers(rate, "warmup_steps", "total_steps") == [2, 10]
    assert graph.training.steps is steps
    assert graphs.evaluate(steps) == 10


def test_plain_numbers_and_lists():
    pieces = fdl.Config(optim.Piecewise, values=[3.0, 2.0, 1.0], boundaries=[300, 600])
    graph = experiment(pieces, 600)
    shorten(graph, 6)
    assert pieces.boundaries == [3, 6]
    assert graph.training.steps == 6


def test_equal_boundaries_of_two_schedules_are_both_scaled():
    boundaries = (300, 600)  # equal constant tuples are one object
    pieces = [
        fdl.Config(optim.Piecewise, values=(3.0, 2.0, 1.0), boundaries=boundaries) for _ in range(2)
    ]
    graph = experiment(fdl.Config(optim.Join, schedules=pieces, boundaries=[600]), 600)
    shorten(graph, 6)
    assert [piece.boundaries for piece in pieces] == [(3, 6), (3, 6)]


def test_numbers_that_differ_still_do():
    pieces = fdl.Config(optim.Piecewise, values=[3.0, 2.0, 1.0, 0.0], boundaries=[997, 998, 1000])
    graph = experiment(pieces, 1000)
    shorten(graph, 2)
    assert pieces.boundaries == [2, 3, 4]
    assert graph.training.steps == 4, "the run reaches the last of them"


def test_what_is_short_stays():
    rate = fdl.Config(optim.WarmupCosine, peak=1.0, warmup_steps=1, total_steps=5)
    graph = experiment(rate, 5)
    graph.evaluations["held_out"].every = fdl.Config(durations.Steps, 1)
    graph.checkpoints.every = fdl.Config(durations.Steps, 2)
    before = graphs.to_json(graph)
    shorten(graph, 10)
    assert graphs.to_json(graph) == before


def test_a_run_that_ends_before_its_schedule():
    rate = fdl.Config(optim.WarmupCosine, peak=1.0, warmup_steps=0, total_steps=1000)
    graph = experiment(rate, 4)
    shorten(graph, 10)
    assert (rate.warmup_steps, rate.total_steps, graph.training.steps) == (0, 10, 4)


def test_evaluations_and_checkpoints_come_twice():
    graph = experiment(fdl.Config(optim.Constant, 1e-3), 1000)
    graph.checkpoints.every = fdl.Config(durations.Seconds, 600)
    shorten(graph, 10)
    assert graph.evaluations["held_out"].every.count == 5
    assert graph.checkpoints.every.count == 600, "another unit stays"
