from __future__ import annotations

from graph_toys import compared, parts

from luthier.graph import compare


def rows(a, b):
    comparison = compare.compare(compare.document(a), compare.document(b))
    return [
        (" " * row.depth + row.name, row.before, row.after, row.change)
        for row in compare.rows_of(comparison)
    ]


def test_a_list_insert():
    a, b = compared.insert_at_0()
    assert rows(a, b) == [
        ("", "graph_toys.recorded.Part", "graph_toys.recorded.Part", None),
        (" other", "list", "list", None),
        ("  [0]", None, "graph_toys.parts.Mlp", 0),
        ("   hidden", None, "32", 0),
        ("  [1]", "graph_toys.parts.Mlp", "graph_toys.parts.Mlp", None),
        ("   hidden", "64", "64", None),
        ("  [2]", "graph_toys.parts.Mlp", "graph_toys.parts.Mlp", None),
        ("   hidden", "128", "128", None),
        ("  [3]", "graph_toys.parts.Mlp", "graph_toys.parts.Mlp", None),
        ("   hidden", "256", "256", None),
    ]


def test_what_is_shared_is_written_out_once():
    a, b = compared.tie()
    assert rows(a, b)[1:] == [
        (" size", "graph_toys.compared.Embed", "graph_toys.compared.Embed", None),
        ("  dim", "16", "16", None),
        (" other", "graph_toys.compared.Head", "graph_toys.compared.Head", None),
        ("  embed", "graph_toys.compared.Embed", "same as size", 0),
        ("   dim", "16", "16", None),
    ]


def test_a_swapped_class_has_the_dropped_and_the_new_arguments():
    a, b = compared.swap_a_class()
    assert rows(a, b)[1:] == [
        (" other", "graph_toys.parts.Mlp", "graph_toys.parts.GatedMlp", 0),
        ("  hidden", "64", "64", None),
        ("  dim", "8", "16", 1),
        ("  activation", "graph_toys.parts.relu", None, 0),
        ("  gate", None, "'gelu'", 0),
    ]


def test_tags_defaults_and_moves():
    assert rows(*compared.tags())[1:] == [
        (" size (tags)", "#graph_toys.recorded.Tagged", "#graph_toys.parts.SpecialRate", 0),
        (" rate (tags)", "none", "#graph_toys.recorded.Tagged", 1),
        (" size", "1", "1", None),
        (" rate", "2", "2", None),
    ]
    assert rows(*compared.set_to_its_default())[1:] == [
        (" size", "3", "3", 0),
        (" rate", "0.1", "0.2", 1),
    ]
    assert rows(*compared.reset())[1:] == [(" size", "5", "3", 0), (" rate", "0.1", "0.1", 1)]
    moved = rows(*compared.move_a_sub_graph())
    assert [row for row in moved if row[3] == 0 and "Mlp" in f"{row[1]}{row[2]}"] == [
        ("  encoder", "graph_toys.parts.Mlp", None, 0),
        ("  tower", None, "graph_toys.parts.Mlp", 0),
    ]


def test_containers_of_values_are_one_row_where_nothing_differs():
    a, b = (compared.part(size={"a": [1, 2]}, other={"a": [1, n]}) for n in (2, 3))
    assert rows(a, b)[1:] == [
        (" size", "{'a': [1, 2]}", "{'a': [1, 2]}", None),
        (" other", "dict", "dict", None),
        ("  a", "list", "list", None),
        ("   [0]", "1", "1", None),
        ("   [1]", "2", "3", 0),
    ]


def test_rows_of_a_graph_with_itself():
    a, b = compare.document(parts.experiment()), compare.document(parts.experiment())
    for row in compare.rows_of(compare.compare(a, b)):
        assert row.change is None
        assert (row.before, row.path_before) == (row.after, row.path)
