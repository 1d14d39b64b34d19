from __future__ import annotations

import re

import ml_collections
import pytest

from luthier import graph as graphs
from luthier.errors import OverrideError
from luthier.graph.formats.config_dict.loading import as_config_dict, load, load_config_dict


def _write(folder, text, name="made.py"):
    (folder / name).write_text(text)
    return name


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_argument_is_what_follows_the_first_colon(tmp_path):
    text = "def get_config(arg='none'):\n    return {'arg': arg}\n"
    name = _write(tmp_path, text)
    assert load_config_dict(name).arg == "none"
    assert load_config_dict(f"{name}:a=1,b=x:y").arg == "a=1,b=x:y"
    assert load_config_dict(f"{name}:").arg == ""


def test_the_file_tells_its_renames_and_its_lines(tmp_path):
    text = "RENAMES = {'a': 'b'}\ndef get_config():\n    return dict(a=1)\n"
    loaded = load(_write(tmp_path, text))
    assert (loaded.renames, loaded.source, loaded.lines(("a",))) == ({"a": "b"}, "made.py", 3)


def test_dataclasses_and_frozen_dicts_are_welcome(tmp_path):
    text = """
from __future__ import annotations
import dataclasses, ml_collections
@dataclasses.dataclass
class Size:
    dim: int = 3
def get_config():
    return ml_collections.FrozenConfigDict({"dim": Size().dim})
"""
    config = load_config_dict(_write(tmp_path, text))
    assert type(config) is ml_collections.ConfigDict
    assert config.dim == 3


@pytest.mark.parametrize(
    ("text", "written", "said"),
    [
        ("", "gone.py", "cannot read the file 'gone.py': No such file or directory"),
        ("", "made.json", "'made.json' is no file with a ConfigDict; write it like FILE.py or"),
        ("def get_confg(): pass", "made.py", "there is no function 'get_config' in made.py; did"),
        ("def get_config(:", "made.py", "made.py failed: made.py:1: SyntaxError: "),
        ("import not_there", "made.py", "made.py failed: made.py:1: ModuleNotFoundError: "),
        ("def get_config():\n    1 / 0", "made.py", "made.py failed: made.py:2: ZeroDivisionError"),
        ("def get_config(): pass", "made.py:x", "get_config of made.py takes no argument; write"),
        ("def get_config(a): pass", "made.py", "get_config of made.py needs an argument; write "),
        (
            "def get_config(): pass",
            "made.py",
            "what get_config of made.py returned is NoneType, no C",
        ),
        (
            "def get_config(): return 3",
            "made.py",
            "what get_config of made.py returned is int, no C",
        ),
        ("RENAMES = 3\ndef get_config(): return {}", "made.py", "RENAMES of made.py is no dict"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path, text, written, said):
    _write(tmp_path, text)
    with pytest.raises(OverrideError, match=f"^{re.escape(said)}"):
        load_config_dict(written)


def test_what_is_no_dict_is_told():
    assert as_config_dict({"a": {"b.c": 1}}, "here").a["b.c"] == 1
    with pytest.raises(OverrideError, match=r"^here is int, no ConfigDict"):
        as_config_dict(3, "here")


def test_a_config_dict_is_an_argument_of_experiments_and_fiddlers(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    _write(tmp_path, "def get_config(size):\n    return {'dim': int(size)}\n")
    text = """
import fiddle as fdl
from graph_toys import parts
from ml_collections import ConfigDict

def experiment(config: ConfigDict | None = None, scale: int = 1):
    graph = parts.experiment()
    graph.model.dim = config.dim * scale if config else 1
    return graph

def resize(graph: fdl.Config, config: ConfigDict):
    graph.model.dim = config.dim
"""
    _write(tmp_path, text, "takes_config_dicts.py")
    graph = graphs.resolve('takes_config_dicts:experiment(config="made.py:8", scale=2)')
    assert graph.model.dim == 16
    assert graphs.resolve("takes_config_dicts").model.dim == 1
    assert graphs.resolve("takes_config_dicts(config=None)").model.dim == 1
    changed = graphs.apply(graph, ['fiddler:takes_config_dicts.resize("made.py:4")'])
    assert changed.model.dim == 4
    with pytest.raises(OverrideError, match=r"^cannot read the file 'gone.py': "):
        graphs.resolve('takes_config_dicts(config="gone.py")')
