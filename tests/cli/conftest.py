"""A small project to run commands in, and one run that was trained there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from luthier import records
from luthier.cli import main
from luthier.trainer import configuration, run_id

# The toy components of the tests of luthier.graph.
TOYS = str(Path(__file__).resolve().parents[1] / "graph" / "importable")
if TOYS not in sys.path:
    sys.path.insert(0, TOYS)

EXPERIMENT = '''"""A very small language model of one file."""
import fiddle as fdl

from luthier import checkpoint, data, durations, layers, models, optim, program, records, tasks
from luthier.graph import value


def experiment(num_layers=1) -> fdl.Config[program.Experiment]:
    """Train a very small model."""
    steps = value(4, name="steps")
    return fdl.Config(
        program.Experiment,
        name="tiny",
        model=fdl.Partial(
            models.Decoder,
            vocab_size=258,
            dim=16,
            num_layers=num_layers,
            block=fdl.Partial(
                layers.PreNormBlock,
                attention=fdl.Partial(layers.Attention, num_heads=2, num_kv_heads=2),
                mlp=fdl.Partial(layers.Mlp, hidden_dim=16),
                norm=fdl.Partial(layers.RMSNorm),
            ),
            norm=fdl.Partial(layers.RMSNorm),
            embedding=fdl.Partial(layers.Embedding, pad_to_multiple=8),
        ),
        task=fdl.Config(tasks.LanguageModelling),
        data=text(),
        evaluations={
            "held_out": fdl.Config(program.Evaluation, data=text(), global_batch_size=8)
        },
        optimizer=fdl.Config(
            optim.adamw,
            learning_rate=fdl.Config(
                optim.WarmupCosine, peak=1e-2, warmup_steps=1, total_steps=steps, end=0.0
            ),
        ),
        training=fdl.Config(program.Training, steps=steps, global_batch_size=8),
        checkpoints=fdl.Config(checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 2)),
        records=fdl.Config(records.Records, console=None),
    )


def text():
    return fdl.Config(
        data.Packed,
        source=fdl.Config(data.TextFiles, "text.txt"),
        tokenizer=fdl.Config(data.Bytes),
        length=32,
        packing=fdl.Config(data.Concatenate),
    )
'''


def _make_project(folder: Path) -> Path:
    trials = folder / "trials"
    trials.mkdir()
    (trials / "__init__.py").write_text("")
    (trials / "tiny.py").write_text(EXPERIMENT)
    (trials / "broken.py").write_text("def experiment(:\n")
    (trials / "raising.py").write_text("import module_that_is_not_there\n")
    (trials / "other.py").write_text("def experiment():\n    return 3\n")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    (folder / "pyproject.toml").write_text("[tool.luthier]\npackages = []\n")
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with experiments in `trials/`; the working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return _make_project(tmp_path)


@pytest.fixture
def importable_project(project, monkeypatch) -> Path:
    """The same, with the folder on `sys.path`, as the command line has it."""
    monkeypatch.syspath_prepend(project)
    return project


@pytest.fixture
def make_run():
    """Return a function that records a run of a graph, as training does.

    Without an id, the run gets the one that training would give it.
    """

    def make(graph, id=None, name="tiny", root="runs"):
        recorded = configuration(graph)
        return records.RunDirectory.create(root, name, id or run_id(graph), configuration=recorded)

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A project with one run of `trials.tiny`, trained to its end; not to be changed."""
    folder = _make_project(tmp_path_factory.mktemp("trained"))
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["train", "trials.tiny", "--wandb", "off"]) == 0
    finally:
        os.chdir(before)
    return folder
