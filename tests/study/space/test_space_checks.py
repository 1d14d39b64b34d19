import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier.graph import value
from luthier.study import (
    Choice,
    Editing,
    Int,
    Log,
    Option,
    Pow2,
    Space,
    Uniform,
    check_space,
    locate,
    violated,
)

EDITING = Editing(packages=toys.PACKAGES)


def _lines(dimensions, base=None, constraints=()):
    base = fdl.Config(toys.Toy) if base is None else base
    return [str(p) for p in check_space(base, Space(dimensions, constraints), EDITING)]


def test_a_good_space_has_no_problems():
    inner = Space({"optimizer.decay": Uniform(0.5, 0.9)})
    adaptive = Option(fdl.Config(toys.Adaptive), space=inner)
    choice = Choice((fdl.Config(toys.Momentum), adaptive))
    dimensions = {"rate": Log(1e-4, 1e-1), "width": Pow2(8, 64), "optimizer": choice}
    assert _lines(dimensions, constraints=["width % heads == 0"]) == []


def test_a_path_that_does_not_exist_is_reported_with_the_nearest():
    assert _lines({"rates": Log(1e-4, 1e-1)}) == [
        "rates: does not exist [set by space: rates, at 0.0001]; did you mean rate?"
    ]


def test_a_setting_of_a_bare_class_needs_a_call_of_it():
    base = fdl.Config(toys.Toy, extra=toys.Adaptive)
    (line,) = _lines({"extra.decay": Choice((0.5, 0.9))}, base)
    called = "simulated_engine.Adaptive"
    assert line == (
        f"extra.decay: does not exist: extra is {called} without its arguments "
        f"[set by space: extra.decay]; add the override extra={called}()"
    )
    base = EDITING.apply(base, [line.partition("add the override ")[2]])
    assert _lines({"extra.decay": Choice((0.5, 0.9))}, base) == []


def test_a_value_that_does_not_fit_the_annotation_is_reported():
    assert _lines({"width": Uniform(8, 64)}) == [
        "width: 25.82535362629228 is not an int [set by space: width, at 25.82535362629228]"
    ]


def test_every_option_of_a_choice_is_tried():
    found = _lines({"width": Choice((8, "wide", 2.5))})
    assert found == [
        "width: 'wide' is not an int [set by space: width, at wide]",
        "width: 2.5 is not an int [set by space: width, at 2.5]",
    ]


def test_two_dimensions_of_one_shared_value_overlap():
    shared = value(8, name="size")
    base = fdl.Config(toys.Toy, width=shared, steps=shared)
    (line,) = _lines({"width": Int(8, 16), "steps": Int(2, 4)}, base)
    assert line == (
        "steps: overlaps with width: both set width [set by space]; leave out one of them, or put "
        "it into the space of an option"
    )


def test_a_field_overlaps_with_the_choice_of_its_node_but_not_in_an_option_of_it():
    choice = Choice((fdl.Config(toys.Adaptive), fdl.Config(toys.Momentum, rate=0.5)))
    (line,) = _lines({"optimizer": choice, "optimizer.rate": Log(1e-3, 1)})
    assert line.startswith("optimizer.rate: overlaps with optimizer")


def test_the_space_of_an_option_overlaps_with_what_stands_beside_the_choice():
    option = Option(overrides=("note='x'",), space=Space({"rate": Log(1e-3, 1)}), name="x")
    found = _lines({"rate": Log(1e-4, 1e-2), "note": Choice(("a", option))})
    assert [line.split(" [")[0] for line in found] == [
        "note=x/rate: overlaps with rate: both set rate"
    ]


def test_an_empty_space_and_broken_ranges_are_reported_together_with_the_rest():
    assert _lines({})[0].startswith("the space is empty; write --space")
    found = _lines({"rate": Log(1, 1e-3), "widht": Pow2(8, 16)})
    assert len(found) == 2
    assert found[0] == "1 is not below 0.001 [set by space: rate]"


def test_constraints_name_what_there_is():
    assert _lines({"width": Pow2(8, 64)}, constraints=["widht % 2 == 0"]) == [
        "widht: does not exist [set by constraint: widht % 2 == 0]; did you mean width?"
    ]
    assert _lines({"width": Pow2(8, 64)}, constraints=["width %% 2"]) == [
        "'width %% 2' is not a condition [set by constraint: width %% 2]; write it like "
        "`model.dim % 64 == 0`"
    ]


@pytest.mark.parametrize(
    ("predicate", "expected"), [("width % 5 == 0", True), ("width < 9", False)]
)
def test_a_constraint_is_broken_where_it_does_not_hold(predicate, expected):
    assert violated(fdl.Config(toys.Toy, width=8), predicate) is expected
    assert violated(fdl.Config(toys.Toy), lambda graph: False)
    assert not violated(fdl.Config(toys.Toy), "optimizer.decay < 0")  # it has none


def test_the_history_of_a_trial_says_which_trial_set_what():
    base = fdl.Config(toys.Toy)
    space = Space({"rate": Log(1e-4, 1), "width": Pow2(8, 64)})
    graph = EDITING.trial_graph(base, space, {"rate": 0.5, "width": 5}, 7)
    assert (graph.rate, graph.width) == (0.5, 32)
    assert graphs.origin_of(graph, "rate") == "trial 7: rate=0.5"
    assert graphs.origin_of(graph, "width") == "trial 7: width=32"
    assert "rate" not in base.__arguments__


def test_a_config_of_an_option_is_refused_where_nothing_builds_it():
    options = [fdl.Config(Option, overrides=[f"width={w}"], name=str(w)) for w in (8, 16)]
    (problem,) = Choice(options).problems()
    assert problem == "a Config of Option is not built here; write Option(...) itself"


def test_the_base_is_found_in_its_space():
    inner = Space({"optimizer.decay": Uniform(0.5, 0.9)})
    choice = Choice((fdl.Config(toys.Momentum), Option(fdl.Config(toys.Adaptive), space=inner)))
    space = Space({"rate": Log(1e-4, 1), "optimizer": choice})
    base = fdl.Config(toys.Toy, rate=0.5, optimizer=fdl.Config(toys.Adaptive, decay=0.7))
    assert locate(base, Space({"rate": Log(1e-4, 1)}), EDITING) == {"rate": 0.5}
    changed = fdl.Config(toys.Toy, rate=0.5, optimizer=fdl.Config(toys.Momentum))
    assert locate(changed, space, EDITING) == {"rate": 0.5, "optimizer": 0}


def test_a_base_outside_of_its_space_has_no_assignment():
    base = fdl.Config(toys.Toy, rate=0.5)
    assert locate(base, Space({"rate": Log(1e-4, 1e-2)}), EDITING) is None
    assert locate(base, Space({"width": Int(9, 12)}), EDITING) is None
