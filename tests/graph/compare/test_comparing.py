"""Pairs by hand, with what differs and the words for it (pairs_by_hand.txt)."""

from __future__ import annotations

import json
import pathlib

import pytest
from graph_toys import compared, parts, recorded

from luthier.graph import apply, compare, equal, history_record, to_dict, to_json

GOLDEN = pathlib.Path(__file__).with_name("pairs_by_hand.txt").read_text(encoding="utf-8")
EXPECTED = {
    name.strip(): text.rstrip("\n")
    for name, _, text in (part.partition("\n") for part in GOLDEN.split("## ")[1:])
}


def read(graph, source="config.json"):
    values, history = json.dumps(to_dict(graph)), json.dumps(history_record(graph), default=str)
    return compare.read(to_json(graph), source, history=history, values=values)


def told(comparison):
    """The changes without origins, with the word of each (`$`) or why there is none (`!`)."""
    words, lines = compare.overrides_of(comparison, ("graph_toys",)), []
    for index, change in enumerate(comparison.changes):
        lines.append(str(change).split("  [")[0] + ("" if change.effective else "  (no effect)"))
        if change.ratio is not None:
            lines.append(f"    {change.ratio:g} times, {change.difference:+g}")
        word = words.words.get(index)
        lines.append(f"    $ {word}" if word else f"    ! {words.reasons[index]}")
    return "\n".join(lines)


def test_every_pair_has_its_golden():
    assert list(EXPECTED) == [make.__name__ for make in compared.PAIRS]
    assert len(EXPECTED) >= 20


@pytest.mark.parametrize("make", compared.PAIRS, ids=lambda make: make.__name__)
def test_pairs_by_hand(make):
    a, b = make()
    assert (
        told(compare.compare(compare.document(a), compare.document(b))) == EXPECTED[make.__name__]
    )
    assert told(compare.compare(read(a), read(b))) == EXPECTED[make.__name__]
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


def test_a_value_is_told_against_the_default_of_its_own_version():
    a, b = compared.part(), compared.part(rate=0.5)
    old = to_dict(a) | {"rate": 0.5}
    before = compare.read(to_json(a), values=json.dumps(old))
    (change,) = compare.compare(before, compare.document(b)).changes
    assert (change.kind, change.before, change.after) == ("set", "0.5", "0.5")
    assert not change.effective
    before = compare.read(to_json(a))
    (change,) = compare.compare(before, compare.document(b)).changes
    assert (change.kind, change.before, change.after) == ("added", None, "0.5")


def test_both_origins_are_told():
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
