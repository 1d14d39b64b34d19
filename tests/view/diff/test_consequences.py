from __future__ import annotations

import pytest

from luthier.view.diff import terminal
from luthier.view.diff.terminal import consequences, formatted


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
