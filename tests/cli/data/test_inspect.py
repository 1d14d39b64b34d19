from __future__ import annotations

import pytest

from luthier.cli.commands import data


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234, "1,234"), (0.123456, "0.1235"), ("a\n\tb", r"a\n\tb"), ([1, 2], "[1, 2]"), ("é", "é")],
)
def test_cells(value, text):
    assert data._text(value) == text


def test_a_mixture_is_shown(capsys):
    stages = {"planned": [0.75, 0.5], "observed": [0.7501, 0.5]}
    components = [{"name": "web", "rows": 1000, "epochs": 2.5, **stages}]
    report = {
        "describe": {"rows": 1000, "components": {}},
        "mixture": components,
        "spec": {"inputs": {"shape": [8, 16], "dtype": "int32"}},
        "batches": [[{"targets": "[bold]x", "segments": "AAB."}] * 9],
        "lengths": [{"from": 2, "to": 3, "count": 5}],
        "seconds": {"reading": 0.5},
    }
    data._show(report)
    out = capsys.readouterr().out
    for text in ("75.00%", "75.01%", "[bold]x", "AAB.", "the first 8 of 9", "2 to 3", "2.5"):
        assert text in out
