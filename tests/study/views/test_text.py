from luthier.study.driver.trial_table import Ledger, ParameterSet, Trial
from luthier.study.views.text import StudyStatus, ended_line, headline, lines_of, sparkline


def _standing():
    ledger = Ledger()
    ledger.trials = [
        Trial(0, 0, "complete", (2.0,)),
        Trial(1, 1, "infeasible", reason="too large"),
        Trial(2, 2, "running"),
    ]
    ledger.settings = [ParameterSet(n, (n,), (f"width={n}",)) for n in range(3)]
    ledger.settings[0].words = ()
    ledger.device_seconds = 7200.0
    ledger.notices = ["the source was edited"]
    return StudyStatus("toy", ["loss"], ["lower"], 9, ledger)


def test_a_study_in_lines():
    assert list(lines_of(_standing())) == [
        "toy: 2 of 9 trials ended, 1 running, 1 infeasible, 2 device hours",
        "the source was edited",
        "trial  state       loss  what it sets",
        "0      complete    2     (the baseline)",
        "1      infeasible        width=1  (too large)",
        "2      running           width=2",
        "best:",
        "  trial 0: loss 2; (the baseline)",
    ]


def test_the_newest_trials_are_listed():
    lines = list(lines_of(_standing(), most=1))
    assert lines[2] == "the newest 1 of 3 trials (--all lists them all):"
    assert [line.split()[0] for line in lines[4:5]] == ["2"]
    assert len(list(lines_of(_standing(), most=None))) == 8
    assert list(lines_of(_standing(), most=0))[-2] == "best:"


def test_one_line_for_a_trial_that_ended():
    standing = _standing()
    trials = standing.ledger.trials
    assert ended_line(standing, trials[0]) == "trial 0: complete; loss 2; (the baseline)"
    assert ended_line(standing, trials[1]) == "trial 1: infeasible; too large; width=1"
    assert headline(standing).startswith("toy: 2 of 9 trials ended")


def test_bars_go_from_the_lowest_to_the_highest():
    assert sparkline([1.0, 2.0, 3.0]) == "▁▅█"
    assert sparkline([1.0, float("nan")]) == "▁"
    assert sparkline([]) == ""
    assert len(sparkline(list(range(99)), width=5)) == 5
