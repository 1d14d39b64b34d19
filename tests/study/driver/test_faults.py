"""What the driver does about faults: of the machine, of a trial, of the baseline."""

import errno
import pathlib
import subprocess
import time

import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import study as studies
from luthier.errors import EXIT_REQUEUE, BadInput
from luthier.study import Back, Lost, SliceInfo
from luthier.study.driver import loop, read_journal
from luthier.study.engines import Local
from luthier.study.engines import local as engines_local


@pytest.fixture(autouse=True)
def restless(monkeypatch):
    """Slices need no rest after a fault."""
    monkeypatch.setattr(loop, "REST_SECONDS", 0.0)


@pytest.fixture
def run(tmp_path):
    """Runs a study of the toy."""

    def run(sampler="random", engine=None, ends=None, slices=1, **settings):
        engine = engine or toys.InstantEngine(slices, ends)
        study = toys.make_study(sampler, directory=str(tmp_path), **settings)
        return studies.run(study, packages=toys.PACKAGES, engine=engine)

    return run


def _resume(outcome, engine=None, **settings):
    engine = engine or toys.InstantEngine()
    return studies.resume(str(outcome.directory), engine=engine, **settings)


def _lines(outcome, kind):
    lines = read_journal(outcome.directory / "journal.jsonl")
    return [line for line in lines if line["kind"] == kind]


def _suggestions(outcome):
    return [(line["setting"], line["assignment"]) for line in _lines(outcome, "asked")]


def _states(outcome):
    return [trial.state for trial in outcome.ledger.trials]


def test_a_full_disk_stops_the_study_and_costs_no_trial(run):
    whole = run("tpe", name="whole")
    stopped = run("tpe", ends={5: ["faulted"] * 2})
    assert (stopped.is_over, stopped.stopped_by) == (False, "place")
    assert stopped.stopped.endswith("No space left on device")
    trial = stopped.ledger.trials[5]
    assert (trial.state, trial.losses) == ("waiting", 0)
    again = _resume(stopped)
    assert again.is_over
    assert _suggestions(again) == _suggestions(whole)
    assert [t.values for t in again.ledger.trials] == [t.values for t in whole.ledger.trials]
    assert _states(again) == ["complete"] * 12


def test_a_rest_that_ends_while_the_journal_is_written_does_not_stop_the_study(run, monkeypatch):
    write = loop.Journal.commit

    def commit_slowly(journal, *settings, **named):
        time.sleep(0.05)
        write(journal, *settings, **named)

    monkeypatch.setattr(loop, "REST_SECONDS", 0.02)
    monkeypatch.setattr(loop.Journal, "commit", commit_slowly)
    outcome = run(ends={2: ["faulted"]})
    assert outcome.is_over
    assert _states(outcome) == ["complete"] * 12


def test_a_study_that_the_machine_stopped_keeps_its_name_and_is_resumed(run, tmp_path):
    stopped = run(ends={0: ["faulted"] * 2})
    assert stopped.stopped_by == "place"
    with pytest.raises(BadInput, match=f"--resume {stopped.directory}"):
        run()
    assert not (tmp_path / "toy.1").exists()
    assert _states(_resume(stopped)) == ["complete"] * 12


def test_one_fault_of_the_machine_is_passed_over(run):
    outcome = run("tpe", ends={3: ["faulted"], 5: ["faulted"]})
    assert outcome.is_over
    assert _states(outcome) == ["complete"] * 12
    assert [line["counts"] for line in _lines(outcome, "lost")] == [False, False]


class OneBadSlice(toys.InstantEngine):
    """Whatever runs on slice 1 meets a fault of the machine."""

    def _run(self, slice, work, asks):
        if slice == 1:
            self._ends[work.trial] = ["faulted"]
        super()._run(slice, work, asks)


def test_a_device_group_with_two_faults_in_a_row_is_excluded(run):
    engine = OneBadSlice(2)
    outcome = run(engine=engine)
    assert outcome.is_over
    assert _states(outcome) == ["complete"] * 12
    assert [slice for slice, _ in engine.started].count(1) == 2
    (notice,) = outcome.ledger.notices
    assert notice.startswith("device group toy:1 accepts no more trials: ")


class OneGoneSlice(toys.InstantEngine):
    """No worker is left on slice 1, until it comes back, if it does; slice 0 meets faults then."""

    def __init__(self, comes_back):
        super().__init__(2)
        self._comes_back, self._looks = comes_back, 0

    def _run(self, slice, work, asks):
        if slice == 0:
            self._ends[work.trial] = ["faulted"]
        super()._run(slice, work, asks)

    def events(self, timeout):
        self._looks += 1
        assert self._looks < 1000, "the driver waits for a worker that will never come"
        if self._looks == 1:
            return [Lost(1, "its job is over", counts=False, is_away=True, is_gone=True)]
        if self._looks == 2 and self._comes_back:
            return [Back(1), *super().events(timeout)]
        return super().events(timeout)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_device_group_without_a_worker_is_not_waited_for_and_may_come_back(run, comes_back):
    outcome = run(engine=OneGoneSlice(comes_back))
    notices = [notice.partition(": ")[0] for notice in outcome.ledger.notices]
    gone = [f"device group toy:{n} accepts no more trials" for n in (1, 0)]
    if comes_back:
        assert notices == [gone[0], "device group toy:1 accepts trials again", gone[1]]
        assert _states(outcome) == ["complete"] * 12
    else:
        assert notices == gone
        assert (outcome.is_over, outcome.stopped_by) == (False, "place")
        assert set(_states(outcome)) == {"waiting"}


def test_a_trial_that_meets_faults_everywhere_is_held_back_for_a_later_call(run):
    stopped = run(ends={3: ["faulted"] * 3}, slices=2)
    assert _states(stopped).count("complete") == 11
    assert (stopped.ledger.trials[3].state, stopped.stopped_by) == ("waiting", "place")
    assert "trial 3 met 3 faults of the machine" in stopped.stopped
    assert _states(_resume(stopped)) == ["complete"] * 12


def test_failures_in_a_row_stop_the_study_and_are_run_again_when_asked(run, tmp_path):
    stopped = run("tpe", ends={3: ["broken"], 5: ["broken"], 6: ["broken"], 7: ["broken"]})
    assert (stopped.is_over, stopped.stopped_by) == (False, "failures")
    assert "3 trials in a row failed (5, 6, 7; budget.failures=3)" in stopped.stopped
    with pytest.raises(BadInput, match=r"no failed trial of .* matches 'of memory'.*ValueError"):
        _resume(stopped, retry="failed:of memory")
    again = _resume(stopped, retry="failed:boom")
    assert again.is_over
    assert _states(again) == ["complete"] * 12
    assert [line["trial"] for line in _lines(again, "retried")] == [3, 5, 6, 7]
    journal = (again.directory / "journal.jsonl").read_bytes()
    assert _states(_resume(again)) == ["complete"] * 12
    assert (again.directory / "journal.jsonl").read_bytes() == journal


def test_a_retried_study_that_is_killed_goes_on_to_the_same_suggestions(run):
    def broken(name):
        return run("tpe", name=name, ends={n: ["broken"] for n in (5, 6, 7)})

    whole = _resume(broken("whole"), retry="failed")
    stopped = broken("toy")
    with pytest.raises(KeyboardInterrupt):
        _resume(stopped, toys.FailingEngine(5, KeyboardInterrupt()), retry="failed")
    again = _resume(stopped)
    assert _suggestions(again) == _suggestions(whole)
    assert _states(again) == ["complete"] * 12


def test_the_copies_of_a_failed_trial_are_run_again_with_it(run):
    space = studies.Space({"width": studies.Pow2(16, 32)})
    budget = fdl.Config(studies.Budget, trials=6)
    before = run(space=space, budget=budget, ends={1: ["failed"]})
    copies = [t.number for t in before.ledger.trials if t.copy_of == 1]
    assert copies
    after = _resume(before, retry="failed")
    assert _states(after) == ["complete"] * 6


@pytest.mark.parametrize("what", ["failed: ValueError: boom", "is infeasible: too wide"])
def test_a_bad_baseline_stops_the_study_and_leaves_its_name_free(run, tmp_path, what):
    engine = toys.InstantEngine(ends={0: ["broken"]})
    gate = fdl.Config(toys.RefusingGate) if "infeasible" in what else None
    outcome = run(engine=engine, gate=gate)
    assert (outcome.is_over, outcome.stopped_by) == (False, "failures")
    assert outcome.stopped == f"the baseline {what}"
    assert len(engine.started) == (gate is None)
    assert _states(run()) == ["complete"] * 12
    assert (tmp_path / "toy.1" / "journal.jsonl").exists()


def test_a_baseline_that_diverges_does_not_stop_the_search(run):
    assert run(ends={0: ["failed"]}).is_over


class Clock:
    """A monotonic clock that goes on by ten seconds with each look at the engine's events."""

    seconds = 1000.0


class Timed(toys.InstantEngine):
    """Two devices for each slice; every look at events takes ten seconds."""

    def open(self, directory):
        super().open(directory)
        return [SliceInfo(index, f"toy:{index}", 2) for index in range(self.slices)]

    def _end(self, trial, outcome):
        super()._end(trial, outcome)
        del self._events[-1].result["facts"]["device_seconds"]

    def events(self, timeout):
        if self._events:
            Clock.seconds += 10.0
        return super().events(timeout)


@pytest.mark.parametrize("lanes", [False, True])
def test_device_time_is_that_of_the_lease_and_lanes_share_it(run, monkeypatch, lanes):
    monkeypatch.setattr(time, "monotonic", lambda: Clock.seconds)
    space = studies.Space({"rate": studies.Log(1e-4, 1e-1)})
    packing = {"packing": fdl.Config(toys.Lanes)} if lanes else {}
    objectives = [fdl.Config(studies.DeviceHours)]
    outcome = run(engine=Timed(), space=space, objectives=objectives, **packing)
    each = [trial.device_seconds for trial in outcome.ledger.trials]
    # One slice of two devices, ten seconds for each unit of work.
    alone, shared = 20.0, 20.0 / 3
    assert each == pytest.approx([shared if lanes else alone] * 12, abs=1e-5)
    assert outcome.ledger.device_seconds == pytest.approx(sum(each))
    assert outcome.ledger.trials[4].values == pytest.approx((each[4] / 3600,), rel=1e-4)


def test_a_clock_that_jumps_fails_no_trial(run, monkeypatch):
    class Jumping(toys.InstantEngine):
        """Trial 2 ends one look at the events later, and the clock was set in between."""

        late = None

        def _run(self, slice, work, asks):
            if work.trial == 2 and self.late is None:
                self.late = (slice, work, asks)
            else:
                super()._run(slice, work, asks)

        def events(self, timeout):
            found = super().events(timeout)
            if self.late and not found:
                now = time.time
                monkeypatch.setattr(time, "time", lambda: now() + 1e6)
                super()._run(*self.late)
            return found

    budget = fdl.Config(studies.Budget, trials=4, trial_seconds=3600.0)
    assert _states(run(engine=Jumping(), budget=budget)) == ["complete"] * 4


def test_what_no_record_can_hold_is_refused_before_the_study(run, tmp_path):
    options = [1, 2, lambda: None]
    space = studies.Space({"extra": studies.Choice([studies.Option(value=o) for o in options])})
    with pytest.raises(BadInput, match="extra"):
        run(space=space)
    assert list(tmp_path.iterdir()) == []


def test_a_choice_that_turns_out_not_to_be_recordable_is_infeasible(run, monkeypatch):
    from luthier.errors import RecordError
    from luthier.study.driver import StudyDirectory

    write = StudyDirectory.write_trial

    def refuse(directory, trial, graph, words, **asked):
        if trial == 3:
            raise RecordError("extra: a lambda cannot be recorded")
        write(directory, trial, graph, words, **asked)

    monkeypatch.setattr(StudyDirectory, "write_trial", refuse)
    outcome = run()
    assert outcome.ledger.trials[3].state == "infeasible"
    assert outcome.ledger.trials[3].reason.startswith("cannot be recorded: extra")
    assert _states(outcome).count("complete") == 11


def test_a_gate_of_a_study_knows_the_packages_of_the_project(run):
    assert _states(run(gate=fdl.Config(toys.KnowingGate))) == ["complete"] * 12


def test_a_grid_has_all_its_points_unless_the_budget_says_otherwise(run):
    wider = studies.Space({"rate": studies.Log(1e-4, 1e-1), "width": studies.Pow2(8, 512)})
    whole = run("grid", name="whole", space=wider, budget=fdl.Config(studies.Budget))
    assert (len(whole.ledger.trials), whole.ledger.notices) == (36, [])
    assert whole.is_over
    cut = run("grid")
    notice = "the grid needs 31 trials with the baseline, and budget.trials=12 leaves 19 of its "
    assert cut.ledger.notices == [f"{notice}settings out"]
    assert cut.notices[0] == cut.ledger.notices[0]


@pytest.fixture
def pipe_workers(monkeypatch):
    """The local engine starts workers that compute nothing."""
    monkeypatch.setattr(engines_local, "_MODULE", "pipe_worker")
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[1]))


# Signal 40 is a real-time signal, to which Python gives no name.
@pytest.mark.parametrize(("slices", "number", "name"), [(1, 9, "SIGKILL"), (2, 40, "signal 40")])
def test_a_trial_that_kills_its_worker_fails_alone(
    run, pipe_workers, monkeypatch, slices, number, name
):
    monkeypatch.setenv("DEATH_SIGNAL", str(number))
    space = studies.Space({"width": studies.Ordinal((8, 16, 32, 64))})
    engine = Local(slices=slices, devices=f"cpu:{slices}")
    outcome = run("grid", engine=engine, space=space, budget=fdl.Config(studies.Budget))
    assert outcome.is_over
    killers = [t for t in outcome.ledger.trials if t.state == "failed"]
    assert [t.number for t in killers] == [2]
    assert killers[0].reason == (
        f"its worker died 3 times; the last time: its worker was ended by {name}: about to die of "
        "trial 2"
    )
    assert _states(outcome).count("complete") == 4


def test_a_worker_that_leaves_after_a_fault_of_its_devices_is_counted_against_no_trial(
    run, pipe_workers, monkeypatch
):
    monkeypatch.setenv("LEAVE_WITH", str(EXIT_REQUEUE))
    space = studies.Space({"width": studies.Ordinal((8, 16, 32))})
    budget = fdl.Config(studies.Budget, retries=0)
    outcome = run("grid", engine=Local(devices="cpu:1"), space=space, budget=budget)
    assert _states(outcome) == ["complete"] * 4
    (lost,) = _lines(outcome, "lost")
    assert (lost["trial"], lost["counts"]) == (2, False)


@pytest.mark.parametrize("why", ["it dies", "no processes are left"])
def test_a_worker_that_does_not_start_any_more_leaves_the_rest_to_the_others(
    run, pipe_workers, monkeypatch, why
):
    monkeypatch.setenv("BROKEN_SLICE", "1")
    start, started = subprocess.Popen, []

    def start_two(*arguments, **settings):
        started.append(arguments)
        if len(started) > 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(*arguments, **settings)

    if why == "it dies":
        monkeypatch.setattr(engines_local, "MAX_STARTS", 1)
    else:
        monkeypatch.setattr(subprocess, "Popen", start_two)
    space = studies.Space({"rate": studies.Log(1e-4, 1e-1)})
    outcome = run(engine=Local(slices=2, devices="cpu:2"), space=space)
    assert outcome.is_over
    assert _states(outcome) == ["complete"] * 12
    assert any("device group 1 accepts no more trials" in n for n in outcome.ledger.notices)
