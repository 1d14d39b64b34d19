"""Real sweeps over what gin files and ConfigDicts set, by name; with a process for every slice."""

from __future__ import annotations

import json

import pytest

from luthier import graph as graphs
from luthier import study as studies
from luthier.cli import main

GIN = """
LEARNING_RATE = 0.01
WarmupCosine.peak = %LEARNING_RATE
adamw.weight_decay = %LEARNING_RATE
"""

CONFIG = """
from ml_collections import config_dict

RENAMES = {"lr": "optimizer.learning_rate.peak", "decay": "optimizer.weight_decay"}

def get_config():
    config = config_dict.ConfigDict()
    config.lr = config_dict.FieldReference(0.01)
    config.decay = config.get_ref("lr") * 0.5
    return config
"""

FORMS = {
    "gin": (["--gin_file", "small.gin"], "gin:LEARNING_RATE", 1.0),
    "config_dict": (["--config_dict", "small.py"], "config_dict:lr", 0.5),
}


@pytest.fixture
def folder(importable_project):
    (importable_project / "small.gin").write_text(GIN)
    (importable_project / "small.py").write_text(CONFIG)
    return importable_project


@pytest.mark.parametrize("form", FORMS)
def test_a_misspelt_name_is_reported_before_anything_is_written(folder, capsys, form):
    flags, name, _ = FORMS[form]
    words = ["--space", f"{name}S=log(1e-3,1e-1)", "--wandb", "off"]
    assert main(["sweep", "trials.tiny", *flags, *words[:2]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"[set by space: {name}S, at 0.001]; did you mean {name}?")
    assert not (folder / "studies").exists()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_name_is_swept_by_real_training(folder, capsys, form):
    flags, name, ratio = FORMS[form]
    space = ["--space", f"{name}=log(1e-3,1e-1)", "--name", "named"]
    words = ["sweep", "trials.tiny", *flags, "records.wandb=None", *space, "--devices", "cpu:1"]
    words += ["--objective", "held_out/loss", "--sampler", "random"]
    assert main([*words, "--trials", "4"]) == 0
    assert "named: 4 of 4 trials ended" in capsys.readouterr().out
    study = folder / "studies" / "named"
    results = [json.loads((study / f"trials/000{n}/result.json").read_text()) for n in range(4)]
    # The trials share one program, whose learning rate is an argument, wherever it is used.
    assert [r["result"]["mode"]["hoisted"] for r in results[1:]] == [
        ["optimizer.learning_rate.peak", "seed"]
    ] * 3
    capsys.readouterr()
    assert main(["sweep", "rerun", "named/2"]) == 0
    assert capsys.readouterr().out.endswith("recorded numbers are equal, bit for bit\n")
    losses = [r["result"]["metrics"]["held_out/loss"] for r in results]
    assert len(set(losses)) == 4
    trial = studies.trial_graph(f"{study}/2")
    peak = graphs.evaluate(graphs.get(trial, "optimizer.learning_rate.peak"))
    decay = graphs.evaluate(graphs.get(trial, "optimizer.weight_decay"))
    assert decay == pytest.approx(ratio * peak)
    assert peak != 0.01
    # It goes on with more trials, and its best one is said in words that train takes.
    assert main([*words, "--trials", "5", "--resume", str(study)]) == 0
    assert "named: 5 of 5 trials ended" in capsys.readouterr().out
    assert main(["sweep", "best", str(study)]) == 0
    best = capsys.readouterr().out.split()
    assert [word.partition("=")[0] for word in best] in ([], [name])
    trial = studies.trial_graph(f"{study}/1")
    flag = f"{name}={graphs.evaluate(graphs.get(trial, 'optimizer.learning_rate.peak'))!r}"
    assert main(["show", "trials.tiny", *flags, "optimizer.learning_rate.peak", flag]) == 0
    assert repr(graphs.evaluate(graphs.get(trial, "optimizer.learning_rate.peak"))) in (
        capsys.readouterr().out
    )
