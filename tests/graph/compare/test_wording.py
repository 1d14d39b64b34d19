from __future__ import annotations

import pytest
from graph_toys import parts, recorded

from luthier.graph import compare, to_dict, to_json, values
from luthier.graph.compare import nodes
from luthier.graph.compare.document import Builder, RecordReader
from luthier.graph.compare.nodes import LEAF, ConfigNode


def node(value):
    return Builder().node(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1.5e-7, "1.5e-07"),
        (float("-inf"), "-inf"),
        ("a'b", '"a\'b"'),
        (b"\x00a", "b'\\x00a'"),
        (recorded.Speed.FAST, "Speed.FAST"),
        (recorded.Ways.UP | recorded.Ways.DOWN, "Ways(3)"),
        (range(3), "range(0, 3)"),
        (slice(None, 3), "slice(None, 3, None)"),
        (..., "Ellipsis"),
        ((1,), "(1,)"),
        ([{"a": (1, 2)}], "[{'a': (1, 2)}]"),
        ({None: 1}, "{None: 1}"),
        ({2, 1}, "{1, 2}"),
        (recorded.Point(1, [2]), "graph_toys.recorded.Point(x=1, y=[2])"),
        (parts.relu, "graph_toys.parts.relu"),
        (values.multiply(values.value(8, name="dim"), 4), "dim * 4 = 32"),
        (values.power(values.add(values.value(1), 2), 2), "(1 + 2) ** 2 = 9"),
        (values.true_divide(values.value(1, name="a"), 0), "a / 0 = ?"),
        (values.add(values.value("a", name="a"), "b"), "a + 'b' = 'ab'"),
        (values.value(8, name="dim"), "8 (shared as dim)"),
    ],
)
def test_things_on_one_line(value, text):
    assert nodes.text_of(node(value)) == text


def test_a_record_says_what_its_graph_says():
    live, read = node(recorded.everything()), compare.read(to_json(recorded.everything())).root
    assert nodes.full(live) == nodes.full(read)
    assert nodes.plain(live) == nodes.plain(read)


def test_plain_values_are_those_of_to_dict():
    graph = recorded.everything()
    graph.nodes.numbers = [1, 1.5, True]  # without those that are not finite
    for made in (parts.experiment(), graph):
        assert nodes.plain(node(made)) == to_dict(made, defaults=False)


def test_values_that_cannot_be_read():
    assert nodes.leaf_text({"bytes": "x"}) == "'x'"
    assert nodes.value_of(node(values.value(3))).data == 3
    assert nodes.value_of(RecordReader("x").read({"config": "luthier.graph.values.total"})) is None


def test_what_no_record_can_hold_is_told_too():
    class Local:
        pass

    text = nodes.text_of(node(Local()))
    assert text.startswith("<tests.graph") or "Local" in text
    assert "Local" in nodes.text_of(node(Local))


def test_canonical_texts_tell_contents_apart():
    contents = [1, 1.0, True, "1", (1,), [1], {1: 1}, {"1": 1}, {1}, None]
    assert len({nodes.canonical(node(value)) for value in contents}) == len(contents)
    first, second = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert nodes.canonical(node(first)) == nodes.canonical(node(second))
    assert nodes.text_of(ConfigNode(LEAF, data=3)) == "3"
