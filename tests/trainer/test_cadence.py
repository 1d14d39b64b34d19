import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.durations import Epochs, Progress, Seconds, Steps, Tokens
from luthier.trainer import is_due, is_over


@pytest.mark.parametrize(
    ("every", "before", "now", "due"),
    [
        (None, Progress(9), Progress(10), False),
        (Steps(10), Progress(9), Progress(10), True),
        (Steps(10), Progress(10), Progress(11), False),
        (Steps(1), Progress(10), Progress(11), True),
        (Tokens(1000), Progress(1, 900), Progress(2, 1100), True),
        (Tokens(1000), Progress(1, 1000), Progress(2, 1999), False),
        (Epochs(0.5), Progress(1, 0, 0.4), Progress(2, 0, 0.6), True),
        (Seconds(60), Progress(1, 0, 0, 59.9), Progress(2, 0, 0, 200), True),
        (Seconds(60), Progress(1, 0, 0, 200), Progress(2, 0, 0, 239), False),
    ],
)
def test_a_duration_is_due_where_a_multiple_is_crossed(every, before, now, due):
    assert is_due(every, before, now) is due


@given(st.integers(1, 50), st.integers(1, 300))
def test_steps_are_due_at_every_multiple_and_nowhere_else(interval, last):
    due = [s for s in range(1, last + 1) if is_due(Steps(interval), Progress(s - 1), Progress(s))]
    assert due == list(range(interval, last + 1, interval))


@pytest.mark.full
def test_a_stop_is_over_at_its_count():
    assert not is_over(None, Progress(10**9))
    assert not is_over(Tokens(100), Progress(1, 99))
    assert is_over(Tokens(100), Progress(1, 100))
    assert is_over(Seconds(1.5), Progress(seconds=2.0))
