import math
import sys
import types

import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.study import (
    Choice,
    Gaussian,
    Int,
    Log,
    LogNormal,
    Option,
    Ordinal,
    Pow2,
    Space,
    Uniform,
    Zipped,
    generate,
    grid_points,
    override_text,
)

ADAPTIVE = fdl.Config(toys.Adaptive)
SPACE = Space(
    {
        "rate": Log(1e-4, 1e-1),
        "optimizer": Choice(
            (
                fdl.Config(toys.Momentum),
                Option(ADAPTIVE, space=Space({"optimizer.decay": Log(0.1, 0.9)}), name="adaptive"),
            )
        ),
        "table": Zipped(({"width": 16, "heads": 4}, {"width": 32, "heads": 8})),
    }
)


def _choose(chosen):
    return SPACE.choose(lambda name, dimension: chosen.get(name, 0))


def test_dimensions_of_an_option_take_part_only_where_it_is_chosen():
    assert _choose({"rate": 0.01}) == {"rate": 0.01, "optimizer": 0, "table": 0}
    names = set(_choose({"rate": 0.01, "optimizer": 1}))
    assert names == {"rate", "optimizer", "optimizer=adaptive/optimizer.decay", "table"}


def test_overrides_are_words_where_they_can_be():
    inner = "optimizer=adaptive/optimizer.decay"
    assignment = {"rate": 0.01, "optimizer": 1, inner: 0.5, "table": 1}
    found = SPACE.overrides(assignment)
    assert found[0] == "rate=0.01"
    assert found[1] == ("optimizer", ADAPTIVE)
    assert found[2:] == ["optimizer.decay=0.5", "width=32", "heads=8"]
    assert override_text(found[1]) == "optimizer=Adaptive(...)"
    assert override_text(("shape", (1, 2))) == "shape=(1, 2)"


def test_words_of_an_option_stand_for_its_value():
    space = Space(
        {"size": Choice((Option(overrides=("width=4", "heads=1")), Option(overrides=("width=8",))))}
    )
    assert space.overrides({"size": 0}) == ["width=4", "heads=1"]


def test_a_space_is_conditional_where_an_option_has_a_space():
    assert SPACE.is_conditional
    assert not Space({"width": Int(1, 2)}).is_conditional


def test_a_space_is_recorded_and_read_again():
    graph = fdl.Config(Space, SPACE.dimensions, constraints=("width % heads == 0",))
    text = graphs.to_json(graph)
    assert graphs.equal(graphs.from_json(text, toys.PACKAGES), graph)


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
        (Int(0, 8, log=True), "a logarithmic range begins above zero, not at 0"),
        (Int(2, 8, 2, log=True), "a logarithmic range has no step, and 2 was given"),
        (Int(2, 8, log=1), "log is true or false, not 1"),
        (Uniform(0, 1, 0.3), "steps of 0.3 from 0 do not meet 1, but 0.9"),
        (Uniform(0, 1, 0), "the step 0 is not a number above zero"),
        (Uniform(0, 1, math.inf), "the step inf is not a number above zero"),
        (Gaussian(0, 0), "the standard deviation 0 is not above zero"),
        (Gaussian(math.nan, 1), "the mean nan is not a finite number"),
        (
            LogNormal(1e3, 1),
            "the mean and the standard deviation are those of the logarithm, and too large",
        ),
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
    [
        Log(1e-4, 1),
        Uniform(-1, 1),
        Uniform(0.1, 0.7, 0.1),
        Int(1, 9, 4),
        Int(1, 9, log=True),
        Gaussian(-1, 2.5),
        LogNormal(-7, 2),
        Pow2(1, 4),
        Ordinal((1, 2)),
        Choice((1, None)),
    ],
)
def test_a_good_dimension_has_no_problems(dimension):
    assert list(dimension.problems()) == []


@pytest.mark.parametrize(
    ("dimension", "points", "inside", "outside"),
    [
        (Uniform(0.1, 0.4, 0.1), [0.1, 0.2, 0.3, 0.4], [0.3], [0.25, 0.5, "0.3"]),
        (Int(1, 64, log=True), [1, 8, 64], [1, 7, 64], [0, 65, 8.0]),
        (Gaussian(1.0, 0.1), [0.90325, 1.0, 1.09674], [1.0, 0.6], [0.5, None]),
        (LogNormal(0.0, 1.0), [0.380062, 1.0, 2.631151], [1.0, 100.0], [0.0, -1.0, 200.0]),
    ],
)
def test_points_of_a_grid_and_values_of_the_experiment(dimension, points, inside, outside):
    assert list(dimension.points(3)) == pytest.approx(points, rel=1e-4)
    assert [dimension.stored(value) for value in inside] == inside
    assert [dimension.stored(value) for value in outside] == [None] * len(outside)
    for stored in (*dimension.points(3), *dimension.probes()):
        assert dimension.stored(dimension.value(stored)) == stored


def test_a_row_may_have_values_in_the_override_grammar():
    table = Zipped([{"a": 1, "b": Option(overrides=("b=None",))}, {"a": 2, "b": 3}])
    space = Space({"both": table})
    assert space.overrides({"both": 0}) == ["a=1", "b=None"]
    assert space.overrides({"both": 1}) == ["a=2", "b=3"]


def test_the_last_dimension_moves_first():
    space = Space({"a": Int(0, 1), "b": Int(0, 2)})
    found = [(point["a"], point["b"]) for point in grid_points(space, 5)]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_the_space_of_an_option_is_gone_through_below_it():
    inner = Space({"b": Int(0, 2)})
    space = Space({"a": Choice((1, Option(2, space=inner))), "c": Int(0, 1)})
    found = list(grid_points(space, 5))
    assert len(found) == 2 + 3 * 2
    assert [point for point in found if point["a"] == 0] == [{"a": 0, "c": 0}, {"a": 0, "c": 1}]
    assert {point["a=2/b"] for point in found if point["a"] == 1} == {0, 1, 2}


def test_continuous_ranges_have_as_many_points_as_the_resolution():
    assert len(list(grid_points(Space({"a": Log(1e-3, 1)}), 4))) == 4


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("toy_sweeps")

    def sweep_lr():
        for rate in (0.1, 0.2):
            yield {"rate": rate, "width": 8}

    def sweep_bad():
        yield 3

    made.sweep_lr, made.sweep_bad = sweep_lr, sweep_bad
    monkeypatch.setitem(sys.modules, "toy_sweeps", made)


def test_a_generator_becomes_a_table(module):
    expected = Zipped(({"rate": 0.1, "width": 8}, {"rate": 0.2, "width": 8}))
    assert generate("toy_sweeps", ["lr"]) == {"lr": expected}


def test_all_problems_with_generators_are_reported_at_once(module):
    with pytest.raises(BadInput) as caught:
        generate("toy_sweeps", ["seeds", "bad"])
    assert [str(problem) for problem in caught.value.problems] == [
        "toy_sweeps has no generator 'seeds'; there are lr, bad",
        "toy_sweeps:sweep_bad yields 3, no dict from paths to values",
    ]
