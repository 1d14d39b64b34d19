import itertools
import json

import jax
import pytest

import luthier
from luthier import graph as graphs
from luthier import planner, trainer
from luthier.errors import BadInput, CheckpointError, RunError, TrainingStopped
from luthier.records import RunDirectory
from luthier.trainer import CompiledStep, Request, StopSignals, Watcher, next_steps, open_session


def _lines(result, kind):
    rows = [json.loads(x) for x in (result.directory / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def _value(result):
    return dict(result.metrics["held_out"])


@pytest.mark.full
def test_a_finished_run_has_its_whole_record(finished):
    assert finished.status == "finished"
    assert finished.exit_code == 0
    assert finished.step == 12
    steps = _lines(finished, "step")
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert {"loss", "learning_rate", "tokens", "step_seconds", "mfu"} <= set(steps[0]["values"])
    assert [row["step"] for row in _lines(finished, "evaluation")] == [4, 8, 12]
    assert finished.sample
    for name in ("config.json", "config.txt", "config.history.json", "plan.json", "status.json"):
        assert (finished.directory / name).stat().st_size > 0
    assert RunDirectory(finished.directory).read_status().status == "finished"


def test_what_was_predicted_is_recorded_beside_what_was_measured(finished):
    plan = RunDirectory(finished.directory).read_plan()
    predicted, measured = plan["predicted"], plan["measured"]
    kinds = plan["bytes_per_device"]
    assert predicted["held_bytes"] == sum(kinds.values()) - kinds["gradients"]
    assert measured["num_steps"] == 12 - 2
    # The products of a model as small as this one take less than starting a step does.
    assert predicted["step_seconds"] is None
    assert predicted["reason"].startswith("too small to estimate")
    assert measured["step_seconds"] > 0
    assert measured["memory_bytes"] > measured["compiled_bytes_per_device"] > 0
    (header,) = _lines(finished, "header")
    assert "held on each device" in header["notes"]["plan"]
    # `luthier runs` shows both; what the process held is no surprise at the end of a run.
    assert measured["num_sharing"] >= 1
    assert not [n["text"] for n in _lines(finished, "notice") if "predicted" in n["text"]]


def test_the_executed_graph_is_the_recorded_graph(finished, tiny):
    recorded = graphs.from_json((finished.directory / "config.json").read_text())
    assert graphs.equal(recorded, tiny(finished.directory.parents[1]))


def test_the_same_call_says_that_the_run_is_over(finished, tiny):
    before = (finished.directory / "metrics.jsonl").read_bytes()
    again = luthier.train(tiny(finished.directory.parents[1]))
    assert again.status == "finished"
    assert "nothing to do" in again.message
    assert again.was_over
    assert not finished.was_over
    assert again.directory == finished.directory
    assert (finished.directory / "metrics.jsonl").read_bytes() == before


@pytest.mark.full
def test_new_starts_a_run_of_its_own(tiny, tmp_path):
    graph = tiny(tmp_path, "training.steps=2", "checkpoints=None")
    first = trainer.run(graph)
    second = trainer.run(graph, new=True)
    assert second.directory.name == f"{first.directory.name}-2"
    third = trainer.run(tiny(tmp_path, "training.steps=2"), new=True, command="luthier train x")
    assert f"--run {first.directory.name}-3" in third.message
    assert _lines(first, "step")[1]["values"]["loss"] == _lines(second, "step")[1]["values"]["loss"]


@pytest.mark.full
def test_what_is_saved_is_not_begun_again_without_checkpoints(tiny, tmp_path):
    stop = "training.stop=luthier.durations.Steps(6)"
    first = trainer.run(tiny(tmp_path, stop))
    before = (first.directory / "metrics.jsonl").read_bytes()
    longer = ("checkpoints=None", "training.steps=14")
    with pytest.raises(RunError) as refusal:
        trainer.run(tiny(tmp_path, *longer), run=first.directory.name, extend=True)
    run = f"{first.directory.parent.name}/{first.directory.name}"
    assert str(refusal.value) == (
        f"checkpoints: {run} is saved at step 6; without checkpoints it would start again at "
        "step 0; leave out checkpoints=None, or start a separate run with --new"
    )
    assert (first.directory / "metrics.jsonl").read_bytes() == before
    assert trainer.run(tiny(tmp_path, stop, "checkpoints=None")).was_over, "nothing to do"


@pytest.mark.full
def test_an_extended_run_goes_on_from_its_last_step(tiny, tmp_path):
    first = trainer.run(tiny(tmp_path))
    longer = tiny(tmp_path, "training.steps=16")
    with pytest.raises(BadInput, match="--extend"):
        trainer.run(longer, run=first.directory.name)
    result = trainer.run(longer, run=first.directory.name, extend=True)
    assert result.directory == first.directory
    assert result.step == 16
    assert [row["step"] for row in _lines(result, "step")] == list(range(1, 17))


@pytest.mark.full
def test_a_run_that_differs_in_steps_only_is_offered(tiny, tmp_path):
    first = trainer.run(tiny(tmp_path))
    other = trainer.run(tiny(tmp_path, "training.steps=3"))
    assert other.directory != first.directory
    notices = " ".join(row["text"] for row in _lines(other, "notice"))
    assert f"--run {first.directory.name} --extend" in notices


def test_bad_input_leaves_nothing_behind(tiny, tmp_path):
    runs = tmp_path / "runs"
    for override in (
        "training.steps=0",
        "training.global_batch_size=9999",
        "data.source:=luthier.data.TextFiles('/nowhere/*.txt')",
        "model.block.attention.num_heads=3",
    ):
        with pytest.raises(BadInput):
            trainer.run(tiny(runs, override))
    assert not runs.exists()


def test_a_full_disk_is_seen_before_the_start(tiny, tmp_path, monkeypatch):
    import shutil

    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match="is free"):
        trainer.run(tiny(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_what_is_next_fits_the_model(finished):
    directory = RunDirectory(finished.directory)
    message = next_steps(directory, "finished", "luthier train x", 12, prompt="To be")
    assert message.splitlines() == [
        f"to extend: luthier train x training.steps=24 --run {directory.id} --extend",
        f"to sample: luthier generate {directory.id} --prompt 'To be'",
    ]
    message = next_steps(directory, "finished", "luthier train x", 12, prompt="")
    assert message.endswith(f"\nto sample: luthier generate {directory.id}")
    before = "luthier train x training.steps=12 --run 0123 --extend --new optimizer.b2=0.9"
    assert next_steps(directory, "finished", before, 12) == (
        "to extend: luthier train x optimizer.b2=0.9 training.steps=24 "
        f"--run {directory.id} --extend"
    )
    assert "sample" not in next_steps(directory, "finished", "luthier train x", 12)
    assert next_steps(directory, "interrupted", "luthier train x", 12) == (
        "to resume: luthier train x"
    )


@pytest.mark.full
def test_the_header_shows_what_is_frozen(finished, tiny, tmp_path):
    (header,) = _lines(finished, "header")
    assert header["notes"]["trained"] == ""
    mask = r"training.trainable=luthier.optim.Matching('norm\.scale$')"
    result = trainer.run(tiny(tmp_path, "training.steps=1", "checkpoints=None", mask))
    (header,) = _lines(result, "header")
    assert header["notes"]["trained"] == f"48 of {header['parameters']:,} parameters"


@pytest.mark.full
def test_too_many_refused_steps_stop_the_run(tiny, tmp_path):
    graph = tiny(
        tmp_path,
        "optimizer.learning_rate:=luthier.optim.Constant(1e30)",
        "optimizer.clip_norm=None",
        "training.guard.max_consecutive_skips=3",
    )
    with pytest.raises(TrainingStopped, match="3 steps in a row"):
        trainer.run(graph)
    (directory,) = (tmp_path / "quickstart").iterdir()
    status = RunDirectory(directory).read_status()
    assert status.status == "diverged"
    assert "3 steps in a row" in status.message


@pytest.mark.full
def test_training_stops_early_on_a_metric(tiny, tmp_path):
    rule = (
        "training.early_stopping:=luthier.program.EarlyStopping("
        "metric=luthier.metrics.Selector('held_out', 'nats_per_byte'), patience=1, min_delta=99.0)"
    )
    result = trainer.run(tiny(tmp_path, rule))
    assert result.status == "finished"
    assert result.step == 8
    assert "has not improved" in " ".join(row["text"] for row in _lines(result, "notice"))
    again = trainer.run(tiny(tmp_path, rule))
    assert "nothing to do" in again.message


@pytest.mark.parametrize(
    ("metric", "nearest"), [("nats_per_bite", "nats_per_byte"), ("accurracy", "accuracy")]
)
def test_a_misspelt_metric_never_starts(tiny, tmp_path, metric, nearest):
    rule = (
        "training.early_stopping:=luthier.program.EarlyStopping("
        f"metric=luthier.metrics.Selector('held_out', '{metric}'), patience=1)"
    )
    with pytest.raises(BadInput, match=nearest):
        trainer.run(tiny(tmp_path / "runs", rule))
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    ("stop", "step"),
    [
        ("luthier.durations.Steps(7)", 7),
        ("luthier.durations.Tokens(1000)", 4),
        ("luthier.durations.Epochs(0.25)", 6),
    ],
)
def test_durations_end_training_in_their_own_unit(tiny, tmp_path, stop, step):
    result = trainer.run(tiny(tmp_path, f"training.stop:={stop}"))
    assert result.step == step
    tokens = [row["values"]["tokens"] for row in _lines(result, "step")]
    assert tokens[0] == pytest.approx(256, abs=32)


@pytest.mark.full
def test_a_damaged_checkpoint_falls_back_to_the_newest_whole_one(tiny, tmp_path):
    graph = tiny(tmp_path)
    original, steps = CompiledStep.__call__, itertools.count()

    def crash(self, state, batch):
        if next(steps) == 11:
            raise OSError("the power is gone")
        return original(self, state, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledStep, "__call__", crash)
        with pytest.raises(OSError, match="power"):
            trainer.run(graph)
    (directory,) = (tmp_path / "quickstart").iterdir()
    (data,) = [p for p in (directory / "checkpoints" / "10").rglob("d/*") if p.is_file()][:1]
    data.write_bytes(data.read_bytes()[:-7])
    result = trainer.run(graph)
    assert [row["step"] for row in _lines(result, "step")] == list(range(1, 13))
    notices = " ".join(row["text"] for row in _lines(result, "notice"))
    assert "damaged" in notices
    assert "resuming from step 5" in notices


class _Ends(Watcher):
    """Ends a run at a step, or at the first evaluation."""

    def __init__(self, verdict=None, stop_at=None):
        self.seen, self.verdict, self.stop_at, self.asked = [], verdict, stop_at, 0

    @property
    def requested(self):
        self.asked += 1
        return "interrupted" if self.stop_at == self.asked - 1 else None

    def evaluated(self, step, metrics, last, fraction=1.0):
        self.seen.append((step, sorted(metrics), last))
        return self.verdict


def _watched(graph, directory, watcher, plan=None):
    plan = plan or planner.make(graph)
    step = CompiledStep(plan.program)
    with open_session(graph, plan, step, Request(directory=directory), watcher) as session:
        session.run()
    return session.outcome


@pytest.mark.full
def test_a_watched_run_is_pruned_at_an_evaluation_and_saved(tiny, tmp_path):
    watcher = _Ends("pruned")
    result = _watched(tiny(tmp_path), tmp_path / "0007" / "run", watcher)
    assert (result.status, result.step, result.exit_code) == ("pruned", 4, 0)
    assert result.directory == tmp_path / "0007" / "run"
    (step, names, last) = watcher.seen[0]
    assert (step, last, len(watcher.seen)) == (4, False, 1)
    assert "held_out/nats_per_byte" in names
    assert (result.directory / "checkpoints" / "4").is_dir()
    assert not result.sample


@pytest.mark.full
def test_a_watched_run_that_is_left_goes_on_where_it_was(tiny, tmp_path):
    graph, directory = tiny(tmp_path), tmp_path / "0001" / "run"
    plan = planner.make(graph)
    first = _watched(graph, directory, _Ends(stop_at=7), plan)
    assert (first.status, first.step) == ("interrupted", 7)
    watcher = _Ends()
    second = _watched(graph, directory, watcher, plan.of(graph))
    assert (second.status, second.step) == ("finished", 12)
    assert [(step, last) for step, _, last in watcher.seen] == [(8, False), (12, True)]
    assert [row["step"] for row in _lines(second, "step")] == list(range(1, 13))
    alone = trainer.run(tiny(tmp_path / "alone"))
    assert _value(alone) == _value(second)


@pytest.mark.full
def test_a_verdict_at_the_last_evaluation_comes_too_late(tiny, tmp_path):
    graph = tiny(tmp_path, "evaluations.held_out.every=None")
    result = _watched(graph, tmp_path / "0001" / "run", _Ends("pruned"))
    assert result.status == "finished"


@pytest.mark.full
def test_a_trace_that_outlasts_its_run_is_written_and_the_next_run_traces(tiny, tmp_path):
    for number, steps in enumerate(("10:15", "1:3")):
        graph = tiny(tmp_path / "runs", f"seed={number}")
        result = trainer.run(graph, profile=steps)
        assert result.status == "finished"
        assert list((result.directory / "profile").rglob("*.xplane.pb"))


@pytest.mark.full
def test_what_a_step_raises_is_recorded_by_the_run(tiny, tmp_path):
    graph = tiny(tmp_path)
    plan, directory = planner.make(graph), tmp_path / "0001" / "run"

    class Broken(CompiledStep):
        def __call__(self, state, batch):
            raise OSError("the device is gone")

    request = Request(directory=directory)
    with (
        pytest.raises(OSError, match="the device is gone"),
        open_session(graph, plan, Broken(plan.program), request, StopSignals()) as session,
    ):
        session.run()
    status = RunDirectory(directory).read_status()
    assert (status.status, status.message) == ("failed", "OSError: the device is gone")


@pytest.mark.full
def test_it_trains_on_the_devices_that_it_is_given(tiny, tmp_path):
    result = trainer.run(tiny(tmp_path, "parallelism.mesh.fsdp=2"), devices=jax.devices()[:4])
    plan = json.loads((result.directory / "plan.json").read_text())
    assert {axis: n for axis, n in plan["mesh"].items() if n > 1} == {"data": 2, "fsdp": 2}
    assert plan["devices"]["count"] == 4
    _, metrics = trainer.evaluate_run(str(result.directory), devices=jax.devices()[:1])
    for metric, value in metrics["held_out"].items():
        assert value == pytest.approx(result.metrics["held_out"][metric], rel=1e-4)
