from __future__ import annotations

import pathlib
from typing import Any

import fiddle as fdl
import pytest
from graph_toys import parts

from luthier.graph import UNSET, value
from luthier.graph.grammar import Unreadable, check, coerce, expected, shown
from luthier.layers import Stack, Unrolled


@pytest.mark.parametrize(
    ("given", "annotation", "made"),
    [
        (1e3, int, 1000),
        (1.5, int, 1.5),
        (float("inf"), int, float("inf")),
        (3, float, 3.0),
        (10**400, float, 10**400),
        (3, int | float, 3),
        (True, float, True),
        (None, float, None),
        ("a", pathlib.Path, pathlib.Path("a")),
        ("a", pathlib.Path | str, "a"),
        ([1, 2.0], tuple[int, ...], (1, 2)),
        ((1, 2), list[float], [1.0, 2.0]),
        ([1], Any, [1]),
        (2, tuple[float, ...], (2.0,)),
        ("x", tuple[str, ...] | None, ("x",)),
        ("x", tuple[int, ...], "x"),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
    ],
)
def test_only_what_loses_nothing_is_converted(given, annotation, made):
    found = coerce(given, annotation)
    assert found == made
    assert type(found) is type(made)


def test_nodes_are_left_alone():
    node = fdl.Config(parts.Mlp)
    assert coerce(node, float) is node
    assert coerce([node], tuple[parts.Mlp, ...]) == (node,)


def test_a_misfit_is_reported():
    check(3, int)
    for given, annotation, message in [
        ("x", int, "'x' is not an int"),
        (None, str, "None is not a str; for the text, write it in quotes: 'None'"),
        (parts.Mlp, parts.Layer, "Mlp is not a Layer; for a node, write Mlp()"),
        (Unrolled, Stack, "Unrolled is not a Stack; for a node, write Unrolled()"),
        (value(0.5, name="rate"), int, "rate = 0.5 is not an int"),
    ]:
        with pytest.raises(Unreadable) as caught:
            check(given, annotation)
        assert str(caught.value) == message


def test_the_current_value_directs_where_nothing_else_does():
    assert expected(int, 0.5) is int
    assert expected(Any, "a") is str
    assert expected(Any, UNSET) is Any
    assert expected(Any, None) is Any


def test_values_in_messages():
    assert shown("x" * 200).endswith("...")
    assert shown(fdl.Config(parts.Mlp)) == "Mlp(...)"
    assert shown(fdl.Partial(parts.Mlp)) == "a template of Mlp(...)"
    assert shown(parts.relu) == "relu"
    assert shown(value(3, name="dim")) == "dim = 3"


def test_instances_and_nodes_follow_a_protocol():
    for given in (Unrolled(), fdl.Config(Unrolled)):
        check(given, Stack)
