from __future__ import annotations

from luthier.graph.export.layout import Group, Text, lay_out


def _call(*names, is_call=True):
    brackets = ("f(", ")") if is_call else ("[", "]")
    return Group(brackets[0], [("", Text(name)) for name in names], brackets[1], is_call)


def test_what_fits_is_one_line():
    assert lay_out(_call("a", "b"), 4, 10) == "f(a, b)"
    assert lay_out(Group("(", [("", Text("a"))], ")", comma=True), 0, 0) == "(a,)"


def test_arguments_share_a_line_of_their_own_and_entries_do_not():
    assert lay_out(_call("a" * 40, "b" * 40), 4, 30) == f"f(\n        {'a' * 40}, {'b' * 40}\n    )"
    listed = _call("a" * 40, "b" * 40, is_call=False)
    assert lay_out(listed, 0, 30) == f"[\n    {'a' * 40},\n    {'b' * 40},\n]"


def test_what_is_too_long_is_one_entry_a_line():
    text = lay_out(_call("a" * 60, "b" * 60), 0, 0)
    assert text == f"f(\n    {'a' * 60},\n    {'b' * 60},\n)"


def test_room_is_left_for_what_follows():
    call = _call("a" * 50, "b" * 41)
    assert "\n" not in lay_out(call, 0, 4)
    assert "\n" in lay_out(call, 0, 4, tail=1)


def test_the_height_counts_brackets_that_take_lines():
    assert _call("a").height == 0
    assert Group("f(", [("", _call("a" * 99))], ")").height == 2
