from __future__ import annotations

import threading

import pytest

from luthier.records import Goodput, Piece


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
    with goodput.span("step"):
        clock.now += 3
        with goodput.span("evaluate"):
            clock.now += 2
        clock.now += 1
    clock.now += 100  # outside of any span
    with goodput.span("save"):
        clock.now += 4
    assert goodput.seconds() == {"step": 4.0, "evaluate": 2.0, "save": 4.0}
    assert goodput.summary() == {
        "goodput/step_seconds": 4.0,
        "goodput/evaluate_seconds": 2.0,
        "goodput/save_seconds": 4.0,
        "goodput/fraction": 0.4,
    }


def test_time_measured_elsewhere_is_taken_from_the_open_span(clock):
    goodput = Goodput(clock)
    with goodput.span("step"):
        clock.now += 5
        goodput.add("data_wait", 2)
    assert goodput.seconds() == {"data_wait": 2, "step": 3.0}


def test_an_exception_ends_the_span(clock):
    goodput = Goodput(clock)

    def fail():
        clock.now += 1
        raise KeyError

    with pytest.raises(KeyError), goodput.span("step"):
        fail()
    clock.now += 1
    assert goodput.seconds() == {"step": 1.0}


def test_nothing_measured_has_no_summary():
    assert Goodput().summary() == {}
    assert Goodput().pieces() == []


def test_pieces_end_where_spans_do_and_where_they_are_asked_for(clock):
    goodput = Goodput(clock)
    clock.now = 10.0
    goodput.add("init", 4.0)
    goodput.reached(100)
    with goodput.span("step"):
        for step in range(101, 104):
            clock.now += 2
            goodput.add("data_wait", 0.5)
            goodput.reached(step)
        with goodput.span("save"):
            clock.now += 1
        clock.now += 3
        assert goodput.pieces() == [
            Piece(6.0, 10.0, 0, 0, {"init": 4.0}),
            Piece(10.0, 16.0, 100, 103, {"data_wait": 1.5, "step": 4.5}),
            Piece(16.0, 17.0, 103, 103, {"save": 1.0}),
            Piece(17.0, 20.0, 103, 103, {"step": 3.0}),
        ]
        clock.now += 1
        goodput.reached(104)
    assert goodput.pieces() == [Piece(20.0, 21.0, 103, 104, {"step": 1.0})]
    assert goodput.pieces() == []


def test_another_thread_may_cut_at_any_time():
    goodput, over, found = Goodput(), threading.Event(), []

    def cut():
        while not over.is_set():
            found.extend(goodput.pieces())

    thread = threading.Thread(target=cut)
    thread.start()
    with goodput.span("step"):
        for step in range(2000):
            goodput.add("data_wait", 1e-9)
            goodput.reached(step)
            if step % 10 == 0:
                with goodput.span("save"):
                    pass
    over.set()
    thread.join()
    found += goodput.pieces()
    for kind, seconds in goodput.seconds().items():
        assert sum(p.seconds.get(kind, 0.0) for p in found) == pytest.approx(seconds, rel=1e-9)
