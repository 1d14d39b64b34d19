from __future__ import annotations

import pytest

from luthier.view.diff import terminal


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        ("**.name", ["name", "a.name", "a.b[0].name", "a.name.x"], ["named", "a.names"]),
        ("records", ["records", "records.wandb", "records[0]"], ["recordsx", "a.records"]),
        ("model.*.dim", ["model.mlp.dim"], ["model.a.b.dim", "model.dim", "model.a[0].dim"]),
        ("layers[*].dropout", ["layers[0].dropout", "layers[12].dropout"], ["layers.dropout"]),
        ("a.**", ["a.b", "a.b.c"], ["a", "b"]),
        ("table['a.b']", ["table['a.b']"], ["table['axb']"]),
    ],
)
def test_patterns(pattern, taken, left):
    found = terminal.pattern_of(pattern)
    assert [path for path in taken if not found.fullmatch(path)] == []
    assert [path for path in left if found.fullmatch(path)] == []


def _change(kind, path, effective=True, before=""):
    override = f"{path}=1" if kind == "changed" else None
    return {
        "kind": kind,
        "path": path,
        "path_before": before,
        "effective": effective,
        "override": override,
    }


def _comparison():
    changes = [
        _change("changed", "a"),
        _change("class", "b"),
        _change("set", "c.name", effective=False),
        _change("moved", "d", before="e"),
    ]
    rows = [{"path": change["path"], "change": i} for i, change in enumerate(changes)]
    return {
        "changes": changes,
        "rows": [*rows, {"path": "same", "change": None}],
        "patch": "def",
        "overrides": ["a=1"],
        "unsayable": [{"path": "b", "reason": "x"}],
    }


@pytest.mark.parametrize(
    ("only", "paths"),
    [("changed", ["a", "b", "d"]), ("values", ["a", "c.name"]), ("structure", ["b", "d"])],
)
def test_only(only, paths):
    found = terminal.chosen(_comparison(), only)
    assert [change["path"] for change in found["changes"]] == paths
    assert [
        found["changes"][row["change"]]["path"]
        for row in found["rows"]
        if row["change"] is not None
    ] == paths
    assert len(found["rows"]) == 5
    assert found["patch"] is None
    assert found["overrides"] == (["a=1"] if "a" in paths else [])
    assert bool(found["unsayable"]) == ("b" in paths)


def test_ignored_are_both_places_of_what_moved():
    found = terminal.chosen(_comparison(), ignore=["**.name", "e"])
    assert [change["path"] for change in found["changes"]] == ["a", "b"]


def test_all_is_all():
    assert terminal.chosen(_comparison()) == _comparison()
