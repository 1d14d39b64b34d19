import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import tasks
from luthier.errors import BadInput
from luthier.recipes import seed


def test_where_there_is_one_seed_it_alone_changes():
    graph = graphs.resolve("configs.lm.quickstart")
    (change,) = graphs.diff(graph, seed(graph, 7))
    assert (change.path, change.before, change.after) == ("seed", 0, 7)
    assert graph.seed == 0, "the original is untouched"


def test_other_seeds_follow_and_differ():
    graph = graphs.resolve("configs.lm.preferences")
    graph.task = fdl.Config(tasks.MaskedModelling, mask_token=1)
    changed = seed(graph, 7)
    paths = ["seed", "task.evaluation_seed", "data.source.seed"]
    assert [graphs.evaluate(graphs.get(changed, path)) for path in paths] == [7, 8, 9]
    held_out = graphs.get(changed, "evaluations.held_out.data.source.seed")
    assert held_out is changed.data.source.seed, "what was equal stays equal"
    later = graphs.apply(changed, ["seed=20"])
    assert [graphs.evaluate(graphs.get(later, path)) for path in paths] == [20, 21, 22]


def test_the_last_seed_counts():
    graph = graphs.resolve("configs.lm.preferences")
    twice = seed(seed(graph, 7), 3)
    paths = ["seed", "data.source.seed", "evaluations.held_out.data.source.seed"]
    assert [graphs.evaluate(graphs.get(twice, path)) for path in paths] == [3, 4, 4]
    assert graphs.equal(twice, seed(graph, 3))


@pytest.mark.parametrize("number", [-1, 2**32])
def test_what_is_no_seed_is_refused(number):
    with pytest.raises(BadInput, match=f"{number} is not a seed"):
        seed(graphs.resolve("configs.lm.quickstart"), number)


def test_other_seeds_are_in_range_too():
    graph = graphs.resolve("configs.lm.preferences")
    graph.task = fdl.Config(tasks.MaskedModelling, mask_token=1)
    changed = seed(graph, 2**32 - 3)
    seeds = [graphs.get(changed, path) for path in ("task.evaluation_seed", "data.source.seed")]
    assert [graphs.evaluate(value) for value in seeds] == [2**32 - 2, 2**32 - 1]
    with pytest.raises(BadInput) as caught:
        seed(graph, 2**32 - 2)
    line = "seed: 4294967294 is not a seed; write a whole number from 0 to 4294967293"
    assert str(caught.value) == line


def test_a_model_has_no_seed():
    with pytest.raises(BadInput, match="a model alone has no seed"):
        seed(graphs.resolve("configs.lm.quickstart").model, 1)
