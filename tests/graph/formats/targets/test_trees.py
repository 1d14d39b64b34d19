from __future__ import annotations

import pytest

from luthier.errors import RecordError
from luthier.graph.formats.targets.trees import by_name, read_tree, unknown_key


def test_a_text_is_plain_values_with_lines():
    tree = read_tree("a: &x [1, {b: 2}]\nc: *x\n", "it.yaml")
    assert tree.root == {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}
    assert tree.at(("c", 1, "b")) == 2
    assert (tree.lines["a",], tree.lines["c",]) == (1, 2)
    assert tree.origin(("c",)) == "it.yaml:2: c"
    for key in (("d",), ("a", 5), ("a", "b"), ("a", 0, "b")):
        with pytest.raises(KeyError):
            tree.at(key)


def test_aliases_that_stand_for_too_much_are_refused():
    lines = ["a0: &a0 [1, 1]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 20)]
    with pytest.raises(RecordError, match="its aliases expand to more than 100,000 values"):
        read_tree("\n".join(lines), "it.yaml")


def test_arguments_by_position_get_their_names():
    assert by_name("graph_toys.parts.Model", [3, 4], ["graph_toys"]) == {"dim": 3, "layers": 4}
    with pytest.raises(RecordError, match="takes arguments without names"):
        by_name("graph_toys.parts.chain", [3], ["graph_toys"])


def test_a_telling_key_that_is_unknown():
    assert str(unknown_key("_arsg_", ("_args_",))) == (
        "_arsg_ is not a known key; did you mean _args_?"
    )
