from __future__ import annotations

from graph_toys import parts, recorded

from luthier.graph import values
from luthier.graph.compare.document import Builder
from luthier.graph.compare.nodes import CONSTANT, OPERATIONS, Key, Numbers


def test_numbers_tell_contents_apart_and_not_sharing():
    layer, number, builder = compared_layer(), Numbers(), Builder()
    again = compared_layer()
    assert number(builder.node([layer, layer])) == number(builder.node([layer, again]))
    assert number(builder.node({"a": 1, "b": 2})) == number(builder.node({"b": 2, "a": 1}))
    contents = [0.0, -0.0, 0, False, "0", b"0", None, (0,), [0], {0: 0}, {"0": 0}, {0}, layer]
    assert len({number(builder.node(value)) for value in contents}) == len(contents)


def compared_layer():
    return parts.experiment().model.layers[0]


def test_value_nodes_are_known_by_name():
    node = Builder().node(values.add(values.value(1), 2))
    assert node.is_value_node
    assert node.name in OPERATIONS
    assert node.by_part["left"].name == CONSTANT
    assert not Builder().node(compared_layer()).is_value_node


def test_keys_that_are_neither_text_nor_numbers():
    node = Builder().node({None: 1, True: 2, recorded.Speed.FAST: 3, "a": 4, 5: 6})
    keys = [part for part, _ in node.parts]
    assert [repr(key) for key in keys] == ["None", "True", "Speed.FAST", "'a'", "5"]
    assert [type(key) for key in keys] == [Key, Key, Key, str, int]
