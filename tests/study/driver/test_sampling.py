import dataclasses
import math
import statistics

import fiddle as fdl
import optuna
import pytest
import simulated_engine as toys

from luthier import study as studies
from luthier.study.driver import (
    InMemoryStudy,
    Pruning,
    Suggestion,
    distribution,
    make_suggester,
    seed_of,
)

SPACE = studies.Space({"rate": studies.Log(1e-4, 1e-1), "width": studies.Pow2(8, 256)})
INNER = studies.Space({"optimizer.decay": studies.Uniform(0.5, 0.9)})
CONDITIONAL = studies.Space(
    {
        "rate": studies.Log(1e-4, 1e-1),
        "note": studies.Choice(("a", studies.Option("b", space=INNER))),
    }
)

NEW = studies.Space(
    {
        "rate": studies.LogNormal(-5.0, 1.0),
        "optimizer.momentum": studies.Gaussian(0.9, 0.01),
        "optimizer.rate": studies.Uniform(0.1, 0.7, step=0.1),
        "steps": studies.Int(1, 500, log=True),
    }
)


def _suggester(sampler, space=SPACE, **settings):
    node = studies.sampler(sampler) if isinstance(sampler, str) else sampler
    study = studies.build(toys.make_study(space=space, **settings))
    return make_suggester(dataclasses.replace(study, sampler=node))


def _run(suggester, count, with_results=True):
    found = []
    for number in range(1, count + 1):
        asked = suggester.ask(number)
        found.append(asked)
        if with_results:
            suggester.record(number, "complete", (asked.assignment["rate"],), {})
    return [asked.assignment for asked in found]


@pytest.mark.parametrize("sampler", ["random", "quasi-random", "tpe", "nsga-ii"])
@pytest.mark.parametrize("space", [SPACE, CONDITIONAL])
def test_the_same_past_gives_the_same_suggestions(sampler, space):
    first, second = (_run(_suggester(sampler, space), 20) for _ in range(2))
    assert first == second
    assert len({found["rate"] for found in first}) > 15
    assert _run(_suggester(sampler, space, seed=1), 20) != first or sampler == "quasi-random"


@pytest.mark.parametrize("sampler", ["random", "quasi-random"])
def test_a_sampler_that_does_not_look_back_suggests_the_same_whatever_the_results(sampler):
    informed, uninformed = _suggester(sampler), _suggester(sampler)
    assert not informed.looks_back
    assert _run(informed, 12) == _run(uninformed, 12, with_results=False)


@pytest.mark.parametrize("space", [SPACE, NEW])
@pytest.mark.parametrize("sampler", ["random", "quasi-random", "tpe", "nsga-ii"])
def test_a_suggester_that_is_restored_goes_on_as_if_nothing_had_been(sampler, space):
    whole, begun = _suggester(sampler, space), _suggester(sampler, space)
    expected = _run(whole, 60)[40:]
    restored = _suggester(sampler, space)
    for number in range(1, 41):
        asked = begun.ask(number)
        restored.restore(number, asked)
        for suggester in (begun, restored):
            suggester.record(number, "complete", (asked.assignment["rate"],), {})
    found = []
    for number in range(41, 61):
        asked = restored.ask(number)
        found.append(asked.assignment)
        restored.record(number, "complete", (asked.assignment["rate"],), {})
    assert found == expected


def test_values_of_a_sampler_have_the_distribution_of_their_dimension():
    found = _run(_suggester("random", NEW), 400, with_results=False)
    logs = [math.log(one["rate"]) for one in found]
    assert statistics.fmean(logs) == pytest.approx(-5.0, abs=0.2)
    assert statistics.stdev(logs) == pytest.approx(1.0, abs=0.15)
    momenta = [one["optimizer.momentum"] for one in found]
    assert statistics.fmean(momenta) == pytest.approx(0.9, abs=0.002)
    assert {one["optimizer.rate"] for one in found} == {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}
    steps = sorted(one["steps"] for one in found)
    assert steps[200] == pytest.approx(math.sqrt(500), rel=0.5), "uniform in the logarithm"


def test_a_constraint_moves_a_sampler_away_from_trials_that_violate_it():
    def wide(is_constrained):
        suggester, widths = _suggester("tpe"), []
        for number in range(1, 61):
            asked = suggester.ask(number).assignment
            # Wider is better, and everything above 2**5 violates the constraint.
            violations = ((2 ** asked["width"] - 32) / 32,) if is_constrained else ()
            suggester.record(number, "complete", (-asked["width"],), {}, violations)
            widths.append(asked["width"])
        return sum(width > 5 for width in widths[30:])

    assert wide(False) > 25
    assert wide(True) < 15


def test_a_quasi_random_sequence_covers_the_space_evenly():
    found = _run(_suggester("quasi-random"), 32)
    low = sum(f["rate"] < 10**-2.5 for f in found)
    assert low == 16


def test_a_grid_hands_out_every_point_once_and_ends():
    node = fdl.Config(studies.Grid, resolution=3)
    suggester = _suggester(node)
    found = _run(suggester, 18)
    assert len({tuple(point.items()) for point in found}) == 18
    assert suggester.ask(19) is None


def test_tpe_searches_where_the_values_are_low():
    found = _run(_suggester("tpe"), 60)
    late = sum(f["rate"] < 1e-3 for f in found[40:])
    assert late > 12


def test_tpe_learns_from_what_cannot_run():
    suggester = _suggester("tpe")
    widths = []
    for number in range(1, 61):
        asked = suggester.ask(number)
        widths.append(asked.assignment["width"])
        state = "infeasible" if asked.assignment["width"] > 4 else "complete"
        suggester.record(number, state, None if state == "infeasible" else (1.0,), {})
    assert sum(width > 4 for width in widths[40:]) < 10  # by chance it were 13 of 20


def test_conditional_spaces_make_tpe_look_at_groups():
    suggester = _suggester("tpe", CONDITIONAL)
    sampler = suggester._sampler(1)
    assert (sampler._multivariate, sampler._group) == (True, True)
    assert not _suggester("tpe")._sampler(1)._group


def test_settings_that_failed_or_are_no_number_do_not_stop_a_search():
    suggester = _suggester("tpe")
    for number in range(1, 15):
        suggester.ask(number)
        values = (float("nan"),) if number % 2 else None
        suggester.record(number, "complete" if number % 2 else "failed", values, {})
    assert suggester.ask(15) is not None


def test_every_dimension_is_stored_as_a_primitive():
    kinds = optuna.distributions
    assert distribution(studies.Log(1e-4, 1)) == kinds.FloatDistribution(1e-4, 1, log=True)
    assert distribution(studies.Uniform(0, 1)) == kinds.FloatDistribution(0, 1)
    assert distribution(studies.Int(2, 8, 2)) == kinds.IntDistribution(2, 8, step=2)
    assert distribution(studies.Pow2(8, 64)) == kinds.IntDistribution(3, 6)
    assert distribution(studies.Ordinal(("a", "b"))) == kinds.IntDistribution(0, 1)
    assert distribution(studies.Choice((None, "b"))) == kinds.CategoricalDistribution((0, 1))
    assert distribution(studies.Zipped(({"a": 1},))) == kinds.CategoricalDistribution((0,))


def test_seeds_depend_on_the_study_and_the_setting():
    assert len({seed_of(seed, setting) for seed in range(20) for setting in range(20)}) == 400


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


def test_settings_at_rungs_are_seen_as_pruned_until_they_end_and_the_best_are_kept():
    past = InMemoryStudy(["lower"], most=200)
    for number in range(401):
        past.restore(number, Suggestion({"rate": number / 401}), RATE)
        past.show_rungs(number, {1: float(number)})
        if number in (250, 350):
            past.show_rungs(number, {1: float(number), 2: 9.0})
    trials = past._study.get_trials(deepcopy=False)
    assert {trial.state.name for trial in trials} == {"PRUNED"}
    seen = {round(t.params["rate"] * 401): dict(t.intermediate_values) for t in trials}
    assert len(seen) == 201
    # The newest, the one at the highest rung, and then the best of the first.
    assert {250, *range(99), *range(300, 401)} == set(seen)
    assert seen[350] == {1: 350.0, 2: 9.0}
    past.record(350, "complete", (0.5,), {})
    past.record(250, "pruned", (9.0,), {1: 250.0, 2: 9.0})
    past.record(200, "complete", (0.0,), {})  # was forgotten
    states = [t.state.name for t in past._study.get_trials(deepcopy=False)]
    assert (states.count("COMPLETE"), states.count("PRUNED")) == (1, 200)


def test_a_setting_that_is_reopened_is_seen_once_at_the_highest_rung_that_it_gets_to():
    past = InMemoryStudy(["lower"], most=200)
    for number in range(3):
        past.restore(number, Suggestion({"rate": number / 3}), RATE)
        past.record(number, "pruned", (float(number),), {1: float(number)})

    def seen():
        trials = past._study.get_trials(deepcopy=False)
        is_complete = optuna.trial.TrialState.COMPLETE
        return [
            (t.state.name, t.values if t.state == is_complete else None, t.intermediate_values)
            for t in trials
        ]

    for number in range(3):
        past.reopen(number)
    past.show_rungs(0, {1: 0.0, 2: 0.5})
    past.show_rungs(1, {1: 1.0, 2: 1.5})
    past.record(1, "complete", (0.25,), {})
    past.record(2, "pruned", (2.0,), {1: 2.0})
    expected = [
        ("PRUNED", None, {1: 0.0, 2: 0.5}),
        ("COMPLETE", [0.25], {1: 1.0, 2: 1.5}),
        ("PRUNED", None, {1: 2.0}),
    ]
    assert seen() == expected
    past.record(0, "failed", None, {})
    assert [state for state, *_ in seen()] == ["FAIL", "COMPLETE", "PRUNED"]
    # Also after the oldest settings were forgotten: the best is kept, as what it has come to.
    for number in range(3, 402):
        past.restore(number, Suggestion({"rate": number / 402}), RATE)
        past.record(number, "complete", (float(number),), {})
    assert seen()[0] == expected[1]


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
