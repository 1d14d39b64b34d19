"""ConfigDicts on the command line of luthier."""

from __future__ import annotations

import pytest

from luthier.cli import main
from luthier.errors import EXIT_BAD_INPUT, EXIT_DONE

EXPERIMENT = """
from graph_toys.parts import experiment
"""
CONFIG = """\
import ml_collections

def get_config(steps="100"):
    config = ml_collections.ConfigDict()
    config.total_steps = int(steps)
    config.model = dict(dim=32)
    config.optimizer = dict(learning_rate=dict(total_steps=config.get_ref("total_steps")))
    return config
"""


@pytest.fixture
def _project(tmp_path, monkeypatch):
    (tmp_path / "made_here.py").write_text(EXPERIMENT)
    (tmp_path / "small.py").write_text(CONFIG)
    (tmp_path / "names.toml").write_text('total_steps = "steps"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


FLAGS = ["--config_dict", "small.py:300", "--config_dict_rename=names.toml"]


@pytest.mark.usefixtures("_project")
def test_values_of_a_config_dict_are_shown_with_their_line(capsys):
    words = ["show", "made_here", *FLAGS, "config_dict:total_steps=400"]
    assert main([*words, "steps", "model.dim"]) == EXIT_DONE
    assert capsys.readouterr().out == "400 (shared as total_steps)\n32\n"
    assert main([*words, "--why", "optimizer.learning_rate.total_steps"]) == EXIT_DONE
    told = capsys.readouterr().out
    assert "small.py:5: total_steps" in told
    assert "argument 3: config_dict:total_steps=400" in told


@pytest.mark.usefixtures("_project")
def test_what_is_wrong_is_told_line_by_line(capsys):
    assert main(["show", "made_here", "--config_dict=small.py", "modle.dim=1"]) == (EXIT_BAD_INPUT)
    assert capsys.readouterr().err.splitlines() == [
        "luthier: total_steps: does not exist [set by small.py:5: total_steps]; "
        "did you mean steps?",
        "luthier: modle.dim: does not exist [set by argument 2: modle.dim=1]; "
        "did you mean model.dim?",
    ]
