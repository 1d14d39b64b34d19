from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import compared, parts

from luthier.errors import RecordError
from luthier.graph.compare.document import Builder


def test_sharing_is_identity():
    root = Builder().node(parts.experiment())
    layers = root.by_part["model"].by_part["layers"]
    assert layers.by_part[0] is layers.by_part[2]
    assert layers.by_part[0] is not layers.by_part[1]


def test_circles_are_refused():
    graph = compared.part(size=[])
    graph.size.append(graph)
    with pytest.raises(RecordError, match=r"^size\[0\]: the graph goes round in a circle here$"):
        Builder().node(graph)


def test_defaults_are_those_of_the_class():
    builder = Builder()
    found = builder.defaults(builder.node(compared.mlp()))
    assert {name: node.live for name, node in found.items()} == {
        "hidden": 32,
        "dim": 8,
        "dropout": 0.0,
        "activation": parts.relu,
        "dtype": None,
    }


def test_two_local_functions_of_one_name_are_two():
    def make():
        def local():
            pass

        return local

    one, other = make(), make()
    builder = Builder()
    first, second = (builder.node(fdl.Config(target)) for target in (one, other))
    assert first.name == second.name
    assert first.content != second.content
