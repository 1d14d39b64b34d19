"""Fiddle's own JSON is read as the same graph, and imports no more than a record may."""

import json
import sys

import fiddle as fdl
import optax
import pytest
from fiddle.experimental import serialization
from graph_toys import parts

from luthier import graph as graphs
from luthier.cli import main
from luthier.errors import RecordError

PACKAGES = ("graph_toys",)


def dumped(graph):
    return serialization.dump_json(graph)


def test_what_fiddle_writes_is_read_as_the_same_graph():
    mlp = fdl.Config(parts.Mlp, hidden=8)
    graph = fdl.Config(
        parts.Model,
        dim=16,
        layers=[mlp, fdl.Partial(parts.Mlp, hidden=4), mlp, {"a": (1, 2.5, None)}],
        dropout=0.1,
    )
    text = dumped(graph)
    assert graphs.is_fiddle_json(text)
    assert not graphs.is_fiddle_json(graphs.to_json(graph))
    found = graphs.from_fiddle_json(text, PACKAGES)
    assert graphs.equal(found, graph)
    assert found.layers[0] is found.layers[2]
    assert graphs.apply(found, ["layers[0].hidden=9"]).layers[2].hidden == 9


def test_a_private_name_of_a_listed_object_is_known():
    text = dumped(fdl.Config(optax.adamw, learning_rate=0.1))
    assert "optax._src" in text
    assert graphs.from_fiddle_json(text) == fdl.Config(optax.adamw, learning_rate=0.1)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("os", "system", "'os.system' may not be imported: 'os' is not on the list"),
        ("graph_toys.parts", "Mlp", "'graph_toys.parts.Mlp' may not be imported"),
        ("fiddle._src.absl_flags.utils", "import_dotted_name", "'fiddle._src.absl_flags.utils"),
    ],
)
def test_nothing_is_imported_that_a_record_may_not_name(module, name, message):
    data = json.loads(dumped(fdl.Config(optax.adamw, learning_rate=0.1)))
    text = json.dumps(data).replace('"optax._src.alias"', f'"{module}"')
    text = text.replace('"name": "adamw"', f'"name": "{name}"')
    assert f'"{module}"' in text
    before = set(sys.modules)
    with pytest.raises(RecordError) as raised:
        graphs.from_fiddle_json(text)
    assert str(raised.value).startswith(message)
    assert set(sys.modules) == before


@pytest.mark.parametrize("text", ['{"root": 1, "objects": {}}', '{"root": {}, "objects": []}'])
def test_damaged_files_are_refused_in_one_line(text):
    with pytest.raises(RecordError) as raised:
        graphs.from_fiddle_json(text, source="x.json")
    assert str(raised.value).startswith("x.json ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("words", [["FILE"], ["--fdl_config_file", "FILE"]])
def test_a_command_takes_such_a_file_as_its_experiment(words, tmp_path, capsys):
    file = tmp_path / "adam.json"
    file.write_text(dumped(fdl.Config(optax.adamw, learning_rate=0.1)))
    words = [word.replace("FILE", str(file)) for word in words]
    assert main(["show", *words, "learning_rate=0.2"]) == 0
    assert capsys.readouterr().out == "optax.adamw\n  learning_rate = 0.2\n"
