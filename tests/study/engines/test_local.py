"""An engine over eight virtual devices, driven by a small loop as a driver would."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from luthier.checkpoint import Store
from luthier.errors import BadInput, RunError
from luthier.study import Lost, Reported, TrialEnded, Work, read_result
from luthier.study.engines import Local
from luthier.study.engines import local as engines_local

PEAK = "optimizer.learning_rate.peak"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return the folder of a study."""
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def engine(study):
    """Return an engine with two slices of one device, open for all tests of this module."""
    made = Local(slices=2, devices="cpu:2")
    infos = made.open(str(study))
    assert [(i.index, i.name, i.num_devices, i.device_kind) for i in infos] == [
        (0, "0", 1, "cpu"),
        (1, "1", 1, "cpu"),
    ]
    yield made
    made.close()
    assert made._workers == []


def _ended(events):
    return {event.trial: event for event in events if isinstance(event, TrialEnded)}


@pytest.mark.full
def test_trials_run_on_all_slices_at_once_and_leave_their_results(
    engine, study, tiny, write_trial, until
):
    for slice in (0, 1):
        graph = tiny(f"{PEAK}={1e-3 * (slice + 1)}")
        engine.start(slice, Work([write_trial(study, slice, graph)], hoist=(PEAK, "data.length")))
    events = until(engine, 2)
    reports = [e for e in events if isinstance(e, Reported)]
    assert sorted((r.trial, r.step) for r in reports) == [(0, 5), (0, 10), (1, 5), (1, 10)]
    for trial, ended in _ended(events).items():
        assert (ended.outcome, ended.reason, ended.slice) == ("complete", "", trial)
        found = ended.result
        assert [step for step, _ in found["series"]] == [5, 10]
        assert found["metrics"] == found["series"][-1][1]
        assert found["steps"] == 10
        facts = found["facts"]
        assert facts["step_seconds"] > 0
        assert min(facts["parameters"], facts["peak_bytes"]) > 1000
        assert found["mode"] == {
            "lanes": "single",
            "num_lanes": 1,
            "lane": 0,
            "hoisted": [PEAK],
            "slice": {"devices": 1, "kind": "cpu"},
        }
        assert read_result(study / "trials" / f"{trial:04d}") == ended
        run = study / "trials" / f"{trial:04d}" / "run"
        assert json.loads((run / "status.json").read_text())["status"] == "finished"


@pytest.mark.full
def test_a_trial_is_pruned_where_it_asks(engine, study, tiny, write_trial, until):
    engine.start(0, Work([write_trial(study, 10, tiny())], asks=True))

    def on_event(event):
        if isinstance(event, Reported):
            verdict = "continue" if event.step < 5 else "prune"
            engine.answer(0, event.trial, event.fence, verdict)

    events = until(engine, 1, on_event=on_event)
    ended = _ended(events)[10]
    assert (ended.outcome, ended.reason) == ("pruned", "pruned after step 5")
    assert (ended.result["steps"], len(ended.result["series"])) == (5, 1)


@pytest.mark.full
def test_a_trial_that_is_stopped_comes_back_as_nothing_and_goes_on_later(
    engine, study, tiny, write_trial, until
):
    work = write_trial(study, 11, tiny())
    engine.start(0, Work([work], asks=True))
    while not any(isinstance(e, Reported) for e in engine.events(1.0)):
        pass
    engine.stop(0, 11, work.fence)
    engine.start(0, Work([write_trial(study, 12, tiny("training.steps=3"))]))
    assert set(_ended(until(engine, 1))) == {12}
    assert read_result(work.directory) is None
    assert (pathlib.Path(work.directory) / "run" / "checkpoints" / "5").is_dir()
    engine.start(1, Work([write_trial(study, 11, tiny(), fence=2)]))
    ended = _ended(until(engine, 1))[11]
    assert (ended.fence, ended.outcome) == (2, "complete")
    assert [step for step, _ in ended.result["series"]] == [5, 10]


@pytest.mark.full
def test_infeasible_and_failing_trials_are_reported_and_harm_no_others(
    engine, study, tiny, write_trial, until
):
    wrong = {
        20: tiny("training.global_batch_size=9999"),
        21: tiny("data.source:=luthier.data.TextFiles('/nowhere/*.txt')"),
        22: tiny("parallelism.mesh.fsdp=2"),
        23: tiny("training.steps=3"),
    }
    for number, graph in wrong.items():
        engine.start(0, Work([write_trial(study, number, graph)]))
    ended = _ended(until(engine, 4))
    outcomes = {number: event.outcome for number, event in ended.items()}
    assert outcomes == {20: "failed", 21: "failed", 22: "infeasible", 23: "complete"}
    assert "/nowhere/*.txt" in ended[21].reason
    assert "parallelism.mesh" in ended[22].reason
    assert all("\n" not in event.reason for event in ended.values())
    assert not (study / "trials" / "0022" / "run").exists()


@pytest.mark.full
def test_a_killed_worker_is_reported_and_replaced_and_its_trial_resumes(
    engine, study, tiny, write_trial, until
):
    work = write_trial(study, 30, tiny())
    engine.start(1, Work([work], asks=True))
    while not any(isinstance(e, Reported) for e in engine.events(1.0)):
        pass  # it waits for an answer after step 5
    store, deadline = (
        Store(pathlib.Path(work.directory, "run", "checkpoints")),
        time.monotonic() + 60,
    )
    while store.latest() != 4:
        assert time.monotonic() < deadline
    store.close()
    os.kill(engine._workers[1]._process.pid, signal.SIGKILL)
    (lost,) = [e for e in until(engine, 1) if isinstance(e, Lost)]
    assert lost.slice == 1
    assert lost.reason.startswith("its worker was ended by SIGKILL")
    engine.start(1, Work([write_trial(study, 30, tiny(), fence=2)]))
    events = until(engine, 1)
    assert [e.step for e in events if isinstance(e, Reported)] == [5, 10]
    run = pathlib.Path(work.directory) / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines if x["kind"] == "step"] == list(range(1, 11))
    assert [x["step"] for x in lines if x["kind"] == "header"] == [0, 4]


def test_devices_that_cannot_be_cut_are_reported_before_anything_starts(tmp_path):
    with pytest.raises(BadInput, match="8 devices cannot be split into 3 equal slices"):
        Local(slices=3, devices="cpu:8").open(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_cannot_start_is_reported_with_its_last_line(tmp_path):
    source = tmp_path / "source" / "luthier"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("raise RuntimeError('this copy is broken')")
    with pytest.raises(RunError, match="this copy is broken") as caught:
        Local(devices="cpu:1").open(str(tmp_path))
    assert "the worker of slice 0 does not start" in str(caught.value)


@pytest.mark.full
def test_a_worker_that_is_killed_while_it_starts_is_started_again(tmp_path, monkeypatch):
    engine = Local(devices="cpu:1")
    start, killed = engines_local._Worker.start, []

    def start_and_kill_once(worker):
        start(worker)
        if not killed:
            killed.append(worker._process.pid)
            worker._process.kill()

    monkeypatch.setattr(engines_local._Worker, "start", start_and_kill_once)
    (slice,) = engine.open(str(tmp_path))
    try:
        assert slice.num_devices == 1
        assert engine._workers[0]._process.pid not in killed
    finally:
        engine.close()


@pytest.mark.full
def test_workers_end_with_their_driver(tmp_path):
    program = (
        "import sys, time; from luthier.study.engines import Local; e = Local(devices='cpu:1')\n"
        f"e.open({str(tmp_path)!r}); print(e._workers[0]._process.pid, flush=True); time.sleep(99)"
    )
    driver = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with driver:
        worker = int(driver.stdout.readline())
        driver.kill()
    deadline = time.monotonic() + 30
    while pathlib.Path(f"/proc/{worker}/stat").exists():
        if pathlib.Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
