"""ConfigDicts on the command line of luthier."""

from __future__ import annotations

import json
import pathlib

import pytest
from graph_toys import parts

from luthier import graph as graphs
from luthier.cli import main
from luthier.errors import EXIT_BAD_INPUT, EXIT_DONE, OverrideError

FILES = pathlib.Path(__file__).parent / "files"
SCENIC = "config_dict:scenic_mnist.py"
RENAME = "config_dict_rename:scenic_renames.toml"


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_files(monkeypatch):
    monkeypatch.chdir(FILES)


def _apply(*words):
    return graphs.apply(parts.experiment(), words)


def errors(*words):
    with pytest.raises(OverrideError) as caught:
        _apply(*words)
    return str(caught.value).splitlines()


def test_words_count_in_their_order():
    assert _apply("model.dropout=0.3", SCENIC, RENAME).model.dropout == 0.1
    assert _apply(RENAME, SCENIC, "model.dropout=0.3").model.dropout == 0.3


def test_all_errors_are_reported_together_with_the_file_and_line_of_their_keys(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("def get_config():\n    return dict(\n        model=dict(dimm=3),\n    )\n")
    lines = errors("modle.dim=3", f"config_dict:{file}", "steps=abc")
    assert [line.partition(" [set by ")[0] for line in lines] == [
        "modle.dim: does not exist",
        "model.dimm: does not exist",
        "steps: 'abc' is not an int",
    ]
    assert "bad.py:3: model.dimm=3]; did you mean model.dim?" in lines[1]


def test_renames_need_a_config_dict_and_are_given_once():
    assert errors(RENAME) == [
        "--config_dict_rename has no effect without --config_dict; add --config_dict FILE.py"
    ]
    assert errors(RENAME, RENAME, SCENIC)[0] == (
        "--config_dict_rename is given twice; write one file with all of them"
    )
    assert errors("config_dict_rename:gone.toml") == [
        "cannot read the file 'gone.toml': No such file or directory"
    ]


FILES_KEYS = pathlib.Path(__file__).parent / "files"


@pytest.fixture
def graph(monkeypatch):
    monkeypatch.chdir(FILES_KEYS)
    return graphs.apply_config_dict(parts.experiment(), "clu_translation.py:base")


def test_a_key_selects_what_it_set(graph):
    changed = graphs.apply(graph, ["config_dict:learning_rate=0.5", "config_dict:num_heads*=2"])
    assert (changed.optimizer.learning_rate.peak, changed.model.num_heads) == (0.5, 16)


def test_a_shared_key_moves_all_that_follow_it(graph):
    changed = graphs.apply(graph, ["config_dict:emb_dim=64"])
    assert graphs.evaluate(changed.model.layers[0].hidden) == 256


def test_keys_are_known_of_a_recorded_graph_too(graph):
    read = graphs.from_json(graphs.to_json(graph), ["graph_toys"])
    assert graphs.restore_history(read, json.loads(json.dumps(graphs.history_record(graph))))
    changed = graphs.apply(read, ["config_dict:learning_rate=0.5"])
    assert changed.optimizer.learning_rate.peak == 0.5


def test_keys_of_a_config_dict_that_comes_from_no_file():
    config = {"optimizer": {"b2": 0.5}}
    graph = graphs.apply_config_dict(parts.experiment(), config)
    assert graphs.apply(graph, ["config_dict:optimizer.b2=0.25"]).optimizer.b2 == 0.25


def test_a_key_that_set_nothing_is_reported_with_the_nearest(graph):
    with pytest.raises(OverrideError) as caught:
        graphs.apply(graph, ["config_dict:learning_rat=1"])
    assert str(caught.value) == (
        "no key 'learning_rat' set anything [set by argument 1: config_dict:learning_rat=1]; "
        "did you mean config_dict:learning_rate?"
    )
    with pytest.raises(OverrideError, match="the graph has no values of a ConfigDict"):
        graphs.apply(parts.experiment(), ["config_dict:steps=1"])


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
    lines = capsys.readouterr().out
    assert "small.py:5: total_steps" in lines
    assert "argument 3: config_dict:total_steps=400" in lines


@pytest.mark.usefixtures("_project")
def test_what_is_wrong_is_reported_line_by_line(capsys):
    assert main(["show", "made_here", "--config_dict=small.py", "modle.dim=1"]) == (EXIT_BAD_INPUT)
    assert capsys.readouterr().err.splitlines() == [
        "luthier: total_steps: does not exist [set by small.py:5: total_steps]; "
        "did you mean steps?",
        "luthier: modle.dim: does not exist [set by argument 2: modle.dim=1]; "
        "did you mean model.dim?",
    ]
