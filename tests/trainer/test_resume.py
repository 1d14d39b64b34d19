import pytest

from luthier import graph as graphs
from luthier.errors import RunError
from luthier.trainer import check_continuation, compare


@pytest.fixture(scope="module")
def graph():
    return graphs.resolve("configs.lm.quickstart")


def _compare(graph, *overrides):
    return compare(graph, graphs.apply(graph, overrides))


def _check(comparison, arrays=None, placements=None, **options):
    options = {"run": "a/b", "extend": False, **options}
    return check_continuation(comparison, arrays or {}, placements or {}, **options)


def test_the_same_graph_changes_nothing(graph):
    assert _compare(graph) == compare(graph, graph)
    assert _check(_compare(graph)) == []


@pytest.mark.parametrize(
    "override",
    [
        "parallelism.mesh.fsdp=4",
        "checkpoints.every.count=7",
        "records.console=None",
        "evaluations.held_out.every.count=3",
        "name=another",
    ],
)
def test_harmless_changes_pass_and_are_listed(graph, override):
    (line,) = _check(_compare(graph, override))
    assert line.startswith("does not change training: ")
    assert override.partition("=")[0].split(".")[0] in line


@pytest.mark.parametrize("override", ["optimizer.b2=0.9", "task.z_loss=0.1", "training.guard=None"])
def test_changes_of_training_pass_and_are_named(graph, override):
    (line,) = _check(_compare(graph, override))
    assert line.startswith("changes training from here on: ")
    assert override.partition("=")[0] in line


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("seed=3", "random streams"),
        ("training.global_batch_size=32", "order of the data"),
        ("data.source.split=held_out", "order of the data"),
    ],
)
def test_another_run_of_it_is_refused_with_the_reason(graph, override, reason):
    with pytest.raises(RunError) as caught:
        _check(_compare(graph, override))
    first, second = caught.value.problems
    assert "cannot be continued" in str(first)
    assert "leave out --run" in str(first)
    with pytest.raises(RunError) as caught:
        _check(_compare(graph, override), named=False)
    assert str(caught.value.problems[0]).endswith("to start a separate run, add --new")
    assert override.partition("=")[0] in str(second)
    assert reason in str(second)


def test_another_number_of_steps_names_the_schedules_and_offers_to_extend(graph):
    comparison = _compare(graph, "training.steps=5000")
    with pytest.raises(RunError) as caught:
        _check(comparison)
    (problem,) = caught.value.problems
    before = graphs.evaluate(graphs.get(graph, "training.steps"))
    assert f"optimizer.learning_rate.total_steps ({before} -> 5000)" in str(problem)
    assert "--extend" in str(problem)
    assert _check(comparison, extend=True)


def test_arrays_that_do_not_fit_are_all_listed(graph):
    from luthier.parallel import Placement

    def placement(name, shape):
        return Placement(name, shape, "float32", None, None, "", 0)

    arrays = {
        "parameters/a": {"shape": [2, 3], "dtype": "float32"},
        "parameters/gone": {"shape": [1], "dtype": "float32"},
    }
    wanted = {
        "parameters/a": placement("parameters/a", (2, 4)),
        "parameters/new": placement("parameters/new", (1,)),
    }
    with pytest.raises(RunError) as caught:
        _check(_compare(graph), arrays, wanted)
    text = str(caught.value)
    assert "parameters/a: is float32[2, 3] in the run, float32[2, 4] in this graph" in text
    assert "parameters/gone: is only in the run" in text
    assert "parameters/new: is only in this graph" in text


def test_defaults_that_are_written_out_or_not_are_no_change(graph):
    written = graphs.apply(
        graph,
        [
            "training.guard:=Guard()",
            "parallelism:=Parallelism(mesh=Mesh(data=-1), rules=Rules())",
            "restore=None",
        ],
    )
    assert not graphs.equal(written, graph)
    for one, other in ((written, graph), (graph, written)):
        assert _check(compare(one, other)) == []
        assert not compare(one, other).refused
