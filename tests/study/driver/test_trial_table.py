from luthier.study.driver import Ledger


def _follow(*lines):
    ledger = Ledger()
    for line in lines:
        ledger.follow(line)
    return ledger


def _ended(trial, outcome="complete", values=(1.0,), reason=""):
    ended = {"kind": "ended", "trial": trial, "outcome": outcome, "reason": reason}
    return {**ended, "values": values, "device_seconds": 2.0}


ASKED = {"kind": "asked", "setting": 0, "trials": [0, 1], "words": ["rate=1"]}


def _leased(trial, fence):
    return {"kind": "leased", "trial": trial, "slice": 3, "fence": fence, "at": 5.0}


def test_a_trial_is_followed_from_its_lease_to_its_end():
    ledger = _follow(ASKED, _leased(0, 4))
    trial = ledger.trials[0]
    assert (trial.state, trial.slice, trial.fence, ledger.fence) == ("running", 3, 4, 4)
    ledger.follow({"kind": "reported", "trial": 0, "step": 2, "value": 0.5})
    assert trial.series == {2: 0.5}
    ledger.follow(_ended(0))
    assert (trial.state, trial.values, trial.series) == ("complete", (1.0,), None)
    assert ledger.device_seconds == 2.0
    assert (ledger.count("complete"), ledger.count("waiting")) == (1, 1)


def test_a_lost_trial_waits_again_and_deaths_count_only_where_they_are_its_own():
    ledger = _follow(ASKED, _leased(0, 1), {"kind": "lost", "trial": 0, "counts": True})
    assert (ledger.trials[0].state, ledger.trials[0].losses) == ("waiting", 1)
    ledger.follow(_leased(0, 2))
    ledger.follow({"kind": "lost", "trial": 0, "counts": False})
    assert ledger.trials[0].losses == 1


def test_a_setting_is_judged_by_the_mean_of_its_complete_trials():
    ledger = _follow(ASKED, _ended(0, values=(1.0,)))
    assert ledger.outcome_of(ledger.settings[0]) is None
    ledger.follow(_ended(1, values=(3.0,)))
    assert ledger.outcome_of(ledger.settings[0]) == ("complete", (2.0,))


def test_a_setting_without_complete_trials_is_what_its_trials_came_to():
    ledger = _follow(ASKED, _ended(0, "infeasible", None), _ended(1, "pruned", (4.0,)))
    assert ledger.outcome_of(ledger.settings[0]) == ("pruned", (4.0,))


def test_the_first_trial_of_a_fingerprint_is_remembered():
    admitted = {"kind": "admitted", "trial": 0, "mark": "ab"}
    ledger = _follow(ASKED, admitted, {"kind": "admitted", "trial": 1, "copy_of": 0})
    assert ledger.marks == {"ab": 0}
    assert ledger.trials[1].copy_of == 0


def test_notices_and_the_end_are_kept():
    ledger = _follow({"kind": "noted", "notice": "edited"}, {"kind": "closed", "over": True})
    assert (ledger.notices, ledger.is_over) == (["edited"], True)
    ledger.follow({"kind": "opened"})
    assert not ledger.is_over
