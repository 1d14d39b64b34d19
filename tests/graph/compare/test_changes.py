from __future__ import annotations

import json

from graph_toys import compared, parts

from luthier.graph import apply, compare
from luthier.graph.compare.changes import Change, line_of


def test_numbers_have_a_ratio_and_a_difference():
    change = Change("changed", "a", values=(2, 3.0))
    assert (change.ratio, change.difference) == (1.5, 1.0)
    change = Change("changed", "a", values=(0, 3))
    assert (change.ratio, change.difference) == (None, 3)
    for before, after in ((True, 1), (None, 1), ("a", 1), (1, [2])):
        change = Change("changed", "a", values=(before, after))
        assert (change.ratio, change.difference) == (None, None)
    change = Change("changed", "a", values=(2, 10**400))
    assert (change.ratio, change.difference) == (None, 10**400 - 2)


def test_a_change_is_one_line():
    assert line_of("moved", "b", "a", "Mlp", "x.py:3") == "> b (was a): Mlp  [x.py:3]"
    assert line_of("changed", "", "", "A -> B", "") == "~ the root: A -> B"


def test_the_json_of_a_comparison():
    a = parts.experiment()
    b = apply(a, ["optimizer.b2=0.5", "model.layers[1].hidden=7"])
    comparison = compare.compare(compare.document(a, "A", "first"), compare.document(b, "B"))
    data = json.loads(json.dumps(compare.to_json(comparison), allow_nan=False))
    assert data["version"] == 1
    assert [(side["title"], side["detail"]) for side in data["sides"]] == [
        ("A", "first"),
        ("B", ""),
    ]
    assert [side["fingerprint"] for side in data["sides"]] == [
        comparison.a.fingerprint,
        comparison.b.fingerprint,
    ]
    hidden, b2 = data["changes"]
    assert b2 == {
        "kind": "changed",
        "path": "optimizer.b2",
        "path_before": "",
        "before": "0.99",
        "after": "0.5",
        "value_before": 0.99,
        "value_after": 0.5,
        "origin_before": b2["origin_before"],
        "origin_after": "argument 1: optimizer.b2=0.5",
        "carried": [],
        "dropped": [],
        "gained": [],
        "same_as": "",
        "shared_as": "",
        "effective": True,
        "told": "0.99 -> 0.5",
        "ratio": 0.5 / 0.99,
        "difference": 0.5 - 0.99,
        "override": "optimizer.b2=0.5",
        "no_override": None,
    }
    assert b2["origin_before"].startswith("tests/graph/importable/graph_toys/parts.py:")
    assert (hidden["kind"], hidden["override"]) == ("set", "model.layers[1].hidden=7")
    assert data["overrides"] == ["model.layers[1].hidden=7", "optimizer.b2=0.5"]
    assert data["unsayable"] == []
    assert "graph.optimizer.b2 = 0.5" in data["patch"]
    shown = [row for row in data["rows"] if row["change"] is not None]
    assert [(row["path"], row["before"], row["after"], row["change"]) for row in shown] == [
        ("model.layers[1].hidden", "32", "7", 0),
        ("optimizer.b2", "0.99", "0.5", 1),
    ]


def test_what_cannot_be_written_as_code_has_no_patch():
    class Local:
        pass

    comparison = compare.compare(
        compare.document(compared.part()), compare.document(compared.part(size=Local()))
    )
    data = compare.to_json(comparison)
    assert data["patch"] is None
    assert data["unsayable"][0]["path"] == "size"
    assert data["unsayable"][0]["reason"].endswith("has no form that code can write")


def test_the_json_of_every_pair_by_hand_is_strict():
    for make in compared.PAIRS:
        a, b = make()
        data = compare.to_json(compare.compare(compare.document(a), compare.document(b)))
        json.dumps(data, allow_nan=False)
        told = {row["change"] for row in data["rows"]} - {None}
        assert told == set(range(len(data["changes"]))), make.__name__
