from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import parts
from hypothesis import given
from hypothesis import strategies as st

from luthier.graph import values

MAKERS = {
    values.add: "+",
    values.subtract: "-",
    values.multiply: "*",
    values.true_divide: "/",
    values.floor_divide: "//",
    values.modulo: "%",
    values.power: "**",
}


def test_a_set_moves_all_users():
    dim = values.value(256, name="dim")
    node = fdl.Config(dict, a=dim, b=values.multiply(dim, 4), c=values.floor_divide(dim, 3))
    assert fdl.build(node) == {"a": 256, "b": 1024, "c": 85}
    dim.value = 512
    assert fdl.build(node) == {"a": 512, "b": 2048, "c": 170}


@pytest.mark.parametrize(("maker", "symbol"), MAKERS.items(), ids=MAKERS.values())
def test_every_operation_computes_and_reads_like_python(maker, symbol):
    node = maker(values.value(7, name="x"), 2)
    expected = {"+": 9, "-": 5, "*": 14, "/": 3.5, "//": 3, "%": 1, "**": 49}[symbol]
    assert values.evaluate(node) == expected == fdl.build(node)
    assert values.expression(node) == f"x {symbol} 2"
    assert values.is_operation(node)
    assert values.is_value_node(node)
    assert not values.is_constant(node)


def numbers():
    return st.integers(1, 9).map(lambda n: values.value(n, name="abcdefghij"[n]))


@given(
    st.recursive(
        numbers(),
        lambda inner: st.tuples(
            st.sampled_from([values.add, values.subtract, values.multiply, values.true_divide]),
            inner,
            inner,
        ).map(lambda drawn: drawn[0](drawn[1], drawn[2])),
        max_leaves=8,
    )
)
def test_an_expression_has_just_the_brackets_it_needs(node):
    known = {letter: index for index, letter in enumerate("abcdefghij")}
    try:
        expected = values.evaluate(node)
    except ZeroDivisionError:
        return
    assert eval(values.expression(node), known) == pytest.approx(expected)


def test_brackets():
    a, b = values.value(2, name="a"), values.value(3, name="b")
    multiply, add, subtract, power = values.multiply, values.add, values.subtract, values.power
    assert values.expression(multiply(add(a, b), 4)) == "(a + b) * 4"
    assert values.expression(add(multiply(a, b), 4)) == "a * b + 4"
    assert values.expression(subtract(a, subtract(b, 1))) == "a - (b - 1)"
    assert values.expression(power(power(a, 2), b)) == "(a ** 2) ** b"
    assert values.expression(values.value(5)) == "5"


def test_evaluate_returns_other_values_unchanged():
    node = fdl.Config(parts.Constant, 0.1)
    assert values.evaluate(node) is node
    assert values.evaluate("text") == "text"
    assert not values.is_value_node(node)
    assert not values.is_value_node(fdl.Partial(values.constant, 1))


def test_what_cannot_be_computed():
    node = fdl.Config(values.product, left=1)
    with pytest.raises(ValueError, match="a value node has no 'right'"):
        values.evaluate(node)
    with pytest.raises(ValueError, match=r"^rate is not set$"):
        values.evaluate(values.multiply(2, fdl.Config(values.constant, name="rate")))
    with pytest.raises(ValueError, match=r"^it is not set$"):
        values.evaluate(fdl.Config(values.constant))
    node.right = node
    with pytest.raises(ValueError, match="depends on itself"):
        values.evaluate(node)
    with pytest.raises(ZeroDivisionError):
        values.evaluate(values.floor_divide(1, values.value(0)))


def test_operands():
    dim = values.value(3, name="dim")
    assert list(values.operands(dim)) == [3]
    assert list(values.operands(values.add(dim, 1))) == [dim, 1]


def test_functions_of_nodes_can_be_imported():
    for function in (values.constant, *values.OPERATIONS):
        assert getattr(values, function.__name__) is function
        assert not function.__name__.startswith("_")
