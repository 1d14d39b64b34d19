import jax
import pytest

from luthier import graph as graphs
from luthier import planner
from luthier.errors import BadInput, RunError
from luthier.trainer import OPERATIVE_GIN, Request, configuration, open_run, run_id
from luthier.trainer.opening import reserve


@pytest.fixture
def opened(tiny, tmp_path):
    graph = tiny(tmp_path / "runs")
    return graph, planner.make(graph, jax.devices()[:1])


def test_the_id_is_of_what_trains_not_of_where_it_is_written(tiny, tmp_path):
    graph = tiny(tmp_path)
    same = ("records.directory=elsewhere", "name=other", "checkpoints=None")
    assert run_id(graph) == run_id(graphs.apply(graph, same))
    assert run_id(graph) != run_id(graphs.apply(graph, ["optimizer.b2=0.5"]))
    assert run_id(graph) != run_id(graphs.apply(graph, ["parallelism.mesh.fsdp=2"]))


@pytest.mark.full
def test_a_new_run_gets_a_directory_and_the_same_graph_finds_it(opened):
    graph, plan = opened
    with open_run(graph, plan, Request()) as first:
        assert first.is_new
        assert first.directory.read_plan()["parameters"] == plan.parameters
    with open_run(graph, plan, Request()) as second:
        assert not second.is_new
        assert second.directory == first.directory
        assert not second.is_over


@pytest.mark.full
def test_the_graph_as_gin_where_it_was_asked_for(opened):
    graph, plan = opened
    with open_run(graph, plan, Request()) as first:
        assert not (first.directory.path / OPERATIVE_GIN).exists()
    with open_run(graph, plan, Request(gin=graphs.to_gin(graph))) as second:
        text = (second.directory.path / OPERATIVE_GIN).read_text()
    assert graphs.equal(graphs.from_gin(text), graph)


def test_a_run_whose_graph_is_torn_is_refused_with_its_place(opened):
    graph, plan = opened
    with open_run(graph, plan, Request()) as first:
        path = first.directory.path
    (path / "config.json").write_text('{"half')
    with pytest.raises(RunError) as error, open_run(graph, plan, Request()):
        pass
    first, second = map(str, error.value.problems)
    assert first == (
        f"{path} cannot be continued: its config.json cannot be loaded; restore that file, or "
        "start a separate run with --new"
    )
    assert second.startswith("config.json is not readable as JSON: ")


def test_a_second_writer_is_refused_in_one_line(opened):
    graph, plan = opened
    with (
        open_run(graph, plan, Request()),
        pytest.raises(BadInput, match="already written"),
        open_run(graph, plan, Request()),
    ):
        pass


def test_a_changed_graph_needs_the_run_to_be_named(opened, tiny, tmp_path):
    graph, plan = opened
    with open_run(graph, plan, Request()) as first:
        pass
    changed = graphs.apply(graph, ["optimizer.b2=0.5"])
    with open_run(changed, plan, Request(run=first.directory.id)) as second:
        assert second.directory == first.directory
        assert any("optimizer.b2" in notice for notice in second.notices)
        recorded = graphs.from_json(first.directory.read_config())
        assert graphs.equal(recorded, graph), "the start may be refused yet"
        second.record()
    recorded = graphs.from_json(first.directory.read_config())
    assert graphs.equal(recorded, changed)


def test_a_configuration_has_every_form(tiny, tmp_path):
    graph = tiny(tmp_path)
    found = configuration(graph)
    assert graphs.equal(graphs.from_json(found.graph), graph)
    assert "optimizer" in found.text
    assert found.values["training"]["steps"] == 12
    assert "training.steps" in found.history["sets"]


def test_a_reserved_run_records_what_starts_it(opened, tmp_path, monkeypatch):
    graph, plan = opened
    reserved = reserve(graph, tmp_path / "runs", graphs.get(graph, "name"), Request())
    monkeypatch.setattr("sys.argv", ["the job"])
    with open_run(graph, plan, Request(run=reserved.id)) as started:
        assert started.is_new
        assert started.directory == reserved
        assert started.directory.read_plan()["predicted"]
        assert started.directory.read_source()["arguments"] == ["the job"]
