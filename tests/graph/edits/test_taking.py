from __future__ import annotations

from typing import Any

import pytest
from graph_toys import edited, parts

from luthier.graph.grammar import Unreadable
from luthier.graph.references import take


def taken(text, annotation=Any, recorded=edited.recorded):
    return take(parts.experiment(), ("extra",), text, annotation, recorded)


@pytest.mark.parametrize(
    "text", ["3", "aliases", "run", "running:a.b", "ref:a", "f(run:last.model)"]
)
def test_other_values_take_nothing(text):
    assert taken(text) is None


def test_an_alias_is_the_very_node():
    graph = parts.experiment()
    (found,) = take(graph, ("extra",), "alias: model ", Any, None)
    assert found is graph.model


def test_a_run_gives_a_copy():
    asked = []

    def recorded(run):
        asked.append((run, edited.recorded("last")))
        return asked[-1][1]

    (found,) = taken("run:name/20261121-a1b2.model.layers[0]", recorded=recorded)
    assert asked[0][0] == "name/20261121-a1b2"
    assert found == asked[0][1].model.layers[0]
    assert found is not asked[0][1].model.layers[0]


def test_paths_may_hold_slashes():
    asked = []

    def recorded(run):
        asked.append(run)
        graph = parts.experiment()
        graph.evaluations["a/b.c"] = 3
        return graph

    assert taken("run:a1.evaluations['a/b.c']", recorded=recorded) == (3,)
    assert asked == ["a1"]


def test_a_class_may_have_the_word_itself():
    assert taken("run:last.model", edited.Start) is None
    assert taken("@run:last.steps", edited.Start) == (1000,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alias:", "'alias:' names no path; write alias:PATH"),
        ("run:", "'run:' does not name a run and a path; write run:ID.PATH, as run:last.model"),
        ("run:last", "'run:last' does not name a run and a path"),
        ("@run:.model", "'@run:.model' does not name a run and a path"),
        (
            "run:last.modle",
            "run:last.modle: does not exist; did you mean run:last.mode or run:last",
        ),
    ],
)
def test_what_cannot_be_taken(text, message):
    with pytest.raises(Unreadable) as caught:
        taken(text)
    assert str(caught.value).startswith(message)


def test_where_there_are_no_runs():
    with pytest.raises(Unreadable, match="no runs are known here"):
        taken("run:last.model", recorded=None)
