import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim
from luthier.contrib.optimizers import lamb
from luthier.errors import BadInput
from luthier.recipes import swap_optimizer


class Decay(fdl.Tag):
    """What decays."""


def test_arguments_of_equal_names_are_kept():
    graph = graphs.resolve("configs.lm.quickstart")
    before = graphs.to_json(graph)
    changed = swap_optimizer(graph, optim.sgd)
    (change,) = graphs.diff(graph, changed)
    assert change.kind == "class"
    assert change.swap.carried == ("learning_rate", "weight_decay", "clip_norm")
    assert change.swap.dropped == ("b1", "b2")
    assert str(change).startswith(
        "~ optimizer: luthier.optim.adamw -> luthier.optim.sgd; "
        "kept learning_rate, weight_decay, clip_norm; dropped b1 = 0.9, b2 = 0.98"
    )
    assert graphs.to_json(graph) == before, "the original is untouched"


def test_sharing_tags_and_history_are_kept():
    graph = graphs.resolve("configs.lm.quickstart")
    fdl.add_tag(graph.optimizer, "weight_decay", Decay)
    changed = swap_optimizer(graph, optim.lion)
    assert changed.optimizer.learning_rate.total_steps is changed.training.steps
    assert fdl.get_tags(changed.optimizer, "weight_decay") == {Decay}
    path = "optimizer.weight_decay"
    assert graphs.explain(changed, path).causes[-1] == graphs.explain(graph, path).causes[-1]


def test_the_arguments_of_a_node_win():
    graph = graphs.resolve("configs.lm.quickstart")
    changed = swap_optimizer(graph, fdl.Config(optim.lion, b1=0.5))
    assert (changed.optimizer.b1, changed.optimizer.b2) == (0.5, 0.98)


def test_back_again_is_the_same():
    graph = graphs.resolve("configs.lm.quickstart")
    assert graphs.equal(swap_optimizer(swap_optimizer(graph, optim.lion), optim.adamw), graph)


@pytest.mark.parametrize("recipe", [optim.lion, optim.muon, optim.adafactor, optim.sgd, lamb])
def test_the_new_graph_is_valid(recipe):
    graphs.validate(swap_optimizer(graphs.resolve("configs.vision.digits"), recipe))


def test_other_needs_of_the_new_recipe_are_reported():
    with pytest.raises(BadInput) as caught:
        swap_optimizer(graphs.resolve("configs.lm.quickstart"), optim.partition)
    assert str(caught.value) == (
        "optimizer: partition needs parts, which the optimizer before it does not have; "
        "write swap_optimizer(luthier.optim.partition(parts=...))"
    )
