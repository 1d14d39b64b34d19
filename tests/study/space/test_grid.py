from luthier.study import Choice, Int, Log, Option, Space
from luthier.study.space import grid_points


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
