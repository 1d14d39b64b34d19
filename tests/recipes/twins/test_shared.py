import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import layers
from luthier.errors import BadInput
from luthier.graph import add, multiply, value
from luthier.recipes import shared
from luthier.recipes.tiny import constants


def test_a_constant_moves_all_that_is_computed_of_it():
    graph = graphs.resolve("configs.lm.quickstart")
    before = graphs.to_json(graph)
    changed = shared(graph, length=64)
    assert graphs.evaluate(changed.data.length) == 64
    assert changed.data.length is changed.evaluations["held_out"].data.length
    assert graphs.to_json(graph) == before, "the original is untouched"


def test_constants_within_arithmetic_are_reached():
    dim = value(8, name="dim")
    graph = fdl.Config(layers.Embedding, dim=multiply(dim, 2), vocab_size=add(multiply(dim, 3), 1))
    changed = shared(graph, dim=5)
    assert (graphs.evaluate(changed.dim), graphs.evaluate(changed.vocab_size)) == (10, 16)


def test_two_constants_of_a_name_are_both_set():
    graph = fdl.Config(layers.Embedding, dim=value(1, name="n"), vocab_size=value(2, name="n"))
    changed = shared(graph, n=3)
    assert (graphs.evaluate(changed.dim), graphs.evaluate(changed.vocab_size)) == (3, 3)


def test_a_name_that_is_not_there():
    graph = graphs.resolve("configs.lm.quickstart")
    with pytest.raises(BadInput) as caught:
        shared(graph, lenght=64, depth=2)
    assert [str(problem) for problem in caught.value.problems] == [
        "no shared constant is called 'lenght'; did you mean length?; there are length, steps",
        "no shared constant is called 'depth'; there are length, steps",
    ]


def test_without_constants():
    with pytest.raises(BadInput, match="no shared constant is called 'dim'; set it by its path"):
        shared(fdl.Config(layers.Embedding, dim=3), dim=2)


def test_the_constants_of_a_value():
    dim, heads = value(8, name="dim"), value(2)
    assert [n is dim for n in constants(multiply(add(dim, heads), 3))] == [True, False]
    assert list(constants(7)) == []
