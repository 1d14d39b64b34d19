import io
import math

import fiddle as fdl
import simulated_engine as toys

from luthier import study as studies
from luthier.cli import main
from luthier.metrics import Selector
from luthier.study import SliceInfo
from luthier.study.driver import Ledger, ParameterSet, Trial
from luthier.study.views import (
    LiveView,
    StudyStatus,
    best_lines,
    describe,
    ended_line,
    headline,
    lines_of,
    read_status,
)


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
        "trial  state       loss  overrides",
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


def _status_of_trials(values, directions):
    ledger = Ledger()
    for number, found in enumerate(values):
        state = "failed" if found is None else "complete"
        ledger.trials.append(Trial(number, number, state, found))
        ledger.settings.append(ParameterSet(number, (number,), (f"rate={number}",)))
    return StudyStatus("toy", ["loss", "time"][: len(directions)], directions, 9, ledger)


def _best(values, directions):
    return [trial.number for trial in _status_of_trials(values, directions).best()]


def test_the_best_trial_is_the_first_with_the_best_value():
    values = [(3.0,), None, (1.0,), (float("nan"),), (1.0,)]
    assert _best(values, ["lower"]) == [2]
    assert _best(values, ["higher"]) == [0]
    assert _best([None], ["lower"]) == []


def test_with_several_objectives_all_that_none_beats_are_the_best():
    values = [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 3.0), (2.0, 2.5)]
    assert _best(values, ["lower", "lower"]) == [1, 2, 0]
    assert _best(values, ["lower", "higher"]) == [1]


def test_a_study_is_read_from_its_folder(tmp_path):
    budget = fdl.Config(studies.Budget, trials=3)
    study = toys.make_study(directory=str(tmp_path), budget=budget)
    outcome = studies.run(study, packages=toys.PACKAGES, engine=toys.InstantEngine())
    standing = read_status(outcome.directory)
    assert (standing.name, standing.metrics, standing.num_trials) == ("toy", ["held_out/loss"], 3)
    assert standing.ledger.trials == outcome.ledger.trials
    assert standing.driver is None
    assert standing.words(standing.ledger.trials[0]) == "(the baseline)"
    assert standing.words(standing.ledger.trials[1]).startswith("rate=")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def _ledger():
    ledger = Ledger()
    ledger.trials = [
        Trial(0, 0, "complete", (2.0,)),
        Trial(1, 1, "running", slice=1, series={1: 3.0, 2: 1.0}),
        Trial(2, 2),
    ]
    ledger.settings = [ParameterSet(n, (n,), (f"width={n}",)) for n in range(3)]
    return ledger


SLICES = [SliceInfo(0, "cpu:0", 1), SliceInfo(1, "cpu:1", 1)]


def test_without_a_terminal_every_trial_that_ended_is_a_line():
    stream, ledger = io.StringIO(), _ledger()
    with LiveView("toy", ["loss"], ["lower"], 3, stream) as view:
        view.update(ledger, SLICES)
        assert stream.getvalue() == ""  # it ended before this driver began
        ledger.trials[2].state = "failed"
        ledger.notices.append("the source was edited")
        view.update(ledger, SLICES)
        view.update(ledger, SLICES)
        ledger.trials[1].state, ledger.trials[1].values = "complete", (1.0,)
        view.update(ledger, SLICES)
    assert stream.getvalue().splitlines() == [
        "notice: the source was edited",
        "trial 2: failed; width=2",
        "trial 1: complete; loss 1; width=1",
    ]


def test_on_a_terminal_slices_and_the_best_are_a_table():
    stream, ledger = Terminal(), _ledger()
    with LiveView("toy", ["loss"], ["lower"], 3, stream) as view:
        view.update(ledger, SLICES)
        ledger.trials[2].state, ledger.trials[2].values = "complete", (1.5,)
        ledger.trials[1].state, ledger.trials[1].values = "complete", (1.0,)
        view.update(ledger, SLICES)
    shown = stream.getvalue()
    assert "toy: 1 of 3 trials ended" in shown
    assert "█▁" in shown
    assert "toy: 3 of 3 trials ended" in shown
    assert "best" in shown


def test_a_target_that_is_never_reached_is_reported_so_and_ranks_last(tmp_path, capsys):
    def run(target, name):
        loss = fdl.Config(studies.Measured, fdl.Config(Selector, "held_out", "loss"))
        objective = fdl.Config(studies.StepsTo, loss, target)
        study = toys.make_study(name=name, directory=str(tmp_path), objectives=[objective])
        return studies.run(study, packages=toys.PACKAGES, engine=toys.InstantEngine()).directory

    some, none = run(0.7, "some"), run(0.001, "none")
    status = read_status(some)
    unreached = {t.number for t in status.ledger.trials if t.values == (math.inf,)}
    (best,) = status.best()
    assert 0 < len(unreached) < 12
    assert best.number not in unreached
    lines = list(lines_of(status))
    assert sum(" not reached " in line for line in lines) == len(unreached)
    assert not any("inf" in line.split() for line in lines)
    ranked = [row["trial"] for row in studies.load(str(some)).sorted(status.metrics[0])]
    assert set(ranked[-len(unreached) :]) == unreached

    status = read_status(none)
    assert status.best() == []
    assert studies.load(str(none)).best == []
    line = "no complete trial reached held_out/loss<=0.001"
    assert list(lines_of(status))[-1] == line
    assert list(best_lines(status)) == [line]
    ended = ended_line(status, status.ledger.trials[0])
    assert ended.startswith("trial 0: complete; steps_to(held_out/loss<=0.001) not reached; ")
    page = describe(none)
    assert (page["best"], page["why_no_best"]) == ([], line)
    assert {tuple(trial["values"]) for trial in page["trials"]} == {("not reached",)}
    assert main(["sweep", "best", str(none)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"luthier: {none}: {line}; `luthier sweep show {none}` lists its trials"
    ]


def test_why_no_trial_is_the_best():
    standing = _standing()
    first = standing.ledger.trials[0]
    for state, values, violations, why in [
        ("pruned", (2.0,), (), "no trial is complete"),
        ("complete", (2.0,), (0.5,), "no complete trial meets the constraints"),
        ("complete", (math.inf,), (), "no complete trial has a finite loss"),
    ]:
        first.state, first.values, first.violations = state, values, violations
        assert standing.best() == []
        assert standing.why_no_best() == why
