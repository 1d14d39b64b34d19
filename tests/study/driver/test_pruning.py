import optuna

from luthier.study.driver.sampling import Pruning


def _median():
    return optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=0)


def _report(pruning, trial, values, outcome="complete"):
    found = [pruning.report(trial, step, value) for step, value in enumerate(values, 1)]
    pruning.end(trial, outcome, values[-1], {})
    return found


def test_a_trial_that_is_worse_than_the_median_does_not_go_on():
    pruning = Pruning(_median(), "lower", "toy")
    for trial in range(3):
        assert all(_report(pruning, trial, [3.0, 2.0]))
    assert pruning.report(3, 1, 1.0)
    assert not pruning.report(4, 1, 9.0)


def test_the_direction_counts():
    pruning = Pruning(_median(), "higher", "toy")
    for trial in range(3):
        _report(pruning, trial, [3.0, 2.0])
    assert pruning.report(3, 1, 9.0)
    assert not pruning.report(4, 1, 1.0)


def test_trials_that_failed_are_not_compared_with():
    pruning = Pruning(_median(), "lower", "toy")
    for trial in range(3):
        pruning.report(trial, 1, 0.0)
        pruning.end(trial, "failed", None, {})
    pruning.end(7, "infeasible", None, {})
    assert pruning.report(8, 1, 9.0)


def test_a_trial_that_is_read_back_counts_like_one_that_was_followed():
    pruning = Pruning(_median(), "lower", "toy")
    for trial in range(3):
        pruning.end(trial, "complete", 2.0, {1: 3.0, 2: 2.0})
    assert not pruning.report(3, 1, 9.0)


def test_the_oldest_trials_are_forgotten():
    pruning = Pruning(_median(), "lower", "toy", remembered=5)
    pruning.report(100, 1, 1.0)
    for trial in range(12):
        _report(pruning, trial, [3.0, 2.0])
    assert len(pruning._study.get_trials()) < 11
    assert pruning.report(100, 2, 1.0)
    assert not pruning.report(101, 1, 9.0)
