from __future__ import annotations

import re

import ml_collections
import pytest
from ml_collections import config_dict

from luthier import graph as graphs
from luthier.errors import OverrideError
from luthier.graph import load_config_dict, values
from luthier.graph.formats.config_dict.loading import as_config_dict, find_lines, load
from luthier.graph.formats.config_dict.references import (
    References,
    is_missing,
    is_reference,
    target_of,
)
from luthier.graph.formats.config_dict.renames import Renames, read_renames


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


def test_a_file_has_renames_and_lines(tmp_path):
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
    ("text", "written", "message"),
    [
        ("", "gone.py", "cannot read the file 'gone.py': No such file or directory"),
        ("", "made.json", "'made.json' is not a file with a ConfigDict; write it like FILE.py or"),
        ("def get_confg(): pass", "made.py", "there is no function 'get_config' in made.py; did"),
        ("def get_config(:", "made.py", "made.py failed: made.py:1: SyntaxError: "),
        ("import not_there", "made.py", "made.py failed: made.py:1: ModuleNotFoundError: "),
        ("def get_config():\n    1 / 0", "made.py", "made.py failed: made.py:2: ZeroDivisionError"),
        ("def get_config(): pass", "made.py:x", "get_config of made.py takes no argument; write"),
        ("def get_config(a): pass", "made.py", "get_config of made.py needs an argument; write "),
        (
            "def get_config(): pass",
            "made.py",
            "the value that get_config of made.py returned is of type NoneType, not a C",
        ),
        (
            "def get_config(): return 3",
            "made.py",
            "the value that get_config of made.py returned is of type int, not a C",
        ),
        ("RENAMES = 3\ndef get_config(): return {}", "made.py", "RENAMES of made.py is not a dict"),
    ],
)
def test_what_is_wrong_is_reported_with_file_and_line(tmp_path, text, written, message):
    _write(tmp_path, text)
    with pytest.raises(OverrideError, match=f"^{re.escape(message)}"):
        load_config_dict(written)


def test_what_is_no_dict_is_reported():
    assert as_config_dict({"a": {"b.c": 1}}, "here").a["b.c"] == 1
    with pytest.raises(OverrideError, match=r"^here is of type int, not a ConfigDict"):
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


TEXT = """\
def get_config():
    config = ConfigDict(dict(a=1, nested={"b": 2}))
    config.lr = 1
    config.lr = 2
    config.model = dict(
        dim=3,
        mlp=ConfigDict({"hidden": 4}),
    )
    config["model"]["depth"] = 5
    head = config.head = ConfigDict()
    head.size = 6
    config.optimizer.update(b2=7)
    other(depth=8)
    one.rate = 9
    two.rate = 10
    config.names: str = "x"
    config.steps += 1
    return config
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("a", 2),
        ("nested.b", 2),
        ("lr", 4),
        ("model", 5),
        ("model.dim", 6),
        ("model.mlp.hidden", 7),
        ("model.depth", 9),
        ("head.size", 11),
        ("optimizer.b2", 12),
        ("some.rate", 0),
        ("names", 16),
        ("steps", 17),
        ("nothing", 0),
    ],
)
def test_the_line_that_sets_a_key(key, line):
    assert find_lines(TEXT)(tuple(key.split("."))) == line


def _targets(table, *key):
    return Renames([(table, "here")]).targets(key)


def test_a_key_means_the_path_of_its_own_name():
    assert _targets({}, "a", "b") == [("a", "b")]


def test_the_longest_key_that_is_renamed_counts():
    table = {"model": "task.model", "model.dim": "width", "log": False, "size": ["a.b", "c[0]"]}
    assert _targets(table, "model", "depth") == [("task", "model", "depth")]
    assert _targets(table, "model", "dim") == [("width",)]
    assert _targets(table, "log", "every") == []
    assert _targets(table, "size") == [("a", "b"), ("c", 0)]


def test_nested_tables_and_later_tables():
    renames = Renames([({"a": {"b": "x"}, "c": "y"}, "first"), ({"a.b": "z"}, "second")])
    assert renames.targets(("a", "b")) == [("z",)]
    assert renames.has_below(("a",))
    assert not renames.has_below(("c",))


def test_all_that_is_wrong_with_a_table_is_reported_at_once():
    with pytest.raises(OverrideError) as caught:
        Renames([({"a": "x y", "b": 3, "c": []}, "RENAMES of it.py")])
    assert str(caught.value).splitlines() == [
        "'x y' is not a path; write it like a.b[0]['c'] [set by RENAMES of it.py: a]",
        "3 is not a path of the graph, a list of paths, or false [set by RENAMES of it.py: b]",
        "[] is not a path of the graph, a list of paths, or false [set by RENAMES of it.py: c]",
    ]


def test_keys_that_are_not_there_are_reported_with_the_nearest():
    (problem,) = Renames([({"optimizer.lr": "x"}, "here")]).unused([("optimiser", "lr"), ("b",)])
    assert str(problem) == (
        "optimizer.lr is renamed, but the ConfigDict has no such key [set by here: optimizer.lr]; "
        "did you mean optimiser.lr?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a = ", "cannot read the renames in "),
        (b"\xff", "are not text in UTF-8"),
        (None, "cannot read the file .*: No such file or directory"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, message):
    file = tmp_path / "renames.toml"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(OverrideError, match=message):
        read_renames(str(file))


def _references(**found):
    return References(found.items(), lambda key: f"file: {key}")


def test_the_private_names_that_this_leans_on_are_there():
    reference = config_dict.FieldReference(3)
    computed = reference + 1
    assert reference._value == 3
    assert reference._ops == []
    assert computed._value is reference
    (step,) = computed._ops
    assert step.fn(1, *step.args) == 2
    assert config_dict.required_placeholder(int)._required


def test_a_reference_of_its_own_is_a_plain_value():
    reference = config_dict.FieldReference(3)
    assert _references(a=reference).convert(reference) == 3


def test_a_reference_at_two_places_is_one_constant_with_the_name_of_the_first():
    reference = config_dict.FieldReference(3)
    references = _references(a=reference, b=reference)
    node = references.convert(reference)
    assert values.is_constant(node)
    assert (node.value, node.name) == (3, "a")
    assert references.convert(reference) is node
    assert references.is_shared(node)


def test_a_reference_to_a_reference_is_that_reference():
    inner = config_dict.FieldReference(3)
    outer = config_dict.FieldReference(inner)
    assert is_reference(outer)
    assert target_of(outer) is inner
    references = _references(a=inner, b=outer)
    assert references.convert(outer) is references.convert(inner)


def test_arithmetic_is_written_with_the_names_of_its_references():
    steps, share = config_dict.FieldReference(100), config_dict.FieldReference(0.5)
    computed = 2 * steps - share * 3
    references = _references(steps=steps, computed=computed)
    node = references.convert(computed)
    assert values.expression(node) == "2 * steps - 0.5 * 3.0"
    assert values.evaluate(node) == computed.get() == 198.5


@pytest.mark.parametrize("compute", [abs, lambda ref: ref & 3, lambda ref: ref.to_float()])
def test_what_has_no_live_form_keeps_its_value(compute):
    computed = compute(config_dict.FieldReference(6))
    references = _references(a=computed)
    node = references.convert(computed)
    assert values.evaluate(node) == computed.get()
    assert references.is_frozen(computed)


def test_arithmetic_on_none_is_none_as_in_ml_collections():
    computed = config_dict.placeholder(int) + 1
    references = _references(a=computed)
    assert values.evaluate(references.convert(computed)) is None
    assert references.is_frozen(computed)


def test_a_required_placeholder_is_a_constant_without_a_value():
    placeholder = config_dict.required_placeholder(int)
    assert is_missing(placeholder)
    assert not is_missing(config_dict.placeholder(int))
    node = _references(a=placeholder).convert(placeholder)
    assert values.is_constant(node)
    assert "value" not in node.__arguments__
