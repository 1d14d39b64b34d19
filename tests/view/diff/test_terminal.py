from __future__ import annotations

import pytest

from luthier.view.diff import terminal


def _change(kind, path, told, **fields):
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
        "told": told,
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


def test_why_tells_what_set_both_sides():
    lines = _drawn(terminal.difference(COMPARISON, why=True))
    start = lines.index("│   ├── ~ dim: 4 -> 8 (x2) (shared as dim)")
    assert lines[start + 1 : start + 3] == [
        "│   │   ├── - set by x.py:3",
        "│   │   └── + set by argument 1: model.dim=8",
    ]


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
