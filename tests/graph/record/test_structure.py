from __future__ import annotations

import pathlib

import fiddle as fdl
import jax
from graph_toys import parts, recorded

from luthier.graph.record import can_share, entries, nodes, set_arguments, shared


def test_arguments_are_in_the_order_of_the_signature():
    node = fdl.Config(recorded.Part, other=1)
    node.size = 2
    assert set_arguments(node) == [("size", 2), ("other", 1)]
    free = fdl.Config(parts.keywords, zebra=1)
    free.ant, free.a = 2, 3
    assert set_arguments(free) == [("a", 3), ("ant", 2), ("zebra", 1)]


def test_entries():
    assert entries([1]) == entries((1,)) == [(0, 1)]
    assert entries({"a": 1}) == [("a", 1)]
    assert entries(recorded.Pair(1, 2)) == [("left", 1), ("right", 2)]
    assert entries(recorded.Point(1)) == [("x", 1), ("y", 0)]
    for leaf in (1, "a", None, {1}, jax.nn.gelu, jax.sharding.PartitionSpec("a"), recorded.Point):
        assert entries(leaf) is None


def test_what_can_be_shared():
    for value in ([], {}, fdl.Config(parts.Layer), ([],), pathlib.Path("a"), {1}):
        assert can_share(value)
    for value in (1, "a", (), (1, (2,)), None, int, jax.nn.relu, recorded.Speed.FAST):
        assert not can_share(value)


def test_what_is_shared():
    layer, same = fdl.Config(parts.Layer), (1, 2)
    graph = fdl.Config(recorded.Part, size=[layer, same], rate={"a": (layer, same)}, other=same)
    assert shared(graph) == {id(layer)}
    assert shared(fdl.Config(recorded.Part, size=[layer])) == set()


def test_nodes_stand_at_their_first_path():
    layer = fdl.Config(parts.Layer)
    graph = fdl.Config(recorded.Part, size=[layer], rate={"a b": layer}, other=layer)
    assert list(nodes(graph)) == [("", graph), ("size[0]", layer)]
