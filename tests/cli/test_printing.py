from __future__ import annotations

import json

from luthier.cli import print_json, table


def _refuse(word):
    raise AssertionError(f"{word} is not JSON")


def test_numbers_that_are_none_are_words(capsys):
    values = {
        "loss": [float("nan"), 1.5],
        "best": {"at": float("-inf"), "step": 3},
        "rows": (1, None),
    }
    print_json(values)
    assert json.loads(capsys.readouterr().out, parse_constant=_refuse) == {
        "loss": ["nan", 1.5],
        "best": {"at": "-inf", "step": 3},
        "rows": [1, None],
    }


def test_columns_line_up_and_numbers_stand_right():
    lines = table(["name", "size", "why"], [("a", "1,000", "x"), ("long", "7", "y z")])
    assert lines == [
        "name   size  why",
        "a     1,000  x",
        "long      7  y z",
    ]


def test_no_rows():
    assert table(["a", "b"], []) == ["a  b"]
