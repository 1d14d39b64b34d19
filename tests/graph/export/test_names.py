from __future__ import annotations

from luthier.graph.export.names import Names


def test_the_last_names_of_a_path_are_tried_first():
    names = Names(["data"])
    path = ("evaluations", "held_out", "data")
    given = [names.give(path) for _ in range(5)]
    assert given == [
        "held_out_data",
        "evaluations_held_out_data",
        "data_config",
        "data_2",
        "data_3",
    ]
    assert Names(["data"]).give(("data",)) == "data_config"


def test_the_wish_comes_first():
    names = Names()
    assert [names.give(("a", "b"), "steps") for _ in range(2)] == ["steps", "b"]


def test_names_can_be_names():
    assert Names().give(("layers", 0)) == "layers_0"
    assert Names().give(("long text",)) == "long_text"
    assert Names().give(("class",)) == "class_config"
    assert Names().give(("id",)) == "id_config"
    assert Names().give(("3",)) == "value_3"
    assert Names().give(()) == "value"
    assert Names().give(("größe",)) == "gr_e"
