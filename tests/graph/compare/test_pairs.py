from __future__ import annotations

from graph_toys import compared

from luthier.graph import compare


def test_the_tree_of_what_belongs_together():
    a, b = compared.insert_at_0()
    root = compare.compare(compare.document(a), compare.document(b)).root
    (listed,) = root.below
    assert [(pair.path_a, pair.path_b) for pair in listed.below] == [
        ("", "other[0]"),
        ("other[0]", "other[1]"),
        ("other[1]", "other[2]"),
        ("other[2]", "other[3]"),
    ]
    assert [draft.kind for draft in listed.below[0].changes] == ["added"]
