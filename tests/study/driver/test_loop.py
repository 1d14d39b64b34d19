import fiddle as fdl
import optuna
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier import study as studies
from luthier.study import TrialEnded
from luthier.study.driver import StudyDirectory, read_journal
from luthier.study.views import read_status


@pytest.fixture
def run(tmp_path):
    """Runs a study of the toy at once; returns where it stands, and the engine."""

    def run(sampler="random", slices=1, ends=None, engine=None, **settings):
        engine = engine or toys.InstantEngine(slices, ends)
        study = toys.make_study(sampler, directory=str(tmp_path), **settings)
        outcome = studies.run(study, packages=toys.PACKAGES, engine=engine)
        return outcome, engine

    return run


def _states(outcome):
    return [trial.state for trial in outcome.ledger.trials]


def _study(outcome):
    return StudyDirectory(outcome.directory).read_study()


def _kinds(outcome, kind):
    lines = read_journal(outcome.directory / "journal.jsonl")
    return [line for line in lines if line["kind"] == kind]


def test_every_trial_runs_and_the_baseline_is_trial_0(run):
    outcome, engine = run(slices=3)
    assert outcome.is_over
    assert not engine.is_open
    assert _states(outcome) == ["complete"] * 12
    first, second = (toys.read_values(outcome.directory / "trials" / f"{n:04d}") for n in (0, 1))
    assert first == {}
    assert set(second) == {"rate", "width"}
    assert outcome.ledger.trials[0].values == (toys.loss({}, 4),)
    assert outcome.ledger.settings[0].words == ()
    assert outcome.ledger.device_seconds == 24.0


def test_a_baseline_in_the_space_is_what_the_search_begins_with(run):
    outcome, _ = run("tpe")
    asked = _kinds(outcome, "asked")
    assert asked[0]["assignment"] == {"rate": 0.01, "width": 3}


def test_a_free_group_gets_a_trial_before_more_are_validated(run):
    """The first one starts as soon as it is validated, and a later one waits there when it ends."""
    outcome, _ = run(gate=fdl.Config(toys.KnowingGate))
    lines = read_journal(outcome.directory / "journal.jsonl")
    kinds = [line["kind"] for line in lines if line["kind"] in ("asked", "leased", "ended")]
    assert kinds[:3] == ["asked", "leased", "asked"]
    after = [kinds[i + 1] for i, kind in enumerate(kinds[:-1]) if kind == "ended"]
    assert after == ["leased"] * 11


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_place_of_a_trial_is_free_while_it_is_being_closed(run, sampler):
    """For the next trial, unless the sampler must see the result first."""
    outcome, _ = run(sampler, engine=toys.ClosingEngine())
    lines = read_journal(outcome.directory / "journal.jsonl")
    order = [(line["kind"], line["trial"]) for line in lines if line["kind"] in ("leased", "ended")]
    after = [order.index(("leased", n + 1)) > order.index(("ended", n)) for n in range(11)]
    assert after == [sampler == "tpe"] * 11
    assert _states(outcome) == ["complete"] * 12


def test_closing_a_trial_is_not_time_of_the_device_group(run):
    budget = fdl.Config(studies.Budget, trials=1)
    outcome, _ = run(engine=toys.ClosingEngine(closing_seconds=0.2), budget=budget)
    assert 0 < outcome.ledger.device_seconds < 0.2


def test_a_grid_ends_by_itself(run):
    outcome, _ = run("grid", budget=fdl.Config(studies.Budget, trials=None))
    assert len(outcome.ledger.trials) == 1 + 5 * 6


def test_the_same_graph_is_not_run_twice(run):
    space = studies.Space({"width": studies.Pow2(8, 16)})
    outcome, engine = run(space=space)
    assert len(engine.started) == 2
    copies = [trial for trial in outcome.ledger.trials if trial.copy_of is not None]
    assert len(copies) == 10
    assert all(c.values == outcome.ledger.trials[c.copy_of].values for c in copies)
    assert copies[0].reason == f"the same as trial {copies[0].copy_of}"


def test_another_seed_makes_a_trial_of_its_own(run):
    space = studies.Space({"width": studies.Pow2(8, 16)})
    outcome, engine = run(space=space, dedupe=fdl.Config(studies.AnotherSeed))
    assert len(engine.started) == 12
    assert len(set(outcome.ledger.marks)) == 12


def test_a_setting_with_three_seeds_is_reported_once_by_its_mean(run):
    outcome, _ = run(seeds=3)
    assert len(outcome.ledger.settings) == 4
    outcome_of_setting = outcome.ledger.outcome_of(outcome.ledger.settings[1])
    values = [outcome.ledger.trials[n].values[0] for n in (3, 4, 5)]
    assert len(set(values)) == 3
    assert outcome_of_setting == ("complete", (pytest.approx(sum(values) / 3),))
    assert [line["setting"] for line in _kinds(outcome, "told")] == [0, 1, 2, 3]


def test_what_cannot_run_never_gets_to_a_slice(run):
    space = studies.Space({"rate": studies.Log(1e-4, 1), "heads": studies.Int(2, 10)})
    outcome, engine = run(space=space, budget=fdl.Config(studies.Budget, trials=24))
    refused = [t for t in outcome.ledger.trials if t.state == "infeasible"]
    assert 8 <= len(refused) < 24
    started = {work.trials[0].trial for _, work in engine.started}
    assert not started & {trial.number for trial in refused}
    assert all("width % heads == 0" in trial.reason for trial in refused)
    assert all(trial.fence == 0 for trial in refused)


def test_a_failure_stays_alone(run):
    outcome, _ = run(ends={3: ["failed"], 5: ["infeasible"]})
    states = _states(outcome)
    assert (states[3], states[5], states.count("complete")) == ("failed", "infeasible", 10)


def test_a_trial_whose_worker_died_keeps_its_number_and_is_begun_again(run):
    outcome, _ = run(ends={3: ["lost", "lost", "complete"]})
    trial = outcome.ledger.trials[3]
    assert (trial.state, trial.losses) == ("complete", 2)
    assert len(_kinds(outcome, "leased")) == 14
    assert [line["fence"] for line in _kinds(outcome, "leased")] == list(range(1, 15))


def test_a_trial_whose_workers_all_die_has_failed(run):
    outcome, _ = run(ends={3: ["lost"] * 9})
    trial = outcome.ledger.trials[3]
    assert trial.state == "failed"
    assert trial.reason == "its worker died 3 times; the last time: signal 9"


def test_a_pruner_ends_bad_trials_early(run):
    pruner = fdl.Config(optuna.pruners.MedianPruner, n_startup_trials=3)
    outcome, engine = run("random", pruner=pruner, budget=fdl.Config(studies.Budget, trials=30))
    pruned = [t for t in outcome.ledger.trials if t.state == "pruned"]
    assert 5 < len(pruned) < 28
    assert all(work.asks for _, work in engine.started)
    assert all(trial.values for trial in pruned)
    reports = [line["trial"] for line in _kinds(outcome, "reported")]
    assert all(reports.count(t.number) < 4 for t in pruned)


def test_several_objectives_are_reported_together(run):
    objectives = [studies.objective("held_out/loss", None), fdl.Config(studies.StepTime)]
    outcome, _ = run("nsga-ii", objectives=objectives)
    assert {trial.values[1] for trial in outcome.ledger.trials} == {0.5}


def test_a_result_without_its_objective_has_failed(run):
    class Forgetful(toys.InstantEngine):
        def _advance(self, trial):
            super()._advance(trial)
            del self._asking[trial][2][-1][1]["held_out/loss"]

    budget = fdl.Config(studies.Budget, trials=4, failures=None)
    outcome, _ = run(engine=Forgetful(), budget=budget)
    assert set(_states(outcome)) == {"failed"}
    assert outcome.ledger.trials[0].reason == "its result lacks held_out/loss"


def test_what_arrives_with_an_old_fence_is_dropped(run):
    class Late(toys.InstantEngine):
        def events(self, timeout):
            found = super().events(timeout)
            stale = [TrialEnded(e.slice, e.trial, e.fence - 1, "failed") for e in found]
            return [*stale, *found]

    outcome, _ = run(engine=Late())
    assert _states(outcome) == ["complete"] * 12
    assert len(_kinds(outcome, "ended")) == 12


def test_a_budget_of_device_hours_ends_a_study(run):
    budget = fdl.Config(studies.Budget, trials=None, device_hours=10 / 3600)
    outcome, _ = run(budget=budget)
    assert outcome.ledger.device_seconds == 10.0
    assert outcome.is_over


def test_a_budget_of_time_puts_what_runs_back_and_a_later_call_goes_on(run):
    class Slow(toys.InstantEngine):
        def _run(self, slice, work, asks):
            if work.trial != 2:
                super()._run(slice, work, asks)

    outcome, _ = run(engine=Slow(), budget=fdl.Config(studies.Budget, trials=4, wall_seconds=1.0))
    assert (outcome.is_over, outcome.is_late) == (False, True)
    assert _states(outcome)[:3] == ["complete", "complete", "waiting"]
    assert outcome.ledger.trials[2].losses == 0
    graph = graphs.apply(_study(outcome), ["budget.wall_seconds=60"])
    again = studies.resume(
        str(outcome.directory), graph, packages=toys.PACKAGES, engine=toys.InstantEngine()
    )
    assert (again.is_over, again.is_late) == (True, False)
    assert _states(again) == ["complete"] * 4


def test_reports_are_written_down_where_nothing_prunes(run):
    outcome, _ = run(budget=fdl.Config(studies.Budget, trials=2))
    reported = [(line["trial"], line["step"]) for line in _kinds(outcome, "reported")]
    assert reported == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3), (1, 4)]


def test_a_slow_trial_has_failed(run):
    class Slow(toys.InstantEngine):
        def _run(self, slice, work, asks):
            if work.trial != 2:
                super()._run(slice, work, asks)

    budget = fdl.Config(studies.Budget, trials=4, trial_seconds=0.05)
    outcome, _ = run(engine=Slow(), budget=budget)
    assert outcome.ledger.trials[2].reason == "took longer than 0.05 seconds (budget.trial_seconds)"


def test_trials_of_one_program_share_a_slice(run):
    space = studies.Space({"rate": studies.Log(1e-4, 1e-1), "width": studies.Pow2(8, 16)})
    budget = fdl.Config(studies.Budget, trials=24)
    outcome, engine = run(space=space, packing=fdl.Config(toys.Lanes), budget=budget)
    assert _states(outcome) == ["complete"] * 24
    sizes = [len(work.trials) for _, work in engine.started]
    assert max(sizes) == 3
    for _, work in engine.started:
        widths = {toys.read_values(t.directory).get("width", 8) for t in work.trials}
        assert len(widths) == 1
        assert (work.hoist, work.lanes) == (("rate",), "vmap")
        assert work.spare_lanes == 3 - len(work.trials)


def test_interrupting_puts_what_runs_back(run, tmp_path):
    class Interrupted(toys.InstantEngine):
        def events(self, timeout):
            if len(self.started) == 5:
                raise KeyboardInterrupt
            return super().events(timeout)

    engine = Interrupted()
    engine._end = lambda trial, outcome: (
        None if len(engine.started) == 5 else (toys.InstantEngine._end(engine, trial, outcome))
    )
    with pytest.raises(KeyboardInterrupt):
        run(engine=engine)
    outcome = studies.resume(str(tmp_path / "toy"), engine=toys.InstantEngine())
    assert _states(outcome) == ["complete"] * 12
    assert [line["trial"] for line in _kinds(outcome, "lost")] == [4]
    assert not _kinds(outcome, "closed")[0]["over"]
    assert outcome.ledger.trials[4].losses == 0


def _budget(**limits):
    return fdl.Config(studies.Budget, **{"trials": 40, **limits})


def test_a_study_ends_after_trials_without_a_better_one_and_resumes_with_more(run):
    outcome, engine = run(budget=_budget(no_improvement=6))
    # A random sampler is asked ahead: a trial or two wait, and never run.
    values = [trial.values[0] for trial in outcome.ledger.trials if trial.values]
    assert values.index(min(values)) == len(values) - 7
    assert outcome.ledger.notices == ["6 trials without a better one (budget.no_improvement)"]
    path = str(outcome.directory)
    again = studies.resume(path, packages=toys.PACKAGES, engine=engine)
    assert again.ledger.count("complete") == len(values), "the study is over"
    more = graphs.apply(_study(outcome), ["budget.no_improvement=20", "budget.trials=30"])
    grown = studies.resume(path, more, packages=toys.PACKAGES, engine=engine)
    assert grown.ledger.count("complete") > len(values)


def test_a_study_ends_when_its_objective_reaches_the_target(run):
    whole, _ = run(budget=_budget())
    values = [trial.values[0] for trial in whole.ledger.trials]
    target = sorted(values)[3]
    first = next(number for number, value in enumerate(values) if value <= target)
    outcome, _ = run(budget=_budget(target=target), name="short")
    found = [trial.values[0] for trial in outcome.ledger.trials if trial.values]
    assert found == values[: first + 1]
    assert outcome.ledger.notices == [f"trial {first} reaches budget.target={target:g}"]


def test_a_trial_that_violates_a_constraint_is_not_the_best(run):
    space = fdl.Config(
        studies.Space,
        {"rate": studies.Log(1e-4, 1e-1), "width": studies.Pow2(8, 256)},
        [
            fdl.Config(
                studies.Constraint,
                fdl.Config(
                    studies.Expression,
                    "held_out/loss + step_time",
                    {
                        "held_out/loss": studies.objective("held_out/loss", None),
                        "step_time": fdl.Config(studies.StepTime),
                    },
                ),
                1.0,
                ">=",
            )
        ],
    )
    outcome, _ = run(space=space, seeds=2, budget=_budget(trials=24))
    trials = outcome.ledger.trials
    bad = [trial for trial in trials if trial.values[0] + 0.5 < 1.0]
    assert [trial.is_feasible for trial in trials] == [trial not in bad for trial in trials]
    assert 0 < len(bad) < 24
    assert {trial.state for trial in bad} == {"complete"}
    assert bad[0].reason == (f"violates held_out/loss + step_time>=1: {bad[0].values[0] + 0.5:.6g}")
    best = read_status(outcome.directory).best()[0]
    assert best.values[0] == min(trial.values[0] for trial in trials if trial not in bad)
    path = str(outcome.directory)
    more = graphs.apply(_study(outcome), ["budget.trials=30"])
    again = studies.resume(path, more, packages=toys.PACKAGES, engine=toys.InstantEngine())
    assert [t.violations for t in again.ledger.trials[:24]] == [t.violations for t in trials]
