from __future__ import annotations

import pytest

from luthier.errors import OverrideError
from luthier.graph.formats.config_dict.renames import Renames, read_renames


def _targets(table, *key):
    return Renames([(table, "here")]).targets(key)


def test_a_key_means_the_path_of_its_own_name():
    assert _targets({}, "a", "b") == [("a", "b")]


def test_the_longest_key_that_is_renamed_counts():
    table = {"model": "task.model", "model.dim": "width", "log": False, "size": ["a.b", "c[0]"]}
    assert _targets(table, "model", "depth") == [("task", "model", "depth")]
    assert _targets(table, "model", "dim") == [("width",)]
    assert _targets(table, "log", "every") == []
    assert _targets(table, "size") == [("a", "b"), ("c", 0)]


def test_nested_tables_and_later_tables():
    renames = Renames([({"a": {"b": "x"}, "c": "y"}, "first"), ({"a.b": "z"}, "second")])
    assert renames.targets(("a", "b")) == [("z",)]
    assert renames.has_below(("a",))
    assert not renames.has_below(("c",))


def test_all_that_is_wrong_with_a_table_is_told_at_once():
    with pytest.raises(OverrideError) as caught:
        Renames([({"a": "x y", "b": 3, "c": []}, "RENAMES of it.py")])
    assert str(caught.value).splitlines() == [
        "'x y' is not a path; write it like a.b[0]['c'] [set by RENAMES of it.py: a]",
        "3 is no path of the graph, no list of paths, and not false [set by RENAMES of it.py: b]",
        "[] is no path of the graph, no list of paths, and not false [set by RENAMES of it.py: c]",
    ]


def test_keys_that_are_not_there_are_told_with_the_nearest():
    (problem,) = Renames([({"optimizer.lr": "x"}, "here")]).unused([("optimiser", "lr"), ("b",)])
    assert str(problem) == (
        "optimizer.lr is renamed, but the ConfigDict has no such key [set by here: optimizer.lr]; "
        "did you mean optimiser.lr?"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a = ", "cannot read the renames in "),
        (b"\xff", "are not text in UTF-8"),
        (None, "cannot read the file .*: No such file or directory"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, said):
    file = tmp_path / "renames.toml"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(OverrideError, match=said):
        read_renames(str(file))
