import fiddle as fdl
import simulated_engine as toys

from luthier import graph as graphs
from luthier.study import Choice, Int, Log, Option, Space, Zipped
from luthier.study.space import override_text

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
        {"size": Choice((Option(words=("width=4", "heads=1")), Option(words=("width=8",))))}
    )
    assert space.overrides({"size": 0}) == ["width=4", "heads=1"]


def test_a_space_is_conditional_where_an_option_has_a_space():
    assert SPACE.is_conditional
    assert not Space({"width": Int(1, 2)}).is_conditional


def test_a_space_is_recorded_and_read_again():
    graph = fdl.Config(Space, SPACE.dimensions, constraints=("width % heads == 0",))
    text = graphs.to_json(graph)
    assert graphs.equal(graphs.from_json(text, toys.PACKAGES), graph)
