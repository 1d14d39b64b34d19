"""The command line of Pax: its names, its flags, on C4 as it is stored."""

from pathlib import Path

import pytest

from luthier.cli import main
from luthier.shipped import c4_shards
from tests.object_stores import environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def words(tmp_path):
    folder = tmp_path / "c4"
    sizes = {"num_documents": 90, "num_sequences": 12, "num_shards": 3}
    c4_shards.make(folder, kind="tfrecord", vocab_size=400, **sizes)
    words = ["train", "--exp=C4Spmd1BAdam4Replicas", "--fiddler", "tiny"]
    return [*words, "--fiddler", f'shared(folder="{folder}")', f"--job_log_dir={tmp_path}/runs"]


def test_its_twin_is_planned_on_eight_devices(words, tmp_path, capsys):
    assert main([*words, "--dry-run"]) == 0
    assert "on 8 x cpu (data 4, fsdp 2)" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_its_twin_trains_on_eight_devices(words, tmp_path, capsys):
    assert main(words) == 0
    assert "finished" in capsys.readouterr().out
    (metrics,) = (tmp_path / "runs" / "pax-1b-tiny").glob("*/metrics.jsonl")
    assert '"validation"' in metrics.read_text()


@pytest.mark.full
def test_without_a_network_there_is_one_line(tmp_path, capfd, monkeypatch):
    for name, setting in environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, setting)
    words = ["train", "--exp=C4Spmd1BAdam4Replicas", "--fiddler", "tiny"]
    assert main([*words, f"--job_log_dir={tmp_path}/runs"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("luthier: gs://mlperf-llm-public2/")
    assert line.endswith(
        "; or try it on a small C4: `python -m luthier.shipped.c4_shards c4`, then "
        """--fiddler 'shared(folder="c4")'"""
    )
    assert not (tmp_path / "runs").exists()


def test_a_name_that_pax_does_not_have(capfd):
    assert main(["train", "--exp=C4Spmd1BAdam8Replicas"]) == 2
    assert "did you mean C4Spmd1BAdam4Replicas" in capfd.readouterr().err


def test_all_names_of_pax_are_listed(capsys):
    assert main(["list", "pax"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = {line.split()[1].removeprefix("--exp=") for line in lines if "--exp=" in line}
    assert {"C4Spmd1BAdam4Replicas", "NVIDIA5B", "BertAdamL4H128", "ResNet50Pjit"} <= named
