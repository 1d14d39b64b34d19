from __future__ import annotations

import json

import pytest

from luthier import cli, errors
from luthier import graph as graphs

TINY = "trials.tiny"


def test_a_reference_names_an_experiment(importable_project):
    assert graphs.get(cli.load_reference(TINY), "name") == "tiny"
    assert cli.find_run(TINY) is None


def test_a_folder_with_a_record_is_a_reference(importable_project, tmp_path):
    graph = cli.load_reference(TINY)
    (tmp_path / "config.json").write_text(graphs.to_json(graph))
    assert graphs.equal(cli.load_reference(str(tmp_path)), graph)


@pytest.mark.parametrize("reference", ["run:ab12cd34", "run:ab", "run:tiny/ab12", "run:last"])
def test_a_run_is_named_by_its_id_or_the_beginning_of_it(importable_project, reference, make_run):
    graph = graphs.apply(cli.load_reference(TINY), ["seed=3"])
    make_run(graph, "ab12cd34")
    loaded = cli.load_reference(reference)
    assert graphs.equal(loaded, graph)
    kinds = ("record", "program")
    assert [graphs.fingerprint(loaded, kind=k) for k in kinds] == [
        graphs.fingerprint(graph, kind=k) for k in kinds
    ]


def test_a_run_has_the_history_that_was_recorded(importable_project, make_run):
    graph = graphs.apply(cli.load_reference(TINY), ["seed=3"])
    make_run(graph, "ab12cd34")
    (cause,) = graphs.explain(cli.load_reference("run:ab"), "seed").causes
    assert (cause.origin, cause.run) == ("argument 1: seed=3", "tiny/ab12cd34")


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "luthier.history", "version": 9}', None])
def test_without_a_readable_history_the_graph_is_read_all_the_same(
    importable_project, text, make_run
):
    graph = graphs.apply(cli.load_reference(TINY), ["seed=3"])
    run = make_run(graph, "ab12cd34")
    path = run.path / "config.history.json"
    path.unlink() if text is None else path.write_text(text)
    loaded = cli.load_reference("run:ab")
    assert graphs.equal(loaded, graph)
    assert "config.json" in graphs.explain(loaded, "seed").causes[-1].origin


def test_the_recorded_history_is_versioned(importable_project, make_run):
    run = make_run(cli.load_reference(TINY), "ab12cd34")
    data = json.loads((run.path / "config.history.json").read_text())
    assert (data["format"], data["version"]) == ("luthier.history", 1)
    assert data["sets"]["model.dim"][0]["value"] == 16


def test_several_runs_with_one_beginning_are_listed(importable_project, make_run):
    for id in ("ab12", "ab34"):
        make_run(cli.load_reference(TINY), id)
    with pytest.raises(errors.RunError) as caught:
        cli.load_reference("run:ab")
    assert str(caught.value) == (
        "'ab' may mean tiny/ab12, tiny/ab34; give more of the id, or `last`"
    )


def test_runs_that_do_not_exist_are_refused(importable_project):
    with pytest.raises(errors.UnknownReference, match="no run 'ab': there are no runs in runs"):
        cli.load_reference("run:ab")
    with pytest.raises(errors.BadInput, match="'run:' does not name a run; write `run:ID`"):
        cli.load_reference("run:")


def test_what_does_not_exist_is_refused(importable_project):
    with pytest.raises(errors.BadInput, match="tinny"):
        cli.load_reference("trials.tinny")
