"""Exceptions of the user's code: message, config path, the user's frames, and what was called."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import jax
import pytest

from luthier.cli import main

FILE = tomllib.loads(Path(__file__).with_name("user_errors.toml").read_text())
SMALL = [
    *("model.dim=16", "model.num_layers=1", "model.block.attention.num_heads=2"),
    *("model.block.attention.num_kv_heads=1", "model.block.mlp.hidden_dim=32"),
    *("training.steps=2", "training.global_batch_size=8", "checkpoints=None"),
    *("records.console=None", "records.wandb=None", "evaluations={}", "records.samples=None"),
    "data:=luthier.data.Synthetic(vocab_size=258, length=32)",
]
CASES = [
    pytest.param(case, id=case["name"], marks=[pytest.mark.full] if "full" in case else [])
    for case in FILE["case"]
]


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, text in FILE["files"].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    saved = {name: module for name, module in sys.modules.items() if is_of_project(name)}
    for name in saved:
        del sys.modules[name]
    yield tmp_path
    for name in [name for name in sys.modules if is_of_project(name)]:
        del sys.modules[name]
    sys.modules.update(saved)


def is_of_project(name):
    return name.split(".")[0] in ("my_parts", "configs")


def run(words, capsys):
    code = main(words)
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("case", CASES)
def test_an_error_in_the_users_code_is_their_message_path_frames_and_shapes(case, project, capsys):
    code, lines = run(["train", "quickstart", *SMALL, *case["overrides"]], capsys)
    shown = [re.sub(r"runs/\S+", "RUN", line) for line in lines]
    assert shown == [f"luthier: {line}" for line in case["lines"]]
    assert code == 1
    assert max(map(len, lines)) <= 200


@pytest.mark.full
@pytest.mark.parametrize("name", ["a data source", "a batch_spec that does not match the data"])
def test_a_dry_run_reports_data_of_the_users_as_training_does(name, project, capsys):
    (case,) = (case for case in FILE["case"] if case["name"] == name)
    words = ["train", "quickstart", *SMALL, *case["overrides"], "--dry-run"]
    code, lines = run(words, capsys)
    # Nothing is recorded, so that it ends with another line.
    assert lines[:-1] == [f"luthier: {line}" for line in case["lines"]][:-1]
    assert code == 1


def test_an_experiment_function_that_fails(project, capsys):
    assert run(["show", "configs.mine:experiment(size=3)"], capsys) == (
        1,
        [
            "luthier: configs.mine:experiment failed: LookupError: no model of size 3",
            "luthier:   configs/mine.py:2, in experiment: return make(size)",
            'luthier:   configs/mine.py:6, in make: raise LookupError(f"no model of size {size}")',
            "luthier:   called with size=3",
            "luthier: to see the traceback, add --debug",
        ],
    )


def test_jax_names_the_line_that_makes_a_nan(project, capsys):
    (project / "my_parts" / "logs.py").write_text(
        "import jax.numpy as jnp\n\n\ndef bad(x):\n    return jnp.log(x)\n"
    )
    words = [*SMALL, "model.block.mlp.activation=my_parts.logs.bad"]
    with jax.debug_nans(True):
        code, lines = run(["train", "quickstart", *words], capsys)
    assert code == 1
    assert lines[-3:-1] == [
        "luthier: FloatingPointError: invalid value (nan) encountered in log",
        "luthier:   my_parts/logs.py:5, in bad: return jnp.log(x)",
    ]
