from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import parts
from graph_toys.gin_overlaid import overlay, problems

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.graph import values


def test_a_macro_is_one_constant_with_its_name():
    graph = overlay("DIM = 4\nModel.dim = %DIM\nMlp.hidden = %DIM")
    assert graph.model.dim is graph.model.layers[0].hidden
    assert graph.model.dim.__arguments__ == {"value": 4, "name": "DIM"}


def test_a_macro_of_a_macro_follows_it():
    graph = overlay("A = 4\nB = %A\nModel.dim = %A\nMlp.hidden = %B")
    graphs.set_value(graph, "model.dim", 9)
    assert graphs.evaluate(graph.model.layers[0].hidden) == 9


def test_scopes_belong_to_the_names_of_macros():
    assert (
        graphs.evaluate(
            overlay("s/A = 4\nA = 5\nModel.dim = %s/A\nExperiment.extra = %A").model.dim
        )
        == 4
    )


def test_a_macro_of_a_reference_makes_a_node_for_each_use():
    graph = overlay("M = @Mlp()\nModel.layers = [%M, %M]\nMlp.hidden = 3")
    assert graph.model.layers[0] is not graph.model.layers[1]
    assert [layer.hidden for layer in graph.model.layers] == [3, 3]


def test_a_macro_is_converted_for_its_places():
    graph = overlay("KIND = 'exact'\nExperiment.kind = %KIND")
    assert graphs.evaluate(graph.kind) is parts.Kind.EXACT
    assert problems("M = 'x'\nModel.dim = %M") == ["model.dim: 'x' is not an int [set by given]"]
    two = "M = 'exact'\nExperiment.kind = %M\nExperiment.name = %M"
    assert len(problems(two)) == 1


def test_constants_of_the_graph_are_macros():
    graph = parts.experiment()
    graph.model.dim = values.value(16, name="size")
    graph.model.num_heads = values.value(4, name="heads")
    made = overlay("Mlp.hidden = %size", graph)
    assert made.model.layers[0].hidden is made.model.dim
    made = overlay("heads = %size\nsize = 3", graph)
    assert graphs.evaluate(made.model.num_heads) == 3


def test_constants_that_are_made_of_themselves():
    graph = parts.experiment()
    graph.model.dim = values.value(16, name="size")
    graph.model.num_heads = values.value(4, name="heads")
    with pytest.raises(BadInput, match=r"contains itself \[set by given\]"):
        overlay("heads = %size\nsize = %heads", graph)
    assert problems("A = %B\nB = %A\nModel.dim = %A") == ["%A contains itself [set by given]"]


def test_names_that_are_no_macros():
    graph = overlay("Experiment.kind = %graph_toys.parts.Kind.NONE\nimport graph_toys.parts")
    assert graph.kind is parts.Kind.NONE
    assert problems("DIM = 3\nModel.dim = %DIN") == [
        "there is no macro or constant 'DIN' [set by given]; did you mean DIM?"
    ]
    assert problems("Model.dim = %ZZZ") == [
        "there is no macro or constant 'ZZZ' [set by given]; define it: ZZZ = ..."
    ]


def test_a_macro_that_nothing_uses_is_told_on_the_command_line():
    assert problems("DIM = 3\nDIN = 4\nModel.dim = %DIM") == [
        "nothing uses the macro 'DIN' [set by given]; did you mean DIM?"
    ]


def test_a_macro_in_a_list_stays_live():
    graph = overlay("A = 1\nL = [%A, 2]\nExperiment.extra = %L")
    assert isinstance(graph.extra, list)
    assert isinstance(graph.extra[0], fdl.Config)
