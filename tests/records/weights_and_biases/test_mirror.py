from __future__ import annotations

import base64
import dataclasses
import json
import math
import pathlib
import types

import numpy as np
import pytest

from luthier.errors import VersionError
from luthier.records import (
    Ended,
    Evaluation,
    Header,
    Histogram,
    Image,
    MediaFiles,
    Notice,
    Recorded,
    Records,
    Sample,
    Step,
    Wandb,
    encode_event,
    read_source,
    rebuild,
)
from luthier.records.weights_and_biases import Lines, MirroredRows, keep_outcome
from luthier.storage import seal


def line(event, step=0):
    return (json.dumps(encode_event(event, 5.0, step)) + "\n").encode()


def test_lines_of_a_file_that_grows(tmp_path):
    path = tmp_path / "m.jsonl"
    lines = Lines(path)
    assert list(lines.read()) == []
    first, second = line(Step(1, {"loss": 1.0})), line(Step(2, {"loss": 2.0}))
    path.write_bytes(first + second[:10])
    assert [recorded.step for recorded in lines.read()] == [1]
    assert list(lines.read()) == []
    with open(path, "ab") as file:
        file.write(second[10:] + b"garbage\n" + line(Notice("x")))
    assert [type(recorded.event).__name__ for recorded in lines.read()] == ["Step", "Notice"]
    assert lines.report == f"{path}: line 3 is damaged; what is whole was read"
    path.write_bytes(path.read_bytes() + seal(b'{"kind":"notice","step":0}', 0, 99))
    with pytest.raises(VersionError, match="later luthier"):
        list(lines.read())
    lines.close()


class Run:
    def __init__(self, step=0, resumed=False):
        self.step, self.resumed = step, resumed
        self.logged, self.defined, self.summary = [], {}, {}

    def log(self, row, step):
        self.logged.append((step, row))

    def define_metric(self, name, summary):
        self.defined[name] = summary


def rows(*recorded, run=None):
    run = run or Run()
    wandb = types.SimpleNamespace(Html=lambda text, inject: text)
    rows = MirroredRows(run, wandb)
    for event in recorded:
        step = getattr(event, "step", 0)
        rows.take(Recorded(5.0, step, event))
    rows.release()
    return run, rows


def test_rows_are_named_by_what_they_are_about():
    values = {"loss": 2.0, "mfu": 0.4, "tokens": 64, "epochs": 0.5, "probe/entropy": 1.0}
    run, _ = rows(Step(1, values))
    assert run.logged == [
        (
            1,
            {
                "_timestamp": 5.0,
                "train/loss": 2.0,
                "performance/mfu": 0.4,
                "tokens": 64,
                "epochs": 0.5,
                "probe/entropy": 1.0,
            },
        )
    ]


def test_what_belongs_to_a_step_is_one_row_and_rows_ascend():
    run, _ = rows(
        Evaluation(0, "held_out", {"loss": 5.0}),
        Evaluation(2, "held_out", {"loss": 3.0}, {"loss": "lower"}),
        Step(1, {"loss": 4.0}),
        Step(2, {"loss": 3.5}),
        Sample(2, "<b>&"),
        Step(3, {"loss": math.nan}),
    )
    assert [step for step, _ in run.logged] == [0, 1, 2, 3]
    assert run.logged[2][1] == {
        "_timestamp": 5.0,
        "eval/held_out/loss": 3.0,
        "train/loss": 3.5,
        "sample": "<pre>&lt;b&gt;&amp;</pre>",
    }
    assert run.defined == {"eval/held_out/loss": "min,last"}


def test_samples_images_and_histograms(tmp_path, monkeypatch):
    wandb = types.SimpleNamespace(
        Html=lambda text, inject: ("html", text),
        Image=lambda path: ("image", path),
        Histogram=lambda np_histogram: [x.tolist() for x in np_histogram],
    )
    image = MediaFiles(tmp_path).keep(Image(1, "data/inputs", np.zeros((2, 2), np.uint8)))
    for pillow, kind in ((object(), "image"), (None, "html")):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, found=pillow: found)
        run = Run()
        taken = MirroredRows(run, wandb, tmp_path)
        for event in (
            Sample(1, "<be", "To ", "training/0"),
            image,
            dataclasses.replace(image, name="gone", path="media/gone/1.png"),
            Histogram(1, "norm.scale", 0.0, 1.0, [3, 4]),
        ):
            taken.take(Recorded(5.0, 1, event))
        taken.release()
        ((_, row),) = run.logged
        assert row["sample/training/0"] == ("html", "<pre><b>To </b>&lt;be</pre>")
        assert row["images/data/inputs"][0] == kind
        assert "images/gone" not in row
        assert row["histograms/norm.scale"] == [[3, 4], [0.0, 0.5, 1.0]]
    assert row["images/data/inputs"][1].startswith('<img src="data:image/png;base64,iVBOR')


@pytest.mark.full
def test_the_real_wandb_holds_media_and_so_does_a_rebuilt_one(run, read_wandb):
    recorder = Records(console=None, wandb=Wandb()).open(run)
    for step in (1, 2):
        recorder.emit(Step(step, {"loss": 1.0}))
        recorder.emit(Sample(step, "or not", "To be ", "training/0"))
        pixels = np.full((4, 6, 3), 40 * step, np.uint8)
        recorder.emit(Image(step, "data/inputs", pixels))
        recorder.emit(Histogram(step, "norm.scale", 0.0, 1.5, [step, 0, 5]))
    recorder.emit(Ended("finished", 2))
    recorder.close()
    for again in (False, True):
        if again:
            rebuild(run, "offline")
        (directory,) = (run.path / "wandb").glob("offline-run-*")
        history = read_wandb(directory)["history"]
        assert [row["_step"] for row in history] == [1, 2]
        for step, row in enumerate(history, 1):
            assert row["sample/training/0._type"] == "html-file"
            assert row["images/data/inputs._type"] in ("image-file", "html-file")
            assert row["histograms/norm.scale._type"] == "histogram"
            assert _plain(row["histograms/norm.scale.values"]) == [step, 0, 5]
            assert _plain(row["histograms/norm.scale.bins"]) == [0, 0.5, 1, 1.5]
            stored = directory / "files" / row["images/data/inputs.path"]
            kept = run.path / "media" / "data" / "inputs" / f"{step}.png"
            if stored.suffix == ".png":
                assert stored.read_bytes() == kept.read_bytes()
            else:
                assert base64.b64encode(kept.read_bytes()) in stored.read_bytes()


def _plain(value):
    return json.loads(value) if isinstance(value, str) else value


def test_a_resumed_run_is_not_given_what_the_server_has():
    steps = [Step(step, {"loss": 1.0}) for step in range(1, 7)]
    run, _ = rows(*steps, run=Run(step=4, resumed=True))
    assert [step for step, _ in run.logged] == [4, 5, 6]


def test_the_end_decides_the_exit_code():
    ended = {"finished": 0, "preempted": 75, "interrupted": 130, "failed": 1, "strange": 1}
    for status, code in ended.items():
        run, taken = rows(Header("x"), Ended(status, 5, {"best": 1.0}))
        assert taken.exit_code == code
        assert run.summary == {"status": status, "best": 1.0}
    _, taken = rows(Header("x"), Ended("interrupted", 5), Header("x", step=5))
    assert taken.exit_code == 1, "it was started again, and has not ended with a word"


@pytest.mark.full
def test_the_real_wandb_offline(run, read_wandb):
    """Everything that W&B is to hold, read back from the file that it writes."""
    run.write_source(read_source(directory=pathlib.Path(__file__).parent))
    wandb = Wandb(project="p", group="g", job_type="j", tags=("a", "b"), notes="n")
    recorder = Records(console=None, wandb=wandb).open(run)
    entropies = {"unigram_entropy": 3.3, "bigram_entropy": 2.4}
    recorder.emit(Header("demo", parameters=123, evaluations={"held_out": entropies}))
    for step in range(1, 31):
        values = {"loss": 5 / step, "tokens": 10 * step, "mfu": 0.4}
        recorder.emit(Step(step, values))
        if step % 10 == 0:
            metrics = {"nats_per_byte": 3 - step / 20}
            recorder.emit(Evaluation(step, "held_out", metrics, {"nats_per_byte": "lower"}))
    recorder.emit(Step(31, {"loss": math.nan}))
    recorder.emit(Sample(31, "To be"))
    recorder.emit(Ended("finished", 31, {"best": 1.5}))
    recorder.close()

    (directory,) = (run.path / "wandb").glob("offline-run-*")
    contents = read_wandb(directory)
    described = contents["run"]
    assert described["run_id"] == json.loads((run.path / "wandb.json").read_text())["id"]
    assert (described["project"], described["run_group"], described["job_type"]) == ("p", "g", "j")
    assert (described["display_name"], described["notes"]) == ("demo/abc123", "n")
    assert described["tags"] == ["a", "b"]
    source = run.read_source()
    assert described.get("git", {}).get("commit", "") == source["git"].get("revision", "")
    assert contents["config"]["model"] == {"dim": 8}
    assert contents["config"]["source"]["versions"] == source["versions"]

    history = contents["history"]
    assert [row["_step"] for row in history] == list(range(1, 32))
    assert history[2]["train/loss"] == 5 / 3
    assert history[2]["tokens"] == 30
    assert history[2]["performance/mfu"] == 0.4
    assert history[9]["eval/held_out/nats_per_byte"] == 2.5
    assert history[30]["train/loss"] == "NaN"
    assert history[30]["sample._type"] == "html-file"

    summary = contents["summary"]
    assert summary["parameters"] == 123
    assert summary["eval/held_out/unigram_entropy"] == 3.3
    assert summary["best"] == 1.5
    assert summary["status"] == "finished"
    assert contents["exit"] == 0
    assert "eval/held_out/nats_per_byte" in contents["metrics"]


@pytest.mark.full
@pytest.mark.parametrize(("status", "outcome"), [("finished", "complete"), ("pruned", "pruned")])
def test_the_real_wandb_has_the_outcome_of_a_trial_in_its_config(run, read_wandb, status, outcome):
    config = {"study": "s", "trial": 7, "outcome": "running", "summary_run": "5ba1e7"}
    wandb = Wandb(config={**config, "swept/optimizer.learning_rate.peak": 0.02})
    recorder = Records(console=None, wandb=wandb).open(run)
    recorder.emit(Header("demo"))
    recorder.emit(Ended(status, 5, {}))
    recorder.close()
    (directory,) = (run.path / "wandb").glob("offline-run-*")
    found = read_wandb(directory)["config"]
    assert found["model"] == {"dim": 8}
    assert {name: found[name] for name in config} == {**config, "outcome": outcome}
    assert found["swept/optimizer.learning_rate.peak"] == 0.02
    assert "summary_url" not in found  # offline, nothing has an address


def test_a_trial_links_to_the_run_of_its_study(run):
    config = {"outcome": "running", "summary_run": "5ba1e7"}
    (run.path / "wandb.json").write_text(json.dumps({"config": config}))
    found = {}
    keep_outcome(
        types.SimpleNamespace(
            url="https://wandb.test/me/p/runs/abc123",
            summary={"status": "finished"},
            config=types.SimpleNamespace(update=lambda new, allow_val_change: found.update(new)),
        ),
        run,
    )
    assert found == {
        "outcome": "complete",
        "summary_url": "https://wandb.test/me/p/runs/5ba1e7",
    }
