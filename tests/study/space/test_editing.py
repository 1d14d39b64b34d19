import fiddle as fdl
import simulated_engine as toys

from luthier import graph as graphs
from luthier.study import Choice, Int, Log, Option, Pow2, Space, Uniform
from luthier.study.space_checks import Editing, locate

EDITING = Editing(packages=toys.PACKAGES)


def test_the_history_of_a_trial_says_which_trial_set_what():
    base = fdl.Config(toys.Toy)
    space = Space({"rate": Log(1e-4, 1), "width": Pow2(8, 64)})
    graph = EDITING.trial_graph(base, space, {"rate": 0.5, "width": 5}, 7)
    assert (graph.rate, graph.width) == (0.5, 32)
    assert graphs.origin_of(graph, "rate") == "trial 7: rate=0.5"
    assert graphs.origin_of(graph, "width") == "trial 7: width=32"
    assert "rate" not in base.__arguments__


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
