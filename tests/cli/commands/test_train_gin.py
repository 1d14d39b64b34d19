"""What a run keeps of its graph for gin, and its graph as a ConfigDict."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from luthier import graph as graphs
from luthier import records
from luthier.cli import main

GIN = "RATE = 0.02\nUNUSED = 3\nWarmupCosine.peak = %RATE\nTraining.steps = 2\n"


@pytest.mark.slow
def test_the_operative_gin_file_is_kept_with_the_run(importable_project, capsys):
    (importable_project / "small.gin").write_text(GIN)
    words = ["trials.tiny", "--gin_file", "small.gin", "--wandb", "off"]
    assert main(["train", *words]) == 0
    (run,) = (importable_project / "runs" / "tiny").iterdir()
    assert not (run / "operative_config.gin").exists()
    # Also where a run goes on, and what nothing uses is not in it.
    assert main(["train", *words, "gin:RATE=0.01", "--operative-gin"]) == 0
    (run,) = set((importable_project / "runs" / "tiny").iterdir()) - {run}
    text = (run / "operative_config.gin").read_text()
    assert "RATE = 0.01\n" in text
    assert "UNUSED" not in text
    graph = graphs.from_json((run / "config.json").read_text())
    assert graphs.equal(graphs.from_gin(text), graph)
    accepted = (
        "import sys, gin; gin.parse_config(open(sys.argv[1]).read()); print(gin.config_str())"
    )
    command = [sys.executable, "-c", accepted, str(run / "operative_config.gin")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "RATE = 0.01" in output
    capsys.readouterr()
    assert main(["show", str(run / "operative_config.gin"), "--to", "json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["graph"] == json.loads(graphs.to_json(graph))["graph"]
    )


def test_the_graph_of_a_run_as_a_config_dict(trained):
    (run,) = (trained / "runs" / "tiny").iterdir()
    graph = graphs.from_json(records.find(trained / "runs", run.name).read_config())
    config = graphs.to_config_dict(graph)
    assert config.is_locked
    assert config.training.steps == 4
    assert config.optimizer["class"] == "luthier.optim.adamw"
    config.training.steps = 7  # one constant for all its places
    assert config.optimizer.learning_rate.total_steps == 7
