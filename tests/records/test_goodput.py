from __future__ import annotations

import pytest

from luthier.records.goodput import Goodput


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_inner_spans_are_not_counted_in_outer_ones(clock):
    goodput = Goodput(clock)
    with goodput.span("train"):
        clock.now += 3
        with goodput.span("evaluate"):
            clock.now += 2
        clock.now += 1
    clock.now += 100  # outside of any span
    with goodput.span("save"):
        clock.now += 4
    assert goodput.seconds() == {"train": 4.0, "evaluate": 2.0, "save": 4.0}
    assert goodput.summary() == {
        "goodput/train_seconds": 4.0,
        "goodput/evaluate_seconds": 2.0,
        "goodput/save_seconds": 4.0,
        "goodput/fraction": 0.4,
    }


def test_time_measured_elsewhere_is_taken_from_the_open_span(clock):
    goodput = Goodput(clock)
    with goodput.span("train"):
        clock.now += 5
        goodput.add("data_wait", 2)
    assert goodput.seconds() == {"data_wait": 2, "train": 3.0}


def test_an_exception_ends_the_span(clock):
    goodput = Goodput(clock)

    def fail():
        clock.now += 1
        raise KeyError

    with pytest.raises(KeyError), goodput.span("train"):
        fail()
    clock.now += 1
    assert goodput.seconds() == {"train": 1.0}


def test_earlier_processes_are_added(clock):
    goodput = Goodput(clock)
    goodput.restore({"train": 10.0, "init": 1.0})
    with goodput.span("train"):
        clock.now += 1
    assert goodput.seconds() == {"train": 11.0, "init": 1.0}


def test_nothing_measured_has_no_summary():
    assert Goodput().summary() == {}
