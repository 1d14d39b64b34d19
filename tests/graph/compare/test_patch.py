from __future__ import annotations

import hypothesis
import pytest
from graph_toys import compared
from graph_toys.random_pairs import pairs

from luthier.graph import compare, copy_graph, diff, equal, to_json
from luthier.graph.compare.edits import VARIABLE, Edits

SETTINGS = hypothesis.settings(
    deadline=None, suppress_health_check=list(hypothesis.HealthCheck), max_examples=100
)


def patched(a, source):
    module: dict = {}
    exec(source, module)
    return module["patch"](copy_graph(a))


def check(a, b):
    for make_a, make_b in ((compare.document, compare.document), (read, read)):
        comparison = compare.compare(make_a(a), make_b(b))
        source = compare.patch_of(comparison)
        assert equal(patched(a, source), b), source
        assert (comparison.changes == []) == equal(a, b)
    assert (diff(a, b) == []) == equal(a, b)


def read(graph):
    return compare.read(to_json(graph))


@pytest.mark.full
@SETTINGS
@hypothesis.given(pairs())
def test_a_patch_makes_the_second_graph_of_the_first(pair):
    check(*pair)


@pytest.mark.slow
@hypothesis.settings(SETTINGS, max_examples=2000)
@hypothesis.given(pairs())
def test_2000_patches(pair):
    check(*pair)


def edits(a, b):
    found = Edits(compare.compare(compare.document(a), compare.document(b)))
    return found, [(edit.form, edit.part, edit.data) for edit in found.edits]


def test_an_insert_is_one_edit():
    _, found = edits(*compared.insert_at_0())
    new = {"config": "graph_toys.parts.Mlp", "arguments": {"hidden": 32}}
    assert found == [("insert", 0, new)]


def test_a_move_takes_what_is_there():
    made, found = edits(*compared.move_a_sub_graph())
    (number,) = made.captured
    assert found == [("del", "encoder", None), ("set", "tower", {VARIABLE: number})]
    assert made.parts(made.captured[number]) == ("size", "encoder")


def test_what_is_inside_is_changed_first():
    a, b = compared.nested_lists_of_nodes()
    _, found = edits(a, b)
    assert [(form, part) for form, part, _ in found] == [("insert", 1), ("set", "hidden")]


def test_another_root():
    made, found = edits(*compared.another_root())
    assert (found, made.is_root_kept) == ([], False)
    assert made.root == {"config": "graph_toys.parts.Layer", "arguments": {"dim": 1}}


def test_fresh_data_has_no_variables():
    a, b = compared.wrap()
    made, _ = edits(a, b)
    (_, child) = made.b.parts[0]
    assert VARIABLE in made.data(child)["arguments"]["inner"]
    assert made.fresh(child)["arguments"]["inner"]["arguments"] == {"hidden": 64}
    tied, _ = edits(*compared.tie())
    assert tied.fresh(tied.b) is None
