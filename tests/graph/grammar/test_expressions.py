from __future__ import annotations

import ast
from typing import Any

import pytest
from graph_toys import parts

from luthier.graph import evaluate, value
from luthier.graph.grammar import ExpressionReader, Surroundings, Unreadable, parse


def convert(text: str, annotation: Any = Any, around: Surroundings | None = None) -> Any:
    source, tree = parse(text)
    return ExpressionReader(source, None, around or Surroundings([parts.Mlp]), None).convert(
        tree, annotation
    )


REFUSED = [
    "lambda: 1", "(x := 1)", "1 if 2 else 3", "{1, 2}", "[x for x in y]", "{x: x for x in y}",
    "(x for x in y)", "await x", "x < 1", "f(1)(2)", "x[1]", "x[1:2]", "*x", "f'{x}'", "a and b",
    "not 1", "~1", "1 @ 2", "1 | 2", "b'x'", "1j", "...", "Mlp(*x)", "Mlp(**x)", "{**x}",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_on_the_list_is_refused(text):
    with pytest.raises(Unreadable):
        convert(text)


def test_every_kind_of_syntax_is_either_read_or_refused():
    """A kind of expression that a new Python brings must be thought about."""
    known = {
        *("BoolOp", "NamedExpr", "BinOp", "UnaryOp", "Lambda", "IfExp", "Dict", "Set"),
        *("ListComp", "SetComp", "DictComp", "GeneratorExp", "Await", "Yield", "YieldFrom"),
        *("Compare", "Call", "FormattedValue", "JoinedStr", "Constant", "Attribute", "Subscript"),
        *("Starred", "Name", "List", "Tuple", "Slice", "TemplateStr", "Interpolation"),
    }
    legacy = {"Num", "Str", "Bytes", "NameConstant", "Ellipsis", "Index", "ExtSlice"}
    assert {cls.__name__ for cls in ast.expr.__subclasses__()} - legacy <= known


def test_references_are_found_outside_of_quotes_only():
    asked: list[Any] = []
    around = Surroundings(reference=lambda path: asked.append(path) or value(3))
    assert evaluate(convert("$a.b[0]['c d'] * 2", Any, around)) == 6
    assert convert("'$a'", Any, around) == "$a"
    assert convert('["$a", 1]', Any, around) == ["$a", 1]
    assert asked == [("a", "b", 0, "c d")]


def test_the_source_of_a_part_is_quoted_as_it_was_written():
    assert convert("[a-b, c ]", list[str]) == ["a-b", "c"]
    with pytest.raises(Unreadable, match=r"^'\$a\.b': there is no config to refer to here$"):
        convert("1 + $a.b")


def test_depth_and_length_have_limits():
    for text in ("(" * 400 + "1" + ")" * 400, "[" * 300 + "]" * 300, "1" * 200_000):
        with pytest.raises(Unreadable):
            convert(text)
    with pytest.raises(Unreadable, match=r"^the value is nested too deeply$"):
        convert("1" + "+1" * 900)


def test_signs_before_numbers_and_nothing_inside_of_brackets():
    assert convert("+3", int) == 3
    assert convert("-(+3)", int) == -3
    assert convert("[null, {a: null}]") == [None, {"a": None}]


def test_a_reference_is_a_path_of_names_and_positions():
    around = Surroundings(reference=lambda path: value(3))
    with pytest.raises(Unreadable, match=r"^'\$a\[b\]' is not a path$"):
        convert("$a[b].c", Any, around)
