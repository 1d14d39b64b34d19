from __future__ import annotations

import pytest

from luthier.graph import validation


@pytest.mark.parametrize(
    ("condition", "known", "expected"),
    [
        ("0 <= x < 1", {"x": 0.5}, True),
        ("0 <= x < 1", {"x": 1}, False),
        ("0 <= x", {"x": -1}, False),
        ("x > 0", {"x": 1e-9}, True),
        ("x < 1e3", {"x": 10**3}, False),
        ("-1 <= x <= 1", {"x": -1}, True),
        ("dim % heads == 0", {"dim": 12, "heads": 5}, False),
        ("a < b", {"a": 1, "b": 2}, True),
        ("a * 2 + 1 != b - 3 / 2", {"a": 1, "b": 4.5}, False),
        ("a == 0 or b % a == 0", {"a": 0, "b": 3}, True),
        ("a > 0 and not a > 3", {"a": 3}, True),
        ("a // 2 == 1", {"a": 3}, True),
        ("a is None", {"a": None}, True),
        ("a is not None", {"a": None}, False),
        ("a is not None", {"a": "anything"}, True),
        ("a is not None or b % 3 == 0", {"a": None, "b": 4}, False),
        ("data.length <= model.length", {"data.length": 9, "model.length": 8}, False),
        # What is not message does not count against anyone.
        ("a < 3", {"a": validation.UNKNOWN}, True),
        ("a < 3", {"a": None}, True),
        ("a < 3", {"a": True}, True),
        ("a < 3", {"a": "text"}, True),
        ("a.b < 3 and c < 3", {"a.b": validation.UNKNOWN, "c": 9}, True),
        ("c < 3 and a.b < 3", {"a.b": validation.UNKNOWN, "c": 9}, False),
    ],
)
def test_conditions(condition, known, expected):
    assert validation.holds(condition, known) is expected


@pytest.mark.parametrize(
    "condition",
    [
        "x <",
        "f(x)",
        "x.y > 0",
        "x[0] > 0",
        "__import__('os')",
        "x in y",
        "x ** 9 > 0",
        "y > 0",
        "'a'",
        "x is x",
        "x is 1",
        "",
    ],
)
def test_what_is_no_condition(condition):
    with pytest.raises(validation.Malformed):
        validation.holds(condition, {"x": 1})


def test_names():
    assert validation.names_in("dim % num_heads == 0") == ("dim", "num_heads")
    assert validation.names_in("b < data.rows.length or b is None") == ("b", "data.rows.length")
    assert validation.with_name("0 <= x < max", "b2") == "0 <= b2 < max"
