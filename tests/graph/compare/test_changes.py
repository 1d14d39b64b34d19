"""Pairs by hand, with what differs and the words for it (pairs_by_hand.txt)."""

from __future__ import annotations

import json
import pathlib

import fiddle as fdl
import pytest
from graph_toys import compared, parts, recorded

from luthier.graph import apply, compare, diff, equal, history_record, to_dict, to_json


def test_numbers_have_a_ratio_and_a_difference():
    change = compare.Change("changed", "a", values=(2, 3.0))
    assert (change.ratio, change.difference) == (1.5, 1.0)
    change = compare.Change("changed", "a", values=(0, 3))
    assert (change.ratio, change.difference) == (None, 3)
    for before, after in ((True, 1), (None, 1), ("a", 1), (1, [2])):
        change = compare.Change("changed", "a", values=(before, after))
        assert (change.ratio, change.difference) == (None, None)
    change = compare.Change("changed", "a", values=(2, 10**400))
    assert (change.ratio, change.difference) == (None, 10**400 - 2)


def test_a_change_is_one_line():
    moved = compare.Change("moved", "b", "a", origins=("", "x.py:3"), summary="Mlp")
    assert str(moved) == "> b (was a): Mlp  [x.py:3]"
    assert str(compare.Change("changed", "", summary="A -> B")) == "~ the root: A -> B"


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
        numbers = {row["change"] for row in data["rows"]} - {None}
        assert numbers == set(range(len(data["changes"]))), make.__name__


GOLDEN = pathlib.Path(__file__).with_name("pairs_by_hand.txt").read_text(encoding="utf-8")
EXPECTED = {
    name.strip(): text.rstrip("\n")
    for name, _, text in (part.partition("\n") for part in GOLDEN.split("## ")[1:])
}


def read(graph, source="config.json"):
    values, history = json.dumps(to_dict(graph)), json.dumps(history_record(graph), default=str)
    return compare.read(to_json(graph), source, history=history, values=values)


def described(comparison):
    """The changes without origins, with the override of each (`$`) or why there is none (`!`)."""
    found, lines = compare.overrides_of(comparison, ("graph_toys",)), []
    for index, change in enumerate(comparison.changes):
        lines.append(str(change).split("  [")[0] + ("" if change.effective else "  (no effect)"))
        if change.ratio is not None:
            lines.append(f"    {change.ratio:g} times, {change.difference:+g}")
        override = found.by_change.get(index)
        lines.append(f"    $ {override}" if override else f"    ! {found.reasons[index]}")
    return "\n".join(lines)


def test_every_pair_has_its_golden():
    assert list(EXPECTED) == [make.__name__ for make in compared.PAIRS]
    assert len(EXPECTED) >= 20


@pytest.mark.parametrize("make", compared.PAIRS, ids=lambda make: make.__name__)
def test_pairs_by_hand(make):
    a, b = make()
    assert (
        described(compare.compare(compare.document(a), compare.document(b)))
        == EXPECTED[make.__name__]
    )
    assert described(compare.compare(read(a), read(b))) == EXPECTED[make.__name__]
    assert equal(a, make()[0])


@pytest.mark.parametrize("make", compared.PAIRS, ids=lambda make: make.__name__)
def test_mixed_pairs_of_a_record_and_a_live_graph(make):
    a, b = make()
    for one, other in ((read(a), compare.document(b)), (compare.document(a), read(b))):
        mixed = [str(change).split("  [")[0] for change in compare.compare(one, other).changes]
        expected = [line for line in EXPECTED[make.__name__].splitlines() if line[0] != " "]
        assert mixed == [line.removesuffix("  (no effect)") for line in expected]


def test_equal_documents():
    a = read(recorded.everything())
    comparison = compare.compare(a, compare.document(recorded.everything()))
    assert comparison.changes == []
    assert a.fingerprint == comparison.b.fingerprint


def test_a_default_that_moved_between_versions():
    graph = compared.part(size=compared.mlp(hidden=64))
    values = to_dict(graph)
    old = json.loads(json.dumps(values))
    old["size"]["dropout"] = 0.5  # was 0.5 in that version
    old["size"]["bias"] = True  # was there in that version
    del old["size"]["dtype"]  # was not there
    before = compare.read(to_json(graph), "old", values=json.dumps(old))
    for after in (read(graph), compare.document(graph)):
        changes = compare.compare(before, after).changes
        assert [(change.kind, str(change)) for change in changes] == [
            ("default", "~ size.bias: True -> no default (the default moved; set in neither)"),
            ("default", "~ size.dropout: 0.5 -> 0.0 (the default moved; set in neither)"),
            ("default", "~ size.dtype: no default -> None (the default moved; set in neither)"),
        ]
        assert [change.difference for change in changes] == [None, -0.5, None]
        assert all(change.effective for change in changes)
    unknown = compare.read(to_json(graph), "old")
    assert compare.compare(unknown, read(graph)).changes == []


def test_a_value_is_reported_against_the_default_of_its_own_version():
    a, b = compared.part(), compared.part(rate=0.5)
    old = to_dict(a) | {"rate": 0.5}
    before = compare.read(to_json(a), values=json.dumps(old))
    (change,) = compare.compare(before, compare.document(b)).changes
    assert (change.kind, change.before, change.after) == ("set", "0.5", "0.5")
    assert not change.effective
    before = compare.read(to_json(a))
    (change,) = compare.compare(before, compare.document(b)).changes
    assert (change.kind, change.before, change.after) == ("added", None, "0.5")


def test_both_origins_are_reported():
    a = apply(parts.experiment(), ["optimizer.b2=0.5", "model.layers[0].hidden=3"])
    b = apply(parts.experiment(), ["steps=7", "optimizer.b2=0.7", "model.layers[2].hidden=4"])
    found = []
    for one, other in ((compare.document(a), compare.document(b)), (read(a), read(b))):
        changes = compare.compare(one, other).changes
        found.append([(c.path, c.origin_before, c.origin_after) for c in changes])
    assert found[0] == found[1]
    first, second, third = found[0]
    hidden = "argument 2: model.layers[0].hidden=3", "argument 3: model.layers[2].hidden=4"
    assert first == ("model.layers[0].hidden", *hidden)
    both = "argument 1: optimizer.b2=0.5", "argument 2: optimizer.b2=0.7"
    assert second == ("optimizer.b2", *both)
    assert third == ("steps", "", "argument 1: steps=7")


def test_templates_share_their_settings():
    template, other = (fdl.Partial(parts.Mlp, hidden=1) for _ in range(2))
    a = compared.part(size=template, rate=other)
    b = compared.part(size=template, rate=template)
    (change,) = diff(a, b)
    assert change.summary == "now shares its settings with size"
    assert not change.is_effective


def test_values_are_plain_json_and_nodes_have_none():
    a = compared.part(size=compared.mlp(), rate=(1, parts.relu), other={"a": float("inf")})
    b = compared.part(size=3, rate=[1.5], other={"a": float("nan")})
    changes = compare.compare(compare.document(a), compare.document(b)).changes
    assert [(change.value_before, change.value_after) for change in changes] == [
        (None, 3),
        ([1, "graph_toys.parts.relu"], [1.5]),
        ("inf", "nan"),
    ]


def test_tied_weights_are_reported_of_live_nodes():
    class Tied:
        TIES = "embed"

    (change,) = diff(compared.part(size=1), compared.part(size=fdl.Config(Tied)))
    assert change.summary.endswith("Tied() (weights tied to embed)")
