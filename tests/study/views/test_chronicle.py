from luthier.study.views.report import Span, timeline_of

SLICE = {"index": 0, "name": "cpu:0", "num_devices": 1}


def _line(kind, at, **fields):
    return {"kind": kind, "at": at, **fields}


def test_trials_stand_on_slices_for_as_long_as_they_ran():
    found = timeline_of(
        [
            _line("opened", 100.0, slices=[SLICE]),
            _line("asked", 100.5, setting=0, trials=[0], assignment={"rate": 0.1}, words=[]),
            _line("leased", 101.0, trial=0, slice=0, fence=1),
            _line("leased", 102.0, trial=1, slice=0, fence=2),
            _line("lost", 103.0, trial=1, reason="signal 9", counts=True),
            _line("leased", 103.5, trial=1, slice=0, fence=3),
            _line("ended", 104.0, trial=0, outcome="complete"),
            _line("noted", 106.0, notice="text"),
        ]
    )
    assert found.spans == [
        Span(0, 0, 1.0, 4.0, "complete"),
        Span(1, 0, 2.0, 3.0, "lost"),
        Span(1, 0, 3.5, 6.0, "running"),
    ]
    assert found.slices == {0: "cpu:0"}
    assert found.assignments == {0: {"rate": 0.1}}
    assert found.seconds == 6.0


def test_time_without_a_driver_does_not_count():
    found = timeline_of(
        [
            _line("noted", 99.0, notice="text"),
            _line("opened", 100.0, slices=[SLICE]),
            _line("closed", 110.0, over=False),
            _line("opened", 9000.0, slices=[SLICE]),
            _line("leased", 9001.0, trial=0, slice=0, fence=1),
            _line("ended", 9003.0, trial=0, outcome="pruned"),
        ]
    )
    assert found.spans == [Span(0, 0, 11.0, 13.0, "pruned")]
    assert found.seconds == 13.0


def test_a_clock_that_is_set_back_makes_no_time_negative():
    found = timeline_of(
        [
            _line("opened", 100.0, slices=[SLICE]),
            _line("leased", 105.0, trial=0, slice=0, fence=1),
            _line("ended", 95.0, trial=0, outcome="complete"),
        ]
    )
    assert found.spans == [Span(0, 0, 5.0, 5.0, "complete")]


def test_a_trial_that_was_refused_was_on_no_slice():
    found = timeline_of([_line("ended", 1.0, trial=0, outcome="infeasible")])
    assert found.spans == []
    assert timeline_of([]).seconds == 0.0
