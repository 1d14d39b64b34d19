from __future__ import annotations

import pathlib

import fiddle as fdl
import pytest
from graph_toys import parts, recorded

from luthier import parallel
from luthier.errors import UnknownReference
from luthier.graph import apply, explain, last_causes, multiply, origin_of, resolve, value


def _steps(graph, path):
    return [(cause.path, cause.value) for cause in explain(graph, path).causes]


def test_sets_stand_in_their_order():
    graph = apply(parts.experiment(), ["optimizer.b2=0.5", "any:b2=0.7"])
    found = explain(graph, "optimizer.b2")
    assert found.value == "0.7"
    assert [cause.value for cause in found.causes] == ["0.99", "0.5", "0.7"]
    assert found.causes[0].origin.rpartition(":")[0].endswith("graph_toys/parts.py")
    assert found.causes[-1].origin == "argument 2: any:b2=0.7"


def test_after_a_reset_the_default_stands_last():
    graph = apply(parts.experiment(), ["optimizer.b2=0.5", "reset:optimizer.b2"])
    *_, reset, default = explain(graph, "optimizer.b2").causes
    assert reset.is_reset
    assert reset.value == "its default"
    assert default.origin.startswith("the default of graph_toys.parts.Optimizer")


def test_an_argument_that_is_not_set_and_has_no_default():
    found = explain(fdl.Config(parts.Optimizer), "learning_rate")
    assert found.value == "not set"
    assert found.causes[-1].origin == "graph_toys.parts.Optimizer has no default"


def test_a_default_says_which_node_it_is_of_and_who_put_it_there():
    graph = apply(
        resolve("configs.lm.quickstart"), ["optimizer:=luthier.optim.lion(learning_rate=1e-3)"]
    )
    node, default = explain(graph, "optimizer.b2").causes
    assert (node.path, node.value) == ("optimizer", "luthier.optim.lion")
    assert node.origin.startswith("argument 1: optimizer:=luthier.optim.lion")
    assert (default.path, default.value) == ("optimizer.b2", "0.99")
    line = default.origin.rpartition(" (")[2]
    assert line.startswith("framework/luthier/optim/families/lion.py:")


def test_what_the_replaced_node_had_does_not_count():
    words = ["optimizer.b2=0.5", "optimizer:=luthier.optim.lion(learning_rate=1e-3)"]
    graph = apply(resolve("configs.lm.quickstart"), words)
    origins = [cause.origin for cause in explain(graph, "optimizer.b2").causes]
    assert not any("b2=0.5" in origin for origin in origins)


def test_a_constant_reports_its_sets_and_its_other_places():
    graph = apply(resolve("configs.lm.quickstart"), ["training.steps=10"])
    found = explain(graph, "optimizer.learning_rate.total_steps")
    assert found.value == "10 (shared as steps)"
    assert [cause.value for cause in found.causes] == ["900", "steps", "10"]
    assert found.causes[-1].origin == "argument 1: training.steps=10"
    assert found.same_as == ("training.steps",)


def test_arithmetic_reports_what_its_constants_were_set_to():
    graph = apply(resolve("configs.lm.quickstart"), ["training.steps=1200"])
    found = explain(graph, "optimizer.learning_rate.warmup_steps")
    assert found.value == "steps // 12 = 100"
    ((name, causes),) = found.follows
    assert name == "training.steps"  # and not by the name that was made up for the constant
    assert [cause.value for cause in causes] == ["900", "1200"]
    assert causes[-1].origin == "argument 1: training.steps=1200"


def test_arithmetic_on_a_constant_without_a_place_of_its_own():
    dim = value(4, name="dim")
    ((name, causes),) = explain(fdl.Config(recorded.Part, rate=multiply(dim, 2)), "rate").follows
    assert name == "dim"
    assert [cause.value for cause in causes] == ["4"]


def _with_rules():
    graph = resolve("configs.lm.quickstart")
    rules = fdl.Config(parallel.Rules, parameters=parallel.parameter_rules())
    graph.parallelism = fdl.Config(parallel.Parallelism, rules=rules)
    return graph


def test_inside_of_a_container_the_container_and_the_part_are_reported():
    words = ["parallelism.rules.parameters.embed=('data',)"]
    graph = apply(_with_rules(), words)
    whole, part = explain(graph, "parallelism.rules.parameters.embed").causes
    assert whole.path == "parallelism.rules.parameters"
    assert (part.path, part.value) == ("parallelism.rules.parameters.embed", "('data',)")


def test_a_shared_node_is_reported_at_each_place_with_the_others():
    graph = apply(resolve("configs.lm.quickstart"), ["model.norm.epsilon=1e-3"])
    found = explain(graph, "model.block.norm.epsilon")
    assert found.causes[-1].origin == "argument 1: model.norm.epsilon=1e-3"
    assert found.same_as == ("model.norm.epsilon",)


def test_what_is_not_set_says_so():
    found = explain(fdl.Config(recorded.Part), "size")
    assert found.value in ("not set", found.causes[-1].value)


@pytest.mark.parametrize("path", ["", "optimizer.bb2"])
def test_a_path_that_does_not_exist_is_refused(path):
    with pytest.raises(UnknownReference):
        explain(parts.experiment(), path)


def test_every_value_that_is_set_is_reported_with_what_set_it_last():
    graph = apply(_with_rules(), ["training.steps=10", "optimizer.b2=0.5"])
    found = {path: (shown, cause.origin) for path, shown, cause in last_causes(graph)}
    assert found["optimizer.b2"] == ("0.5", "argument 2: optimizer.b2=0.5")
    assert found["training.steps"][1] == "argument 1: training.steps=10"
    assert found["model.dim"][1].startswith("configs/lm/quickstart.py:")
    assert "parallelism.rules.parameters" in found, "a container of plain values is one value"
    assert "optimizer.eps" not in found, "a default is not set"
    for path, (shown, _) in found.items():
        assert explain(graph, path).value == shown


def _made():
    return fdl.Config(
        recorded.Root,
        name="a",
        part=fdl.Config(
            recorded.Part,
            rate=0.5,
            other=fdl.Partial(parts.relu),
        ),
    )


def test_a_set_is_at_the_line_of_its_own_keyword():
    graph = _made()
    lines = pathlib.Path(__file__).read_text().splitlines()
    for path, text in (("name", 'name="a",'), ("part.rate", "rate=0.5,"), ("part", "part=fdl.")):
        (line,) = [n for n, each in enumerate(lines, 1) if each.strip().startswith(text)]
        file, _, number = explain(graph, path).causes[-1].origin.rpartition(":")
        assert (file.rpartition("/")[2], int(number)) == ("test_provenance.py", line)
        assert origin_of(graph, path).endswith(f":{line}")


def test_where_calls_on_one_line_have_the_same_keyword_it_is_the_line_of_the_call(tmp_path):
    source = "graph = Config(Root, name=Config(Root,\n    name=1),\n    part=2)\n"
    file = tmp_path / "made.py"
    file.write_text(source)
    names = {"Config": fdl.Config, "Root": recorded.Root}
    exec(compile(source, str(file), "exec"), names)
    origins = [origin_of(names["graph"], path).rpartition(":")[2] for path in ("name.name", "part")]
    assert origins == ["1", "3"]
