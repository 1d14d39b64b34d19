import math

import pytest

from luthier.study import Choice, Int, Log, Option, Ordinal, Pow2, Uniform, Zipped


def test_values_come_from_what_is_stored():
    assert Log(1e-4, 1e-2).value(1e-3) == 1e-3
    assert Uniform(0, 1).value(1) == 1.0
    assert type(Uniform(0, 1).value(1)) is float
    assert Int(2, 8, 2).value(4) == 4
    assert Pow2(8, 64).value(5) == 32
    assert Ordinal(("a", "b", "c")).value(1) == "b"
    assert Zipped(({"a": 1}, {"a": 2})).value(1) == {"a": 2}
    assert Choice((1, Option(2, name="two"))).value(1).label == "two"


def test_points_of_a_grid_begin_and_end_with_the_range():
    points = Log(1e-4, 1e-2).points(3)
    assert (points[0], points[-1]) == (1e-4, 1e-2)
    assert points[1] == pytest.approx(1e-3)
    assert Uniform(0, 1).points(5) == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert list(Int(2, 8, 2).points(1)) == [2, 4, 6, 8]
    assert [Pow2(8, 64).value(p) for p in Pow2(8, 64).points(1)] == [8, 16, 32, 64]
    assert Log(1e-4, 1e-2).points(1) == (pytest.approx(1e-3),)
    assert Uniform(0, 1).points(1) == (0.5,)


def test_a_value_of_the_graph_is_stored_only_where_the_range_has_it():
    assert Log(1e-4, 1e-2).stored(1e-3) == 1e-3
    assert Log(1e-4, 1e-2).stored(1.0) is None
    assert Int(2, 8, 2).stored(4) == 4
    assert Int(2, 8, 2).stored(3) is None
    assert Pow2(8, 64).stored(32) == 5
    assert Pow2(8, 64).stored(33) is None
    assert Uniform(0, 1).stored(True) is None


def test_probes_of_a_float_range_are_not_whole():
    assert any(not probe.is_integer() for probe in Uniform(1, 8).probes())
    assert any(not probe.is_integer() for probe in Log(1, 4).probes())


@pytest.mark.parametrize(
    ("dimension", "problem"),
    [
        (Log(0.0, 1.0), "a logarithmic range begins above zero, not at 0.0"),
        (Log(1.0, 0.1), "1.0 is not below 0.1"),
        (Uniform(0.0, math.inf), "inf is not a finite number"),
        (Int(2, 7, 2), "steps of 2 from 2 do not meet 7, but 6"),
        (Int(2, 8, 0), "the step 0 is not a whole number above zero"),
        (Int(2, 2.5), "2.5 is not a whole number"),
        (Pow2(3, 8), "3 is not a power of two"),
        (Ordinal((1,)), "an ordered list needs two values or more"),
        (Choice((1,)), "a choice needs two options or more"),
        (Choice((1, 1)), "two options are called '1'; give them names"),
        (Zipped(()), "a table needs a row"),
        (Zipped(({"a": 1}, {"b": 1})), "row 2 sets b, but row 1 a"),
    ],
)
def test_what_is_wrong_with_a_dimension(dimension, problem):
    assert list(dimension.problems()) == [problem]


@pytest.mark.parametrize(
    "dimension",
    [Log(1e-4, 1), Uniform(-1, 1), Int(1, 9, 4), Pow2(1, 4), Ordinal((1, 2)), Choice((1, None))],
)
def test_a_good_dimension_has_no_problems(dimension):
    assert list(dimension.problems()) == []
