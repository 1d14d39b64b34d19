from __future__ import annotations

from typing import Any

import fiddle as fdl
import pytest
from graph_toys import parts

from luthier.graph import evaluate, expression, multiply, value
from luthier.graph.grammar import Surroundings, Unreadable, combine

AROUND = Surroundings(near=[parts.Mlp])


@pytest.mark.parametrize(
    ("symbol", "current", "text", "annotation", "expected"),
    [
        ("+=", 10, "5", int, 15),
        ("-=", 10, "2**3", int, 2),
        ("*=", 10, "0.5", int, 5),
        ("*=", 10, "0.25", int, 2.5),  # told later: not an int
        ("*=", 2, "3", float, 6.0),
        ("+=", 10, "1", Any, 11),
        ("+=", "ab", "cd", str, "abcd"),
        ("+=", ("a",), "b", tuple[str, ...], ("a", "b")),
        ("+=", ("a",), "b,c", tuple[str, ...], ("a", "b", "c")),
        ("+=", (), "b", tuple[str, ...], ("b",)),
        ("+=", [1], "2", list[int], [1, 2]),
        ("+=", [1], "[2, 3]", list[int], [1, 2, 3]),
        ("+=", [1], "2,3", list[int], [1, 2, 3]),
        ("+=", [1], "2", Any, [1, 2]),
        ("+=", [], "Mlp(1, dim=2)", list[parts.Layer], [fdl.Config(parts.Mlp, 1, dim=2)]),
        ("+=", {"a": 1}, "{b: 2}", dict[str, int], {"a": 1, "b": 2}),
        ("+=", (1,), "(2)", int | tuple[int, ...], (1, 2)),
    ],
)
def test_combinations(symbol, current, text, annotation, expected):
    found = combine(symbol, current, text, annotation, AROUND)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("symbol", "current", "text", "message"),
    [
        ("*=", "a", "2", "*= works on numbers, not on 'a'"),
        ("-=", [1], "1", "-= works on numbers, not on [1]"),
        ("+=", 1, "x", "'x' is not an int or a float"),
        ("+=", True, "1", "+= works on numbers, text, lists, tuples and dicts, not on True"),
        ("+=", {"a": 1}, "3", "3 is not a dict"),
        ("*=", 10**308, "1e300", ""),
    ],
)
def test_what_does_not_combine(symbol, current, text, message):
    if not message:
        assert combine(symbol, float(current), text, float, AROUND) == float("inf")
        return
    with pytest.raises(Unreadable) as caught:
        combine(symbol, current, text, Any, AROUND)
    assert message in str(caught.value)


def test_a_value_that_the_place_admits_but_a_dict_cannot_take():
    with pytest.raises(Unreadable, match=r"^'3' is not a dict, which \+= adds to a dict$"):
        combine("+=", {"a": 1}, "3", int | dict[str, int], AROUND)


def test_a_result_that_no_float_can_hold_is_refused():
    with pytest.raises(Unreadable, match=r"\*= 0\.5: int too large to convert to float$"):
        combine("*=", 10**400, "0.5", float, AROUND)


def test_value_nodes_stay_live():
    dim = value(8, name="dim")
    assert combine("*=", dim, "2", int, AROUND) == 16  # the constant itself changes
    node = combine("+=", multiply(dim, 4), "3", int, AROUND)
    assert expression(node) == "dim * 4 + 3"
    around = Surroundings(reference=lambda path: dim)
    node = combine("*=", 3, "$model.dim", int, around)
    assert evaluate(node) == 24
    assert node.right is dim
