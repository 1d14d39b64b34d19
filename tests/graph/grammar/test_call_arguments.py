from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import parts

from luthier.graph.grammar import Unreadable, call, read_arguments


def make(graph: fdl.Config, size: int, /, rate: float = 0.1, *, kind: parts.Kind = parts.Kind.FAST):
    return graph, size, rate, kind


def test_arguments_are_typed_and_those_that_are_taken_left_out():
    given = read_arguments(make, "make", "(1e3, 2, kind=exact)", taken=1)
    assert given == {1: 1000, "rate": 2.0, "kind": parts.Kind.EXACT}
    assert call(make, given, "graph") == ("graph", 1000, 2.0, parts.Kind.EXACT)


def test_none_are_needed_where_all_have_defaults():
    assert read_arguments(parts.untyped, "untyped", "") == {}
    assert read_arguments(parts.untyped, "untyped", "()") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(x)", "argument 1 of make: 'x' is not an int"),
        ("(1, rate=a)", "argument rate of make: 'a' is not a float"),
        ("(1, kind=fsat)", "argument kind of make: 'fsat' is not a Kind; did you mean FAST?"),
        ("(1, knd=fast)", "make has no argument 'knd'; did you mean kind?"),
        ("(1, graph=2)", "make has no argument 'graph'; it takes rate, kind"),
        ("(1, *a)", "* is not allowed in a value"),
        ("(1", "cannot read the arguments '(1' of make"),
        ("(1)(2)", "cannot read the arguments '(1)(2)' of make"),
    ],
)
def test_what_is_wrong(text, message):
    with pytest.raises(Unreadable) as caught:
        read_arguments(make, "make", text, taken=1)
    assert str(caught.value).startswith(message)


def test_what_is_missing():
    with pytest.raises(Unreadable) as caught:
        read_arguments(parts.adam, "adam", "")
    assert str(caught.value) == "adam needs learning_rate; write adam(learning_rate=...)"
    with pytest.raises(Unreadable) as caught:
        read_arguments(make, "make", "(rate=2)", taken=1)
    assert str(caught.value) == "make needs size; write make(...)"
