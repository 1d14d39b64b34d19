"""Rungs and schedulers, against a plain implementation of the paper's algorithm."""

import dataclasses
import functools
import math
import pathlib
import re
import shutil
import types

import fiddle as fdl
import hypothesis
import optuna
import pytest
import simulated_engine as toys
from hypothesis import strategies

from luthier import graph as graphs
from luthier import study as studies
from luthier.durations import Steps
from luthier.errors import BadInput
from luthier.study import Asha, SuccessiveHalving
from luthier.study.driver import InMemoryStudy, StudyDirectory, read_journal
from luthier.study.rungs import Rungs
from luthier.study.views.text import headline, lines_of, read_status
from tests.study.driver.replay import replay


class Reference:
    """Algorithm 2 of Li et al. (2020), written for its text and not for its speed."""

    def __init__(self, reduction, num_rungs):
        self.reduction, self.num_rungs = reduction, num_rungs
        self.rungs = {k: [] for k in range(1, num_rungs)}  # (value, trial), as they came
        self.promoted = {k: set() for k in range(1, num_rungs)}

    def best(self, rung):
        found = sorted(self.rungs[rung])
        return [trial for value, trial in found[: len(found) // self.reduction]]

    def promotable(self, paused):
        for rung in range(self.num_rungs - 1, 0, -1):
            for trial in self.best(rung):
                if trial not in self.promoted[rung] and trial in paused:
                    yield trial, rung


def _line(kind, trial, rung=None, value=0.0, **fields):
    at_rung = {} if rung is None else {"rung": rung, "value": value, "step": 1}
    return {"kind": kind, "trial": trial, **at_rung, **fields}


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(strategies.data(), strategies.integers(2, 4), strategies.integers(2, 4))
def test_decisions_are_those_of_the_paper_for_any_order_of_completion(data, reduction, num_rungs):
    rungs = Rungs(Asha(reduction, num_rungs), "lower")
    reference = Reference(reduction, num_rungs)
    running, paused, asked = {}, set(), 0  # trial -> the rung that it trains towards
    for _ in range(data.draw(strategies.integers(1, 60))):
        # A free place takes a promotable trial, or a new one.
        wanted = next(reference.promotable(paused), None)
        assert next(rungs.promotable(may_ask=True), None) == (wanted and wanted[0])
        if wanted is not None:
            trial, rung = wanted
            reference.promoted[rung].add(trial)
            paused.remove(trial)
            rungs.follow(_line("promoted", trial, rung))
            running[trial] = rung + 1
        else:
            rungs.follow({"kind": "asked", "setting": asked, "trials": [asked]})
            running[asked], asked = 1, asked + 1
        # Then as many evaluations come as there happen to be, in any order.
        for _ in range(data.draw(strategies.integers(0, len(running)))):
            trial = data.draw(strategies.sampled_from(sorted(running)))
            rung = running[trial]
            if rung == num_rungs:
                del running[trial]
                rungs.follow(_line("ended", trial, outcome="complete"))
                continue
            value = data.draw(strategies.sampled_from([0.0, 1.0, 2.0, 3.0]))
            reference.rungs[rung].append((value, trial))
            rungs.follow(_line("reached", trial, rung, value))
            stays = trial in reference.best(rung)
            assert rungs.promotes_at_once(trial, rung) == stays
            if stays:
                reference.promoted[rung].add(trial)
                rungs.follow(_line("promoted", trial, rung))
                running[trial] = rung + 1
            else:
                del running[trial]
                paused.add(trial)
                rungs.follow(_line("paused", trial, rung, value))


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    strategies.permutations(range(11)),
    strategies.lists(strategies.integers(0, 5), min_size=11, max_size=11),
)
def test_synchronous_promotions_do_not_depend_on_the_order_of_completion(order, values):
    found = []
    for arrivals in (order, range(11)):
        rungs = Rungs(SuccessiveHalving(reduction=3, num_rungs=3), "lower")
        rungs.follow({"kind": "asked", "setting": 0, "trials": list(range(11))})
        for trial in arrivals:
            assert not list(rungs.promotable(may_ask=False))
            rungs.follow(_line("reached", trial, 1, float(values[trial])))
            rungs.follow(_line("paused", trial, 1, float(values[trial])))
        promoted = []
        while (trial := next(rungs.promotable(may_ask=False), None)) is not None:
            rungs.follow(_line("promoted", trial, 1))
            promoted.append(trial)
        found.append(promoted)
        best = sorted(range(11), key=lambda trial: (values[trial], trial))
        assert promoted == best[:3]
    assert found[0] == found[1]


def test_a_diverged_trial_is_never_promoted_and_a_failed_one_leaves_the_comparison():
    rungs = Rungs(Asha(reduction=2, num_rungs=3), "lower")
    rungs.follow({"kind": "asked", "setting": 0, "trials": [0, 1, 2, 3]})
    for trial, value in ((0, math.nan), (1, math.inf), (2, 3.0)):
        rungs.follow(_line("reached", trial, 1, value))
        rungs.follow(_line("paused", trial, 1, value))
    assert list(rungs.promotable(may_ask=True)) == [2]
    rungs.follow(_line("ended", 2, outcome="failed"))
    rungs.follow(_line("ended", 3, outcome="failed"))
    assert not list(rungs.promotable(may_ask=False))


def test_a_higher_value_is_better_where_the_objective_says_so():
    rungs = Rungs(Asha(reduction=2, num_rungs=2), "higher")
    rungs.follow({"kind": "asked", "setting": 0, "trials": [0, 1]})
    for trial in (0, 1):
        rungs.follow(_line("reached", trial, 1, float(trial)))
        rungs.follow(_line("paused", trial, 1, float(trial)))
    assert list(rungs.promotable(may_ask=True)) == [1]


@pytest.mark.parametrize(
    ("scheduler", "step", "fraction", "rung"),
    [
        (Asha(), 199, 199 / 600, 2),
        (Asha(), 200, 200 / 600, 3),
        (Asha(num_rungs=6), 1, 1 / 243, 1),
        (Asha(), 600, 1.0, 0),
        (Asha(first=Steps(50)), 49, 0.4, 0),
        (Asha(first=Steps(50)), 150, 0.4, 2),
        (Asha(reduction=2, num_rungs=2), 5, 0.5, 1),
    ],
)
def test_a_rung_is_reached_at_its_part_of_the_full_length(scheduler, step, fraction, rung):
    assert studies.reached_rung(scheduler, step, fraction) == rung


# Studies of the toy, which takes a report after each of its steps.

ASHA = fdl.Config(Asha, reduction=3, num_rungs=3)
BASE = fdl.Config(toys.Toy, steps=9)


@pytest.fixture
def run(tmp_path):
    """Runs a study of the toy with rungs at steps 1, 3 and 9."""

    def run(sampler="random", slices=1, ends=None, scheduler=ASHA, trials=30, **settings):
        engine = settings.pop("engine", None) or toys.InstantEngine(slices, ends)
        budget = settings.pop("budget", fdl.Config(studies.Budget, trials=trials))
        study = toys.make_study(
            sampler,
            base=BASE,
            directory=str(tmp_path),
            budget=budget,
            scheduler=scheduler,
            **settings,
        )
        return studies.run(study, packages=toys.PACKAGES, engine=engine), engine

    return run


def _lines(outcome, *kinds):
    lines = read_journal(outcome.directory / "journal.jsonl")
    return [line for line in lines if line["kind"] in kinds]


@pytest.mark.parametrize("slices", [1, 3])
def test_most_trials_end_at_a_low_rung_and_the_best_reach_the_full_length(run, slices):
    outcome, _ = run(slices=slices)
    trials = outcome.ledger.trials
    assert outcome.is_over
    assert {trial.state for trial in trials} == {"complete", "pruned"}
    values = {
        line["trial"]: line["value"] for line in _lines(outcome, "reached") if line["rung"] == 1
    }
    assert sorted(values) == list(range(30))
    complete = [trial.number for trial in trials if trial.state == "complete"]
    assert 1 <= len(complete) <= 10
    # The loss of the toy keeps its order from step to step.
    assert min(values, key=values.get) in complete
    stayed = [trial for trial in trials if trial.state == "pruned"]
    assert all(t.reason == f"stayed at rung {t.rung} of 3" for t in stayed)
    assert all(t.values == (t.rung_values[t.rung],) for t in stayed)
    steps = sum(len(result["series"]) for result in _results(outcome))
    assert steps < 0.5 * 30 * 9
    # Nothing is trained twice: a promoted trial resumes where it was paused.
    assert len(_lines(outcome, "reported")) == steps


def _results(outcome):
    for trial in outcome.ledger.trials:
        ended = studies.read_result(outcome.directory / "trials" / f"{trial.number:04d}")
        yield ended.result


def test_every_decision_of_a_study_follows_from_its_journal(run):
    outcome, _ = run("tpe", slices=2, trials=40)
    reference, paused, rungs = Reference(3, 3), set(), {}
    for line in _lines(outcome, "reached", "paused", "promoted", "asked", "ended"):
        trial = line.get("trial")
        if line["kind"] == "asked" and line["setting"]:
            assert not list(reference.promotable(paused)), line
        elif line["kind"] == "reached":
            reference.rungs[line["rung"]].append((line["value"], trial))
            rungs[trial] = line["rung"]
        elif line["kind"] == "paused":
            assert trial not in reference.best(line["rung"])
            paused.add(trial)
        elif line["kind"] == "promoted":
            reference.promoted[line["rung"]].add(trial)
            paused.discard(trial)
    assert max(rungs.values()) == 2
    study = studies.build(StudyDirectory(outcome.directory).read_study())
    found = list(replay(study, StudyDirectory(outcome.directory)))
    assert len(found) == 39
    assert all(again.again == again.recorded for again in found)


def test_a_study_that_is_too_small_for_its_rungs_still_trains_its_best_to_the_end(run):
    outcome, _ = run(trials=4, scheduler=fdl.Config(Asha, reduction=4, num_rungs=3))
    complete = [t for t in outcome.ledger.trials if t.state == "complete"]
    first = {t.number: t.rung_values[1] for t in outcome.ledger.trials}
    assert min(first, key=first.get) in [trial.number for trial in complete]


def test_a_synchronous_study_promotes_the_best_third_of_each_rung(run):
    outcome, _ = run(slices=2, trials=27, scheduler=fdl.Config(SuccessiveHalving, num_rungs=3))
    promoted = [(line["rung"], line["trial"]) for line in _lines(outcome, "promoted")]
    assert [rung for rung, _ in promoted] == [1] * 9 + [2] * 3
    first = {t.number: t.rung_values[1] for t in outcome.ledger.trials}
    assert [t for rung, t in promoted if rung == 1] == sorted(first, key=first.get)[:9]
    assert outcome.ledger.count("complete") == 3


@pytest.mark.parametrize("judge", ["scheduler", "pruner"])
def test_an_expression_of_metrics_of_one_evaluation_judges_as_a_metric_does(run, judge):
    # The accuracy of the toy depends on the step alone, so this has the order of the loss.
    expression = studies.objective(
        "minimize(2 * held_out/loss - held_out/accuracy)", studies.evaluations_of(BASE)
    )
    settings = {"seed": 3}
    if judge == "pruner":
        pruner = fdl.Config(optuna.pruners.MedianPruner, n_startup_trials=2)
        settings |= {"scheduler": None, "pruner": pruner}
    by_metric, _ = run(**settings)
    by_expression, _ = run(name="expression", objectives=[expression], **settings)
    states = [trial.state for trial in by_metric.ledger.trials]
    assert {"complete", "pruned"} <= set(states)
    assert [trial.state for trial in by_expression.ledger.trials] == states
    for trial, result in zip(by_expression.ledger.trials, _results(by_expression), strict=True):
        last = result["series"][-1][1]
        assert trial.values == (2 * last["held_out/loss"] - last["held_out/accuracy"],)


def test_packed_trials_free_their_lanes_when_they_pause(run):
    outcome, engine = run(slices=2, packing=fdl.Config(toys.Lanes))
    assert outcome.is_over
    assert outcome.ledger.count("complete", "pruned") == 30
    assert any(work.spare_lanes or len(work.trials) > 1 for _, work in engine.started)


def test_a_trial_that_dies_or_meets_a_fault_keeps_its_rungs(run):
    outcome, _ = run(ends={3: ["lost", "faulted", "complete"], 5: ["failed"], 7: ["infeasible"]})
    states = [trial.state for trial in outcome.ledger.trials]
    assert (states[5], states[7]) == ("failed", "infeasible")
    assert outcome.ledger.trials[3].losses == 1
    assert outcome.ledger.trials[3].rung >= 1


class Stopping(toys.InstantEngine):
    """Fails after so many looks at its events, as a driver that is killed there."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def events(self, timeout):
        self.looks -= 1
        if not self.looks:
            raise KeyboardInterrupt
        return super().events(timeout)


@pytest.mark.parametrize("looks", [9, 40])
def test_a_study_that_is_resumed_decides_as_if_it_had_not_been_stopped(run, tmp_path, looks):
    whole, _ = run("tpe")
    expected = _lines(whole, "reached", "promoted", "asked")
    shutil.move(whole.directory, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run("tpe", engine=Stopping(looks))
    status = read_status(whole.directory)
    waiting = [trial for trial in status.ledger.trials if trial.state == "paused"]
    assert waiting
    assert any(line.split()[1:3] == ["paused", "1/3"] for line in lines_of(status))
    assert f"{len(waiting)} paused" in headline(status)
    again = studies.resume(
        str(whole.directory), packages=toys.PACKAGES, engine=toys.InstantEngine()
    )
    found = _lines(again, "reached", "promoted", "asked")
    assert [_timeless(line) for line in found] == [_timeless(line) for line in expected]


def _timeless(line):
    return {name: value for name, value in line.items() if name not in ("at", "spent")}


def test_budgets_hold(run):
    budget = fdl.Config(studies.Budget, trials=None, device_hours=30 / 3600)
    outcome, _ = run(budget=budget)
    assert outcome.is_over
    assert outcome.ledger.count("paused", "running") == 0


def test_the_sampler_learns_from_trials_that_wait_at_a_rung(run, monkeypatch):
    seen = []
    ask = InMemoryStudy.ask

    def look(self, setting, sampler, choose):
        trials = self._study.get_trials(deepcopy=False)
        seen.append([(t.state.name, dict(t.intermediate_values)) for t in trials])
        return ask(self, setting, sampler, choose)

    monkeypatch.setattr(InMemoryStudy, "ask", look)
    outcome, _ = run("tpe")
    states = {state for state, _ in seen[-1]}
    assert states <= {"PRUNED", "COMPLETE"}
    by_trial = {t.number: t.rung_values for t in outcome.ledger.trials}
    for trial, (state, reports) in enumerate(seen[-1]):
        if state == "PRUNED":
            assert reports.items() <= by_trial[trial].items()
            assert reports


@pytest.mark.parametrize(
    ("settings", "what", "remedy"),
    [
        ({"seeds": 2}, "a setting of seeds=2 has more", "set seeds=1"),
        (
            {"pruner": fdl.Config(optuna.pruners.MedianPruner)},
            "this one has both",
            "set pruner=None",
        ),
        (
            {"objectives": [fdl.Config(studies.StepTime)]},
            "an objective that evaluations report, and step_seconds is not one",
            "set scheduler=None",
        ),
        *(
            (
                {"objectives": [studies.objective(text, studies.evaluations_of(BASE))]},
                "an objective that evaluations report",
                "metrics of one evaluation set",
            )
            for text in (
                "held_out/loss + step_time",
                "minimize(held_out/loss:best + held_out/accuracy)",
            )
        ),
        (
            {
                "scheduler": fdl.Config(SuccessiveHalving),
                "budget": fdl.Config(studies.Budget, trials=None, device_hours=1.0),
            },
            "how many is not set",
            "set budget.trials, or use Asha",
        ),
        ({"scheduler": fdl.Config(studies.Grid)}, "Grid is not a scheduler", "luthier.study.Asha"),
    ],
)
def test_a_study_that_rungs_cannot_schedule_is_refused_in_a_line(run, settings, what, remedy):
    with pytest.raises(BadInput) as caught:
        run(**settings)
    (problem,) = caught.value.problems
    assert what in problem.what
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (
            ["evaluations.held_out.every=None", "reset:evaluations.held_out.num_batches"],
            "set base.evaluations.held_out.every=Steps(2)",
        ),
        (["evaluations.held_out.every=Steps(60)"], "every=Steps(2)"),
        (["checkpoints=None"], "set base.checkpoints"),
    ],
)
def test_an_experiment_that_reaches_no_rung_is_refused_and_the_remedy_helps(words, remedy):
    base = graphs.apply(
        graphs.resolve("configs.lm.quickstart"),
        ["training.steps=60", "evaluations.held_out.every=Steps(2)", *words],
    )
    space = studies.parse_space(["optimizer.learning_rate.peak=log(1e-4,1e-2)"])
    graph = studies.study_of("rungs", base, space, studies.sampler("random"), [])
    graph.scheduler = studies.scheduler("asha")
    editing = studies.Editing((), ())
    with pytest.raises(BadInput) as caught:
        studies.check_study(graph, editing)
    (problem,) = caught.value.problems
    assert remedy in problem.remedy
    if "every" in remedy:
        mended = graphs.apply(graph, ["base.evaluations.held_out.every=Steps(2)"])
        studies.check_study(mended, editing)


# Trials that are trained from their first step to each rung (`horizon="rung"`).

ANNEALED = fdl.Config(Asha, reduction=3, num_rungs=3, horizon="rung")
PEAK = "optimizer.learning_rate.peak"


@pytest.fixture
def run_annealed(tmp_path, monkeypatch):
    """Runs a study of an experiment of nine steps, which is the toy of its learning rate."""

    def read(directory):
        graph = graphs.from_json((pathlib.Path(directory) / "config.json").read_text())
        found = {name: graphs.evaluate(graphs.get(graph, name)) for name in LENGTHS}
        assert found[LENGTHS[0]] == found[LENGTHS[1]]
        return {"steps": found[LENGTHS[0]], "rate": graphs.get(graph, PEAK)}

    monkeypatch.setattr(toys, "read_values", functools.cache(read))
    words = ["training.steps=9", "evaluations.held_out.every=Steps(1)", "records.wandb=None"]
    base = graphs.apply(graphs.resolve("configs.lm.quickstart"), words)
    space = studies.parse_space([f"{PEAK}=log(1e-4,1e-1)"])

    def run(engine=None, scheduler=ANNEALED, trials=18, sampler="random", device_hours=None):
        node = studies.sampler(sampler)
        graph = studies.study_of("annealed", base, space, node, [])
        graph.scheduler, graph.packing, graph.gate, graph.storage = scheduler, None, None, None
        graph.budget = fdl.Config(studies.Budget, trials=trials, device_hours=device_hours)
        graph.directory = str(tmp_path)
        return studies.run(graph, engine=engine or toys.InstantEngine(2))

    return run


LENGTHS = ("training.steps", "optimizer.learning_rate.total_steps")


def test_each_rung_is_a_run_from_the_first_step_whose_schedule_ends_there(run_annealed):
    engine = toys.InstantEngine(2)
    outcome = run_annealed(engine)
    work = [trial for _, work in engine.started for trial in work.trials]
    assert all(one.is_to_rung == ("/rungs/" in one.directory) for one in work)
    assert {one.is_to_rung for one in work} == {False, True}
    trials, directory = outcome.ledger.trials, StudyDirectory(outcome.directory)
    assert {trial.state for trial in trials} == {"complete", "pruned"}
    steps = (1, 3, 9)
    for trial in trials:
        last = trial.rung + (trial.state == "complete")
        # Every rung took all of its steps, on top of those of the rungs below.
        leases = [line for line in _lines(outcome, "leased") if line["trial"] == trial.number]
        assert len(leases) == last
        for rung in range(1, trial.rung + 1):
            ended = studies.read_result(directory.rung_path(trial.number, rung))
            assert [step for step, _ in ended.result["series"]] == list(
                range(1, steps[rung - 1] + 1)
            )
            assert ended.result["metrics"]["held_out/loss"] == trial.rung_values[rung]
        result = studies.read_result(directory.trial_path(trial.number))
        assert result.outcome == trial.state
        assert result.result["steps"] == steps[last - 1]
        full = directory.read_trial(trial.number)
        assert graphs.evaluate(graphs.get(full, "training.steps")) == 9
    complete = [trial.number for trial in trials if trial.state == "complete"]
    first = {t.number: t.rung_values[1] for t in trials}
    assert min(first, key=first.get) in complete
    assert len(complete) <= 6


@pytest.mark.parametrize("looks", [5, 20])
def test_a_resumed_study_keeps_the_runs_to_its_rungs(run_annealed, tmp_path, looks):
    whole = run_annealed(toys.InstantEngine(), sampler="tpe")
    kinds = ("reached", "promoted", "asked", "leased")
    expected = [_timeless(line) for line in _lines(whole, *kinds)]
    shutil.move(whole.directory, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_annealed(Stopping(looks), sampler="tpe")
    again = studies.resume(str(whole.directory), engine=toys.InstantEngine())
    assert [_timeless(line) for line in _lines(again, *kinds)] == expected
    assert again.is_over


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"num_rungs": 4}, "the lowest rung is at 0.33 of 9 steps"),
        ({"first": fdl.Config(Steps, 9)}, "the lowest is at 9 of 9 steps"),
    ],
)
def test_rungs_that_no_schedule_can_be_planned_for_are_refused(run_annealed, settings, what):
    with pytest.raises(BadInput, match=what):
        run_annealed(scheduler=fdl.Config(Asha, horizon="rung", **settings))


def test_an_experiment_without_a_length_has_no_horizon(run):
    with pytest.raises(
        BadInput, match=r"scales training\.steps, which the experiment does not have"
    ):
        run(scheduler=ANNEALED)


# Device time: the last part of it is for the best trial, where none is complete.


class Clocked(toys.InstantEngine):
    """Takes a second for each step, by a clock of its own."""

    def __init__(self, monkeypatch, slices=1):
        super().__init__(slices)
        self.now = 0.0
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr("luthier.study.driver.loop.time", clock)
        make = toys.make_ended

        def without_time(*arguments):  # the driver goes by its clock
            ended = make(*arguments)
            facts = {k: v for k, v in ended.result["facts"].items() if k != "device_seconds"}
            return dataclasses.replace(ended, result={**ended.result, "facts": facts})

        monkeypatch.setattr(toys, "make_ended", without_time)

    def _advance(self, trial):
        self.now += 1.0
        super()._advance(trial)


@pytest.mark.parametrize(
    ("scheduler", "seconds"),
    [
        (fdl.Config(Asha, reduction=3, num_rungs=3), 13),
        (ANNEALED, 17),
        (fdl.Config(Asha, reduction=2, num_rungs=3, first=fdl.Config(Steps, 2)), 11),
    ],
    ids=["full", "rung", "first"],
)
def test_the_rest_of_the_device_time_finishes_the_best_trial(
    run_annealed, monkeypatch, scheduler, seconds
):
    engine = Clocked(monkeypatch)
    outcome = run_annealed(engine, scheduler, trials=None, device_hours=seconds / 3600)
    assert outcome.is_over
    trials = outcome.ledger.trials
    (complete,) = [trial for trial in trials if trial.state == "complete"]
    # Chosen when the rest of the time was just enough; without it, no trial gets to the end.
    assert complete.rung_values[1] == min(t.rung_values[1] for t in trials if t.rung >= 1)
    assert len(trials) >= 3
    assert engine.now <= 1.25 * seconds
    assert not any("no trial is complete" in notice for notice in outcome.ledger.notices)


@pytest.mark.parametrize("scheduler", [fdl.Config(Asha, num_rungs=3), ANNEALED])
def test_device_time_that_holds_no_whole_trial_is_reported(run_annealed, monkeypatch, scheduler):
    engine = Clocked(monkeypatch)
    outcome = run_annealed(engine, scheduler, trials=None, device_hours=5 / 3600)
    assert outcome.is_over
    assert not outcome.ledger.count("complete")
    (notice,) = [n for n in outcome.ledger.notices if "no trial is complete" in n]
    assert "budget.device_hours=0.00138889 are used up, and a whole trial takes about" in notice
    more = float(re.search(r"resume with --budget device_hours=(\S+)$", notice)[1])
    assert more > 9 / 3600
    # As the notice has it.
    graph = StudyDirectory(outcome.directory).read_study()
    graph.budget = fdl.Config(studies.Budget, trials=None, device_hours=more)
    again = studies.resume(str(outcome.directory), graph, engine=engine)
    assert again.ledger.count("complete") == 1


# Studies that are over, and get a larger budget.


@pytest.mark.parametrize(("sampler", "few", "many"), [("random", 9, 36), ("tpe", 5, 20)])
def test_trials_that_stayed_at_a_rung_are_promoted_when_the_budget_grows(run, sampler, few, many):
    outcome, engine = run(sampler, trials=few)
    stayed = {t.number for t in outcome.ledger.trials if t.state == "pruned"}
    assert stayed
    again = _resume(outcome, engine, trials=many)
    assert again.is_over
    before = outcome.ledger.trials
    further = [
        number
        for number in stayed
        if again.ledger.trials[number].state == "complete"
        or again.ledger.trials[number].rung > before[number].rung
    ]
    assert further
    # Nothing is trained twice, and each decision is that of the paper over all trials.
    steps = sum(len(result["series"]) for result in _results(again))
    assert len(_lines(again, "reported")) == steps
    reference, paused = Reference(3, 3), set()
    for line in _lines(again, "reached", "paused", "promoted", "asked", "ended", "reopened"):
        trial = line.get("trial")
        if line["kind"] == "reached":
            reference.rungs[line["rung"]].append((line["value"], trial))
        elif line["kind"] == "paused":
            paused.add(trial)
        elif line["kind"] == "promoted":
            reference.promoted[line["rung"]].add(trial)
            paused.discard(trial)
        elif line["kind"] == "asked" and line["setting"] > few:
            assert not list(reference.promotable(paused))
    # What a further driver reads back from the journal is what this one knew.
    study = studies.build(StudyDirectory(again.directory).read_study())
    assert all(one.again == one.recorded for one in replay(study, StudyDirectory(again.directory)))
    assert not _resume(again, engine, trials=many).ledger.count("paused", "waiting")


def _resume(outcome, engine, **budget):
    graph = StudyDirectory(outcome.directory).read_study()
    graph.budget = fdl.Config(studies.Budget, **budget)
    return studies.resume(str(outcome.directory), graph, packages=toys.PACKAGES, engine=engine)
