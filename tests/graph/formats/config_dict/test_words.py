from __future__ import annotations

import pathlib

import pytest
from graph_toys import parts

from luthier import graph as graphs
from luthier.errors import OverrideError

FILES = pathlib.Path(__file__).parent / "files"
SCENIC = "config_dict:scenic_mnist.py"
RENAME = "config_dict_rename:scenic_renames.toml"


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_files(monkeypatch):
    monkeypatch.chdir(FILES)


def _apply(*words):
    return graphs.apply(parts.experiment(), words)


def _said(*words):
    with pytest.raises(OverrideError) as caught:
        _apply(*words)
    return str(caught.value).splitlines()


def test_words_count_in_their_order():
    assert _apply("model.dropout=0.3", SCENIC, RENAME).model.dropout == 0.1
    assert _apply(RENAME, SCENIC, "model.dropout=0.3").model.dropout == 0.3


def test_all_errors_are_told_together_with_the_file_and_line_of_their_keys(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("def get_config():\n    return dict(\n        model=dict(dimm=3),\n    )\n")
    told = _said("modle.dim=3", f"config_dict:{file}", "steps=abc")
    assert [line.partition(" [set by ")[0] for line in told] == [
        "modle.dim: does not exist",
        "model.dimm: does not exist",
        "steps: 'abc' is not an int",
    ]
    assert "bad.py:3: model.dimm=3]; did you mean model.dim?" in told[1]


def test_renames_need_a_config_dict_and_are_given_once():
    assert _said(RENAME) == [
        "--config_dict_rename says nothing without --config_dict; add --config_dict FILE.py"
    ]
    assert _said(RENAME, RENAME, SCENIC)[0] == (
        "--config_dict_rename is given twice; write one file with all of them"
    )
    assert _said("config_dict_rename:gone.toml") == [
        "cannot read the file 'gone.toml': No such file or directory"
    ]
