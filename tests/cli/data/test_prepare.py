from __future__ import annotations

import pytest

from luthier.cli.commands import data


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (90061, "25:01:01")]
)
def test_clock(seconds, text):
    assert data._clock(seconds) == text


def test_the_time_left_counts_only_shards_made_now(monkeypatch, capsys):
    now = iter([0.0, 5.0, 20.0, 40.0])
    monkeypatch.setattr(data.time, "monotonic", lambda: next(now))
    with data._bar(3, 100) as report:
        report({"documents": 20}, True)
        report({"documents": 40}, False)
        report({"documents": 40}, False)
    assert capsys.readouterr().err.splitlines() == [
        "2 of 3 shards, 60 of 100 documents, 0:20 left",
        "3 of 3 shards, 100 of 100 documents, 0:00 left",
    ]


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with data._live_bar(100) as report:
        report({"documents": 100}, False)
    assert "100/100" in capsys.readouterr().err
