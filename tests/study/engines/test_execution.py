import sys

import jax
import pytest

from luthier.program import program as programs
from luthier.study import hoisting
from luthier.study.engines import execution
from luthier.study.engines.execution import Execution, Plans, TrialTask
from luthier.study.protocol import NAME, TrialEnded, Work

PEAK = "optimizer.learning_rate.peak"


def _run(plans, work, trial):
    events = []
    made = Execution(0, plans, (), None, events.append)
    task = TrialTask(work, trial, made.watcher(trial, work.asks))
    made.run(work, trial, task.watcher)
    (ended,) = [event for event in events if isinstance(event, TrialEnded)]
    return ended


@pytest.mark.full
def test_trials_of_one_program_compile_once_and_train_with_their_own_values(
    tiny, write_trial, tmp_path, monkeypatch
):
    made = []
    make = execution.planner.make
    monkeypatch.setattr(execution.planner, "make", lambda *given: made.append(1) or make(*given))
    plans, results = Plans(jax.devices()[:1]), []
    for number, peak in enumerate((1e-4, 1e-2)):
        trial = write_trial(tmp_path, number, tiny(f"{PEAK}={peak}"))
        results.append(_run(plans, Work([trial], hoist=(PEAK,)), trial))
    assert made == [1]
    first, second = (ended.result["metrics"]["held_out/loss"] for ended in results)
    assert first - second > 0.05


@pytest.mark.full
def test_a_result_that_was_lost_is_written_again_from_the_record(tiny, write_trial, tmp_path):
    plans = Plans(jax.devices()[:1])
    trial = write_trial(tmp_path, 0, tiny())
    before = _run(plans, Work([trial]), trial)
    (tmp_path / "trials" / "0000" / NAME).unlink()
    again = _run(plans, Work([trial]), trial)
    assert again == before


def test_user_code_that_exits_fails_its_trial_and_not_the_worker(
    tiny, write_trial, tmp_path, monkeypatch
):
    def leave(graph, *given):
        sys.exit(75)  # the code by which a worker says that its devices were taken away

    monkeypatch.setattr(execution.planner, "make", leave)
    trial = write_trial(tmp_path, 0, tiny())
    ended = _run(Plans(jax.devices()[:1]), Work([trial]), trial)
    assert (ended.outcome, ended.reason) == ("failed", "SystemExit: 75")
    assert "sys.exit(75)" in (tmp_path / "trials" / "0000" / "traceback.txt").read_text()


@pytest.mark.full
def test_few_programs_are_kept(tiny, monkeypatch):
    monkeypatch.setattr(execution, "NUM_PLANS", 2)
    plans = Plans(jax.devices()[:1])
    graphs = [tiny(f"training.global_batch_size={n}") for n in (2, 4, 6)]
    first = plans.plan(graphs[0], ())
    assert plans.plan(graphs[0], ()).program.compiled is first.program.compiled
    for graph in graphs[1:]:
        plans.plan(graph, ())
    assert plans.plan(graphs[0], ()).program.compiled is not first.program.compiled


def test_a_program_whose_leaves_can_all_be_hoisted_is_traced_for_its_plan_only(tiny, monkeypatch):
    def never(*given):
        raise AssertionError("traced a second time")

    monkeypatch.setattr(hoisting, "_trace_problem", never)
    plans = Plans(jax.devices()[:1])
    plan = plans.plan(tiny(), ("seed", PEAK))
    assert plan.program.hoist == ("seed", PEAK)
    assert plans.plan(tiny(f"{PEAK}=0.5"), ("seed", PEAK)).program.compiled is plan.program.compiled


@pytest.mark.full
def test_a_leaf_that_only_an_evaluation_needs_as_a_constant_is_not_hoisted(tiny, monkeypatch):
    evaluate = programs.evaluate_step

    def evaluate_step(experiment, *rest):
        float(experiment.task.z_loss)
        return evaluate(experiment, *rest)

    for module in (programs, hoisting):
        monkeypatch.setattr(module, "evaluate_step", evaluate_step)
    plan = Plans(jax.devices()[:1]).plan(tiny(), (PEAK, "task.z_loss"))
    assert plan.program.hoist == (PEAK,)
