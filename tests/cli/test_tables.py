from __future__ import annotations

from luthier.cli.printing import table


def test_columns_line_up_and_numbers_stand_right():
    lines = table(["name", "size", "why"], [("a", "1,000", "x"), ("long", "7", "y z")])
    assert lines == [
        "name   size  why",
        "a     1,000  x",
        "long      7  y z",
    ]


def test_no_rows():
    assert table(["a", "b"], []) == ["a  b"]
