"""Who set a value: base file, recipe, fiddler, tag and argument, in order, also from a record."""

from __future__ import annotations

import re
import sys

import pytest

from luthier import graph as graphs
from luthier.cli import main

BASE = '''"""An experiment whose model is of a recipe, with a tag."""
import fiddle as fdl

from luthier import data, optim, program, tasks
from luthier.recipes import decoders
from my_fiddlers import Width


def experiment() -> fdl.Config[program.Experiment]:
    """Train a very small model."""
    model = decoders.llama(vocab_size=258, dim=16, num_layers=1, num_heads=2, hidden_dim=16)
    fdl.add_tag(model, "dim", Width)
    return fdl.Config(
        program.Experiment,
        name="traced",
        model=model,
        task=fdl.Config(tasks.LanguageModelling),
        data=fdl.Config(
            data.Packed,
            source=fdl.Config(data.Shakespeare, split="train"),
            tokenizer=fdl.Config(data.Bytes),
            length=32,
            packing=fdl.Config(data.Concatenate),
        ),
        optimizer=fdl.Config(optim.adamw, learning_rate=1e-3),
        training=fdl.Config(program.Training, steps=2, global_batch_size=8),
    )
'''
FIDDLERS = '''import fiddle as fdl


class Width(fdl.Tag):
    """How wide the model is."""


def widen(graph: fdl.Config, dim: int):
    """Set the width."""
    graph.model.dim = dim
'''
WORDS = ["fiddler:my_fiddlers.widen(32)", "tag:my_fiddlers.Width=64", "model.dim=128"]
CHAIN = [
    ("16", r"\S*recipes/decoders/llama\.py:\d+, called from trial\.py:11"),
    ("32", r"argument 1: fiddler:my_fiddlers\.widen\(32\), my_fiddlers\.py:10"),
    ("64", r"argument 2: tag:my_fiddlers\.Width=64"),
    ("128", r"argument 3: model\.dim=128"),
]


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "trial.py").write_text(BASE)
    (tmp_path / "my_fiddlers.py").write_text(FIDDLERS)
    (tmp_path / "pyproject.toml").write_text('[tool.luthier]\npackages = ["my_fiddlers"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("trial", "my_fiddlers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def _chain(reference, words, capsys):
    """Return (value, what set it) of the lines that `luthier show --why model.dim` prints."""
    assert main(["show", reference, *words, "--why", "model.dim"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=2) for line in lines[3:] if line.startswith("model.dim ")]
    return [(value, by) for _, value, by in rows]


def _assert_chain(found, expected):
    assert [value for value, _ in found] == [value for value, _ in expected]
    for (_, by), (_, pattern) in zip(found, expected, strict=True):
        assert re.fullmatch(pattern, by), by


def test_the_chain_is_whole_and_in_order(project, capsys):
    _assert_chain(_chain("trial", WORDS, capsys), CHAIN)


def test_a_recorded_run_has_the_same_history_and_later_changes(project, capsys, make_run):
    packages = ("my_fiddlers",)
    graph = graphs.apply(graphs.resolve("trial"), WORDS)
    run = make_run(graph, "traced", "ab12")
    recorded = [(value, rf"{pattern} \(in run traced/ab12\)") for value, pattern in CHAIN]
    _assert_chain(_chain("run:ab", [], capsys), recorded)
    after = [*recorded, ("256", r"argument 1: model\.dim=256")]
    _assert_chain(_chain("run:ab", ["model.dim=256"], capsys), after)
    _assert_chain(_chain(str(run.path), ["model.dim=256"], capsys), after)

    # Trained on from there: the record of the next run tells both.
    again = graphs.from_json(run.read_config(), packages)
    graphs.restore_history(again, run.read_history(), "traced/ab12")
    again = graphs.apply(again, ["model.dim=256"])
    make_run(again, "traced", "cd34")
    later = [*recorded, ("256", r"argument 1: model\.dim=256 \(in run traced/cd34\)")]
    _assert_chain(_chain("run:cd", [], capsys), later)
