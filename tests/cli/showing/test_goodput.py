from __future__ import annotations

import time

import pytest

from luthier.cli import showing
from luthier.records import account_of


def _span(start, end, first, last, **seconds):
    return {
        "kind": "span", "start": start, "end": end, "first": first, "last": last,
        "seconds": seconds,
    }  # fmt: skip


@pytest.fixture
def account():
    """Two processes: one killed after ten steps past its save, one that finished."""
    lines = [
        {"kind": "began", "time": 0.0, "step": 0},
        _span(0, 10, 0, 0, init=10.0),
        _span(10, 20, 0, 0, compile=10.0),
        _span(20, 60, 0, 40, step=38.0, data_wait=2.0),
        _span(60, 62, 40, 40, save=2.0),
        _span(62, 72, 40, 50, step=10.0),
        {"kind": "began", "time": 100.0, "step": 40},
        _span(100, 110, 40, 40, init=10.0),
        _span(110, 160, 40, 90, step=50.0),
        {"kind": "ended", "time": 160.0, "step": 90, "status": "finished"},
    ]
    return account_of(lines)


@pytest.fixture
def utc():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_the_table_the_processes_and_the_chart(account):
    assert showing.account_lines(account, "tiny/ab12") == [
        "tiny/ab12: 0:02:40, 1 restart, goodput 55.0%",
        "",
        "where      time     share",
        "step       0:01:28  55.0%   ████████████████",
        "data wait  2.00 s   1.2%    ▏",
        "save       2.00 s   1.2%    ▏",
        "init       20.00 s  12.5%   ████",
        "compile    10.00 s  6.2%    ██",
        "lost work  10.00 s  6.2%    ██",
        "idle       28.00 s  17.5%   █████",
        "total      0:02:40  100.0%",
        "",
        "process  began                after    from step  to step  ended     ran      lost work",
        "      1  1970-01-01 00:00:00                   0       50  killed    0:01:12  10.00 s",
        "      2  1970-01-01 00:01:40  28.00 s         40       90  finished  0:01:00",
        "",
        "|iiiiccccc#################wsxxxx.............iiiii######################|",
        "# step   w data wait   s save   i init   c compile   x lost work   . idle",
    ]


def test_json_adds_up(account):
    values = showing.account_as_json(account)
    assert values["fraction"] == pytest.approx(88 / 160)
    assert sum(values["seconds"].values()) == pytest.approx(values["total_seconds"])
    assert [process["idle_seconds"] for process in values["processes"]] == [0.0, 28.0]


def test_nothing_recorded():
    assert showing.account_lines(account_of([]), "tiny/ab12") == ["tiny/ab12: no time was recorded"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.004, "0.00 s"), (59.5, "59.50 s"), (60, "0:01:00"), (3661, "1:01:01")]
)
def test_durations(seconds, text):
    assert showing.duration(seconds) == text
