import optuna

from luthier.study.driver.sampling import Suggestion, InMemoryStudy

RATE = {"rate": optuna.distributions.FloatDistribution(0, 1)}


def _choose(trial):
    return {"rate": trial.suggest_float("rate", 0, 1)}


def _fill(past, count, best=()):
    for number in range(count):
        past.restore(number, Suggestion({"rate": number / count}), RATE)
        value = -1.0 if number in best else float(number)
        past.record(number, "complete", (value,), {})


def test_a_past_forgets_all_but_the_best_and_the_newest():
    past = InMemoryStudy(["lower"], most=200)
    _fill(past, 401, best=(3, 7))
    trials = past._study.get_trials(deepcopy=False)
    assert len(trials) == 201  # 200 were kept when the 401st came
    rates = [round(trial.params["rate"] * 401) for trial in trials]
    assert rates == sorted(rates)
    assert {3, 7} <= set(rates)
    assert set(range(301, 401)) <= set(rates)


def test_a_setting_that_runs_is_not_forgotten():
    past = InMemoryStudy(["lower"], most=200)
    past.restore(10_000, Suggestion({"rate": 0.5}), RATE)
    _fill(past, 450)
    past.record(10_000, "complete", (0.25,), {})
    values = [t.values for t in past._study.get_trials(deepcopy=False) if t.values == [0.25]]
    assert len(values) == 1


def test_a_past_without_limit_keeps_all():
    past = InMemoryStudy(["lower"], most=None)
    _fill(past, 450)
    assert len(past._study.get_trials(deepcopy=False)) == 450


def test_what_a_sampler_notes_is_returned_and_taken_back():
    past = InMemoryStudy(["lower"], most=None)
    asked = past.ask(1, optuna.samplers.NSGAIISampler(seed=0), _choose)
    assert asked.notes["trial"]
    again = InMemoryStudy(["lower"], most=None)
    again.restore(1, asked, RATE)
    (trial,) = again._study.get_trials(deepcopy=False)
    assert trial.system_attrs == asked.notes["trial"]
    assert trial.params == asked.assignment


def test_a_setting_that_was_never_asked_is_passed_over():
    past = InMemoryStudy(["lower"], most=None)
    past.record(0, "complete", (1.0,), {})
    assert past._study.get_trials() == []


def test_a_pruned_setting_has_the_last_value_that_it_reported():
    past = InMemoryStudy(["lower"], most=None)
    past.restore(1, Suggestion({"rate": 0.5}), RATE)
    past.record(1, "pruned", (3.0,), {1: 4.0, 2: 3.0})
    (trial,) = past._study.get_trials()
    assert (trial.state.name, trial.value) == ("PRUNED", 3.0)


def test_several_objectives_are_reported_together():
    past = InMemoryStudy(["lower", "higher"], most=None)
    past.restore(1, Suggestion({"rate": 0.5}), RATE)
    past.record(1, "complete", (3.0, 4.0), {})
    (trial,) = past._study.get_trials()
    assert trial.values == [3.0, 4.0]
    assert [direction.name for direction in past._study.directions] == ["MINIMIZE", "MAXIMIZE"]
