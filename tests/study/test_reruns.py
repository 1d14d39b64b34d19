import errno

import jax
import pytest
from sweep_trials import tiny, write_trial  # noqa: F401

from luthier import trainer
from luthier.errors import RunError
from luthier.study import Work, rerun
from luthier.study.engines import Execution, LaneRunner, PackingChoice, Plans, TrialTask, execution

HOIST = ("optimizer.learning_rate.peak", "seed")


class _Waiting:
    """An inbox with some trials in it."""

    def __init__(self, tasks):
        self._tasks = list(tasks)

    def take(self, fits):
        return next((self._tasks.pop(i) for i, t in enumerate(self._tasks) if fits(t)), None)


@pytest.mark.full
@pytest.mark.parametrize("lanes", ["single", "vmap"])
def test_a_trial_runs_again_to_the_same_metrics_bit_for_bit(lanes, tiny, write_trial, tmp_path):  # noqa: F811
    devices, events = jax.devices()[:2], []
    execution = Execution(0, Plans(devices), (), None, events.append)
    graph = tiny("optimizer.learning_rate.peak=0.003")
    trials = [write_trial(tmp_path, i, g) for i, g in enumerate((tiny("seed=5"), graph))]
    work = Work(trials, HOIST, lanes)
    tasks = [TrialTask(work, trial, execution.watcher(trial, False)) for trial in trials]
    if lanes == "single":
        execution.run(work, trials[1], tasks[1].watcher)
    else:
        LaneRunner(execution, _Waiting(tasks[1:])).run(tasks[0], PackingChoice(lanes, 2))
    execution.wait_until_closed()
    before = next(e for e in reversed(events) if getattr(e, "outcome", None) and e.trial == 1)
    assert before.result["mode"]["lane"] == (0 if lanes == "single" else 1)
    again = rerun(trials[1].directory, tmp_path / "again" / "0001", devices=devices)
    assert again.outcome == "complete"
    assert again.result["series"] == before.result["series"]
    assert again.result["mode"] == before.result["mode"]
    plain = trainer.run(
        tiny("optimizer.learning_rate.peak=0.003", f"records.directory={tmp_path}/runs"),
        devices=devices,
    )
    for metric, value in plain.metrics["held_out"].items():
        assert before.result["metrics"][f"held_out/{metric}"] == pytest.approx(value, rel=1e-5)


@pytest.mark.full
def test_a_fault_of_the_machine_is_one_line(tiny, write_trial, tmp_path, monkeypatch):  # noqa: F811
    devices = jax.devices()[:1]
    work = write_trial(tmp_path, 0, tiny("training.steps=3"))
    made = Execution(0, Plans(devices), (), None, lambda event: None)
    made.run(Work((work,)), work, made.watcher(work, False))
    made.wait_until_closed()

    def fail(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(execution.planner, "make", fail)
    with pytest.raises(RunError) as caught:
        rerun(work.directory, tmp_path / "again", devices=devices)
    assert str(caught.value) == (
        f"{work.directory} was not repeated: OSError: [Errno 28] No space left on device; "
        "mend that, and repeat it into another folder"
    )


@pytest.mark.full
def test_trials_that_cannot_be_repeated_are_rejected(tiny, write_trial, tmp_path):  # noqa: F811
    work = write_trial(tmp_path, 0, tiny("training.steps=3"))
    with pytest.raises(RunError, match="has no result to be repeated"):
        rerun(work.directory, tmp_path / "again")
    execution = Execution(0, Plans(jax.devices()[:1]), (), None, lambda event: None)
    execution.run(Work((work,)), work, execution.watcher(work, False))
    execution.wait_until_closed()
    with pytest.raises(RunError) as caught:
        rerun(work.directory, tmp_path / "again", devices=jax.devices()[:2])
    assert str(caught.value) == (
        f"{work.directory} ran on 1 x cpu; here are 2 x cpu; `luthier train {work.directory}` "
        "repeats it on any devices, to 1e-5"
    )
    (tmp_path / "there").mkdir()
    with pytest.raises(RunError, match="there exists; choose another folder"):
        rerun(work.directory, tmp_path / "there", devices=jax.devices()[:1])
