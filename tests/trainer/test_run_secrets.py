"""Planted secrets are in no file of a run, and its files have the modes of the user's umask."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from luthier import graph as graphs
from luthier import trainer
from luthier.errors import RecordError
from luthier.records import RunDirectory, read_events
from luthier.trainer import Watcher

KEY = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_plantedTOKEN123"
PASSWORD = "planted-password-1"
SECRETS = [KEY, TOKEN, PASSWORD]
FAST = ("training.steps=2", "checkpoints.every.count=1", "evaluations={}", "training.ema=None")


@pytest.fixture
def planted(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    url = f"--data=https://user:{PASSWORD}@host/x"
    monkeypatch.setattr(sys, "argv", ["luthier", "train", f"--key={KEY}", url])
    before = os.umask(0o027)
    yield url
    os.umask(before)


def _files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def _assert_none(folder):
    for path in _files(folder):
        content = path.read_bytes()
        for secret in SECRETS:
            assert secret.encode() not in content, f"{path} holds {secret}"


WANDB = pytest.param('luthier.records.Wandb(mode="offline")', marks=pytest.mark.slow)


@pytest.mark.full
@pytest.mark.parametrize("mirror", ["None", WANDB])
def test_no_file_of_a_run_holds_a_planted_secret(tiny, tmp_path, monkeypatch, planted, mirror):
    graph = tiny(tmp_path / "runs", *FAST, f"records.wandb={mirror}")
    graph = graphs.apply(graph, ["seed=3"], origin=f"argument 2: {planted}")

    def warn(self, step, metrics, last, fraction):
        raise OSError(f"cannot reach https://user:{PASSWORD}@host with {TOKEN}")

    monkeypatch.setattr(Watcher, "evaluated", warn)
    with pytest.raises(OSError, match="cannot reach"):
        trainer.run(graph)
    (run,) = (tmp_path / "runs" / graphs.get(graph, "name")).iterdir()
    _assert_none(tmp_path / "runs")
    ended = [recorded.event for recorded in read_events(run / "metrics.jsonl")][-1]
    assert "https://***@host with [HF_TOKEN]" in ended.message
    assert "https://***@host/x" in (run / "config.history.json").read_text()
    arguments = RunDirectory(run).read_source()["arguments"]
    assert arguments[2:] == ["--key=[WANDB_API_KEY]", "--data=https://***@host/x"]
    for path in (tmp_path / "runs").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o027 == 0, f"{path}: {mode:o}"
        if "wandb" not in path.parts:
            assert mode & 0o640 == 0o640, f"{path}: {mode:o}"


def test_a_graph_with_a_secret_is_refused_before_anything_is_written(tiny, tmp_path, planted):
    graph = tiny(
        tmp_path / "runs", *FAST, f"data.source.pattern=https://user:{PASSWORD}@host/*.txt"
    )
    with pytest.raises(RecordError) as caught:
        trainer.opening.configuration(graph).files()
    assert str(caught.value).startswith("data.source.pattern: holds a password in a URL, which")
    assert PASSWORD not in str(caught.value)
    assert not (tmp_path / "runs").exists()
