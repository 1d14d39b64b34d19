from __future__ import annotations

from luthier.view.diff import terminal
from luthier.view.diff.matrix import matrix, table


def _change(path, before, after, kind="changed"):
    return {
        "kind": kind,
        "path": path,
        "path_before": "",
        "before": str(before),
        "after": str(after),
        "value_before": before,
        "value_after": after,
        "told": f"{before} -> {after}",
    }


COLUMNS = [{"title": f"trial {i}", "state": "complete" if i else "", "link": ""} for i in range(3)]
COMPARISONS = [
    {"changes": [_change("optimizer.b2", 0.98, 0.9)]},
    {"changes": [_change("optimizer.b2", 0.98, 0.5), _change("tied", True, False)]},
]
OBJECTIVES = [{"name": "held_out/loss", "values": [2.0, 1.5, None], "direction": "lower"}]


def test_rows_are_what_varies():
    found = matrix("2 against trial 0", COLUMNS, COMPARISONS, OBJECTIVES)
    assert found["rows"] == [
        {"path": "optimizer.b2", "texts": ["0.98", "0.9", "0.5"], "values": [0.98, 0.9, 0.5]},
        {"path": "tied", "texts": ["True", "True", "False"], "values": [None, None, None]},
    ]
    assert (found["version"], found["title"]) == (1, "2 against trial 0")
    assert found["objectives"] == OBJECTIVES


def test_sharing_and_several_changes_of_a_place_are_told():
    changes = [_change("a", 1, 2), _change("a", 0, 0, kind="tags")]
    (row,) = matrix("", COLUMNS[:2], [{"changes": changes}])["rows"]
    assert row["texts"] == ["1", "1 -> 2; 0 -> 0"]
    assert row["values"] == [1, None]


def test_the_table():
    found = matrix("2 against trial 0", COLUMNS, COMPARISONS, OBJECTIVES)
    drawn = terminal.rendered(table(found, 80)).splitlines()
    assert drawn == [
        "2 against trial 0",
        "  A  trial 0",
        "  B  trial 1  (complete)",
        "  C  trial 2  (complete)",
        "",
        "                          A    B      C",
        "held_out/loss (lower)     2  1.5",
        "optimizer.b2           0.98  0.9    0.5",
        "tied                   True    .  False",
    ]


def test_columns_that_do_not_fit_stand_below():
    found = matrix("", COLUMNS, COMPARISONS)
    drawn = terminal.rendered(table(found, 24)).splitlines()
    assert [line.split() for line in drawn[5:]] == [
        ["A", "B"],
        ["optimizer.b2", "0.98", "0.9"],
        ["tied", "True", "."],
        [],
        ["C"],
        ["optimizer.b2", "0.5"],
        ["tied", "False"],
    ]
    assert max(map(len, drawn[5:])) <= 24


def test_nothing_varies():
    drawn = terminal.rendered(table(matrix("x", COLUMNS, [{"changes": []}] * 2), 80))
    assert drawn.splitlines()[-1] == "nothing differs"
