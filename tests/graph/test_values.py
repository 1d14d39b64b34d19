from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import parts
from hypothesis import given
from hypothesis import strategies as st

from luthier import graph as graphs

MAKERS = {
    graphs.add: "+",
    graphs.subtract: "-",
    graphs.multiply: "*",
    graphs.true_divide: "/",
    graphs.floor_divide: "//",
    graphs.modulo: "%",
    graphs.power: "**",
}
CONSTANT = graphs.value(1).__fn_or_cls__
PRODUCT = graphs.multiply(1, 1).__fn_or_cls__


def test_a_set_moves_all_users():
    dim = graphs.value(256, name="dim")
    node = fdl.Config(dict, a=dim, b=graphs.multiply(dim, 4), c=graphs.floor_divide(dim, 3))
    assert fdl.build(node) == {"a": 256, "b": 1024, "c": 85}
    dim.value = 512
    assert fdl.build(node) == {"a": 512, "b": 2048, "c": 170}


@pytest.mark.parametrize(("maker", "symbol"), MAKERS.items(), ids=MAKERS.values())
def test_every_operation_computes_and_reads_like_python(maker, symbol):
    node = maker(graphs.value(7, name="x"), 2)
    expected = {"+": 9, "-": 5, "*": 14, "/": 3.5, "//": 3, "%": 1, "**": 49}[symbol]
    assert graphs.evaluate(node) == expected == fdl.build(node)
    assert graphs.expression(node) == f"x {symbol} 2"
    assert graphs.is_value_node(node)
    assert not graphs.is_constant(node)


def numbers():
    return st.integers(1, 9).map(lambda n: graphs.value(n, name="abcdefghij"[n]))


@given(
    st.recursive(
        numbers(),
        lambda inner: st.tuples(
            st.sampled_from([graphs.add, graphs.subtract, graphs.multiply, graphs.true_divide]),
            inner,
            inner,
        ).map(lambda drawn: drawn[0](drawn[1], drawn[2])),
        max_leaves=8,
    )
)
def test_an_expression_has_just_the_brackets_it_needs(node):
    known = {letter: index for index, letter in enumerate("abcdefghij")}
    try:
        expected = graphs.evaluate(node)
    except ZeroDivisionError:
        return
    assert eval(graphs.expression(node), known) == pytest.approx(expected)


def test_brackets():
    a, b = graphs.value(2, name="a"), graphs.value(3, name="b")
    multiply, add, subtract, power = graphs.multiply, graphs.add, graphs.subtract, graphs.power
    assert graphs.expression(multiply(add(a, b), 4)) == "(a + b) * 4"
    assert graphs.expression(add(multiply(a, b), 4)) == "a * b + 4"
    assert graphs.expression(subtract(a, subtract(b, 1))) == "a - (b - 1)"
    assert graphs.expression(power(power(a, 2), b)) == "(a ** 2) ** b"
    assert graphs.expression(graphs.value(5)) == "5"


def test_evaluate_returns_other_values_unchanged():
    node = fdl.Config(parts.Constant, 0.1)
    assert graphs.evaluate(node) is node
    assert graphs.evaluate("text") == "text"
    assert not graphs.is_value_node(node)
    assert not graphs.is_value_node(fdl.Partial(CONSTANT, 1))


def test_what_cannot_be_computed():
    node = fdl.Config(PRODUCT, left=1)
    with pytest.raises(ValueError, match="a value node has no 'right'"):
        graphs.evaluate(node)
    with pytest.raises(ValueError, match=r"^rate is not set$"):
        graphs.evaluate(graphs.multiply(2, fdl.Config(CONSTANT, name="rate")))
    with pytest.raises(ValueError, match=r"^it is not set$"):
        graphs.evaluate(fdl.Config(CONSTANT))
    node.right = node
    with pytest.raises(ValueError, match="depends on itself"):
        graphs.evaluate(node)
    with pytest.raises(ZeroDivisionError):
        graphs.evaluate(graphs.floor_divide(1, graphs.value(0)))


def test_operands():
    dim = graphs.value(3, name="dim")
    assert list(graphs.operands(dim)) == [3]
    assert list(graphs.operands(graphs.add(dim, 1))) == [dim, 1]


def test_functions_of_nodes_can_be_imported():
    for function in (CONSTANT, *(maker(1, 2).__fn_or_cls__ for maker in MAKERS)):
        assert graphs.load_object(graphs.public_name(function)) is function
