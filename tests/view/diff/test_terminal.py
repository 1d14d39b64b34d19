from __future__ import annotations

import pytest

from luthier.view.diff import terminal
from luthier.view.diff.terminal import consequences, formatted


def _change(kind, path, summary, **fields):
    return {
        "kind": kind,
        "path": path,
        "path_before": "",
        "before": None,
        "after": None,
        "ratio": None,
        "difference": None,
        "origin_before": "",
        "origin_after": "",
        "effective": True,
        "told": summary,
        **fields,
    }


COMPARISON = {
    "sides": [{"title": "a", "detail": ""}, {"title": "b", "detail": "run x/1"}],
    "changes": [
        _change(
            "changed",
            "model.dim",
            "4 -> 8 (shared as dim)",
            before="4",
            after="8",
            ratio=2.0,
            difference=4,
            origin_before="x.py:3",
            origin_after="argument 1: model.dim=8",
        ),
        _change("added", "model.layers[1]", "pkg.Mlp(dim=3)"),
        _change("set", "model.layers[0].bias", "True -> True", effective=False),
        _change("removed", "data", "pkg.Data()"),
        _change("shared", "head", "is now the same as model.table"),
        _change("moved", "tail.norm", "moved", path_before="norm"),
    ],
}


def _drawn(content, **settings):
    return terminal.rendered(content, **settings).splitlines()


def test_changes_stand_in_a_tree_of_the_graph():
    assert _drawn(terminal.difference(COMPARISON)) == [
        "- a",
        "+ b  (run x/1)",
        "6 changes: 1 changed, 1 set, 1 added, 1 removed, 1 moved, 1 shared",
        "├── model",
        "│   ├── ~ dim: 4 -> 8 (x2) (shared as dim)",
        "│   └── layers",
        "│       ├── + [1]: pkg.Mlp(dim=3)",
        "│       └── ~ [0].bias: True -> True  (no effect)",
        "├── - data: pkg.Data()",
        "├── = head: is now the same as model.table",
        "└── > tail.norm (was norm): moved",
    ]


def test_why_shows_the_origins_of_both_sides():
    lines = _drawn(terminal.difference(COMPARISON, why=True))
    start = lines.index("│   ├── ~ dim: 4 -> 8 (x2) (shared as dim)")
    assert lines[start + 1 : start + 3] == [
        "│   │   ├── - set by x.py:3",
        "│   │   └── + set by argument 1: model.dim=8",
    ]


def test_another_root_is_a_change_of_the_root():
    change = _change("changed", "", "pkg.Old() -> pkg.New()")
    lines = _drawn(terminal.difference({**COMPARISON, "changes": [change]}))
    assert lines[-1] == "└── ~ the root: pkg.Old() -> pkg.New()"


def test_nothing_is_a_line():
    lines = _drawn(terminal.difference({**COMPARISON, "changes": []}))
    assert lines == ["- a", "+ b  (run x/1)", "nothing differs"]


def test_lines_fit_80_columns_and_are_whole_in_a_pipe():
    change = _change("added", "model.a", ", ".join(f"argument_{i}=1" for i in range(20)))
    content = terminal.difference({**COMPARISON, "changes": [change]})
    narrow = _drawn(content)
    assert max(map(len, narrow)) <= 80
    assert len(narrow) > 6
    assert all(line.startswith("    ") for line in narrow[4:])
    wide = _drawn(content, width=terminal.UNBOUNDED)
    assert len(wide) == 4
    assert wide[3].endswith("argument_19=1")


def test_colour_and_ascii():
    assert "\x1b[" in terminal.rendered(terminal.difference(COMPARISON), colour=True)
    plain = terminal.rendered(terminal.difference(COMPARISON), unicode=False)
    assert plain.isascii()
    assert "\x1b" not in plain


def test_names_are_no_markup():
    change = _change("changed", "a", "'[red]x[/red]' -> ':smile:'")
    lines = _drawn(terminal.difference({**COMPARISON, "changes": [change]}))
    assert lines[-1] == "└── ~ a: '[red]x[/red]' -> ':smile:'"


@pytest.mark.parametrize(
    ("ratio", "difference", "text"),
    [(2.0, 4, "x2"), (0.5, -2, "x0.5"), (None, 3, "+3"), (-1.0, -2, "-2"), (None, None, "")],
)
def test_factors(ratio, difference, text):
    assert terminal.factor_of(ratio, difference) == text


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


def _change_filters(kind, path, effective=True, before=""):
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
        _change_filters("changed", "a"),
        _change_filters("class", "b"),
        _change_filters("set", "c.name", effective=False),
        _change_filters("moved", "d", before="e"),
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


def _quantity(name, group, before, after, unit="", note=""):
    sides = {"before": before, "after": after}
    return {"name": name, "group": group, **sides, "unit": unit, "note": note}


def _chart(title, *curves):
    series = [{"side": side, "name": title, "points": points} for side, points in enumerate(curves)]
    return {"title": title, "series": series}


EFFECTS = {
    "quantities": [
        _quantity("parameters", "parameters", 1000, 2000),
        _quantity("embedding", "parameters", 500, 500),
        _quantity("in all", "each device", 2048, 4096, "bytes", "of 1 x cpu"),
        _quantity("steps", "training", 4, 4),
        _quantity("tokens per step", "training", 64, 64),
        *(_quantity(f"w{i}", "arrays", "float32[1]", None) for i in range(10)),
    ],
    "charts": [
        _chart("learning rate", [[0, 0.0], [9, 1.0]], [[0, 1.0], [9, 0.0]]),
        _chart("loss", [[1, 2.0]], [[1, 2.0]]),
    ],
    "verdicts": [
        {"name": "checkpoint", "text": "no: it does not fit:\n- a: b", "severity": "warn"},
        {"name": "recompile", "text": "no: both compile", "severity": "ok"},
    ],
}


def _lines(**settings):
    content = consequences(EFFECTS, **settings)
    return terminal.rendered(content, width=terminal.UNBOUNDED).splitlines()


def test_what_differs_and_the_totals():
    lines = _lines()
    assert lines[:8] == [
        "effects",
        "  parameters",
        "    parameters  1,000 -> 2,000 (x2)",
        "  each device  (of 1 x cpu)",
        "    in all  2 KiB -> 4 KiB (x2)",
        "  training",
        "    tokens per step  64  (the same)",
        "  arrays",
    ]
    assert lines[8] == "    w0  float32[1] -> none"
    assert lines[16] == "    and 2 more"
    assert lines[-3:] == [
        "  checkpoint  no: it does not fit:",
        "    - a: b",
        "  recompile  no: both compile",
    ]


def test_curves_are_drawn_on_the_same_axes_where_they_differ():
    lines = _lines()
    start = lines.index("  learning rate")
    first, second = lines[start + 1 : start + 3]
    assert first == f"    - {'▁' * 31}█  from 0 to 1, highest 1"
    assert second == f"    + {'█' * 31}▁  from 1 to 0, highest 1"
    assert "  loss" not in lines
    assert "    - from 0 to 1, highest 1" in _lines(unicode=False)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "", "none"),
        ("x", "bytes", "x"),
        (1536, "bytes", "1.5 KiB"),
        (3 << 40, "bytes", "3 TiB"),
        (5.8e9, "FLOPs", "5.8e+09 FLOPs"),
        (1234567, "", "1,234,567"),
    ],
)
def test_quantities_for_reading(value, unit, text):
    assert formatted(value, unit) == text


def test_curves_that_leave_the_numbers_are_drawn_where_there_are_some():
    nan, inf = float("nan"), float("inf")
    charts = [
        _chart("loss", [[0, 0.0], [9, 1.0]], [[0, 1.0], [5, nan], [9, -inf]]),
        _chart("rate", [[0, 0.0], [9, 1e308]], [[0, -1e308], [9, inf]]),
        _chart("none", [[0, nan]], [[0, inf]]),
    ]
    content = consequences(EFFECTS | {"charts": charts})
    lines = terminal.rendered(content, width=terminal.UNBOUNDED).splitlines()
    start = lines.index("  loss")
    assert lines[start + 1].endswith("from 0 to 1, highest 1")
    assert lines[start + 2] == f"    + {'█' * 17}×{'█' * 13}×  from 1 to -inf, highest 1"
    assert lines[start + 4].endswith("from 0 to 1e+308, highest 1e+308")
    assert lines[start + 5] == f"    + {'▁' * 31}×  from -1e+308 to inf, highest -1e+308"
    assert "  none" not in lines
