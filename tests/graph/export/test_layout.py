from __future__ import annotations

import ast
import math

import hypothesis
import jax.nn
import pytest
from graph_toys import recorded
from hypothesis import strategies as st

from luthier.graph.export.layout import Group, Text, lay_out, literal, number, string
from luthier.graph.export.names import Imports, Names, find, split


def _call(*names, is_call=True):
    brackets = ("f(", ")") if is_call else ("[", "]")
    return Group(brackets[0], [("", Text(name)) for name in names], brackets[1], is_call)


def test_what_fits_is_one_line():
    assert lay_out(_call("a", "b"), 4, 10) == "f(a, b)"
    assert lay_out(Group("(", [("", Text("a"))], ")", comma=True), 0, 0) == "(a,)"


def test_arguments_share_a_line_of_their_own_and_entries_do_not():
    assert lay_out(_call("a" * 40, "b" * 40), 4, 30) == f"f(\n        {'a' * 40}, {'b' * 40}\n    )"
    listed = _call("a" * 40, "b" * 40, is_call=False)
    assert lay_out(listed, 0, 30) == f"[\n    {'a' * 40},\n    {'b' * 40},\n]"


def test_what_is_too_long_is_one_entry_a_line():
    text = lay_out(_call("a" * 60, "b" * 60), 0, 0)
    assert text == f"f(\n    {'a' * 60},\n    {'b' * 60},\n)"


def test_room_is_left_for_what_follows():
    call = _call("a" * 50, "b" * 41)
    assert "\n" not in lay_out(call, 0, 4)
    assert "\n" in lay_out(call, 0, 4, tail=1)


def test_the_height_counts_brackets_that_take_lines():
    assert _call("a").height == 0
    assert Group("f(", [("", _call("a" * 99))], ")").height == 2


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a", '"a"'),
        ('say "a"', "'say \"a\"'"),
        ("it's", '"it\'s"'),
        ("'\"", '"\'\\""'),
        ("\\'", '"\\\\\'"'),
        ("\n", '"\\n"'),
    ],
)
def test_strings(text, written):
    assert string(text) == written


@hypothesis.given(st.text(st.characters()))
def test_strings_come_back(text):
    assert ast.literal_eval(string(text)) == text


@hypothesis.given(st.binary())
def test_bytes_come_back(data):
    written = literal({"bytes": data.hex()}, Imports([])).flat
    assert ast.literal_eval(written) == data


@hypothesis.given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back(value):
    read = ast.literal_eval(number(value))
    assert read == value
    assert math.copysign(1, read) == math.copysign(1, value)


def test_numbers_are_short():
    assert number(4e-05) == "4e-5"
    assert number(1e22) == "1e22"
    assert number(0.1) == "0.1"
    assert number(-math.inf) == 'float("-inf")'


@pytest.mark.parametrize(
    ("data", "written"),
    [
        ({"enum": "enum.Enum", "member": "class"}, 'enum.Enum["class"]'),
        ({"complex": "(-0-infj)"}, 'complex(-0.0, float("-inf"))'),
        ({"range": [1, 2, 1]}, "range(1, 2, 1)"),
        ({"dtype": "bfloat16", "value": 1.5}, 'jnp.dtype("bfloat16").type(1.5)'),
        ({"path": "a", "kind": "PurePath"}, 'pathlib.PurePath("a")'),
        (
            {"partition_spec": ["a", None, ["b"], []]},
            'jax.sharding.PartitionSpec("a", None, ("b",), ())',
        ),
    ],
)
def test_other_leaves(data, written):
    assert literal(data, Imports([])).flat == written


def test_the_last_names_of_a_path_are_tried_first():
    names = Names(["data"])
    path = ("evaluations", "held_out", "data")
    given = [names.give(path) for _ in range(5)]
    assert given == [
        "held_out_data",
        "evaluations_held_out_data",
        "data_config",
        "data_2",
        "data_3",
    ]
    assert Names(["data"]).give(("data",)) == "data_config"


def test_the_wish_comes_first():
    names = Names()
    assert [names.give(("a", "b"), "steps") for _ in range(2)] == ["steps", "b"]


def test_names_can_be_names():
    assert Names().give(("layers", 0)) == "layers_0"
    assert Names().give(("long text",)) == "long_text"
    assert Names().give(("class",)) == "class_config"
    assert Names().give(("id",)) == "id_config"
    assert Names().give(("3",)) == "value_3"
    assert Names().give(()) == "value"
    assert Names().give(("größe",)) == "gr_e"


def _imports(*names):
    imports = Imports(names)
    return [imports.name(name) for name in names], imports.lines()


def test_rooms_of_luthier_are_short_and_others_whole():
    import luthier.optim

    assert luthier.optim
    names = ["luthier.optim.adamw", "jax.nn.silu", "jax.numpy.float32", "builtins.int"]
    assert _imports(*names) == (
        ["optim.adamw", "jax.nn.silu", "jnp.float32", "int"],
        ["import jax.nn", "import jax.numpy as jnp", "from luthier import optim"],
    )


def test_standard_modules_stand_apart():
    imports = Imports(["luthier.graph.values.constant"])
    imports.module("pathlib")
    imports.member("luthier.graph", "value")
    assert imports.name("luthier.graph.values.constant") == "values.constant"
    assert imports.lines() == ["import pathlib", "", "from luthier.graph import value, values"]


def test_two_modules_of_one_name():
    names = ["luthier.graph.export.names.Names", "luthier.graph.grammar.names.x"]
    assert _imports(*names)[0] == ["names.Names", "luthier.graph.grammar.names.x"]


def test_only_what_is_used_is_imported():
    assert Imports(["luthier.optim.adamw"]).lines() == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("jax.nn.gelu", ("jax.nn", "gelu")),
        ("graph_toys.recorded.Holder.Inner", ("graph_toys.recorded", "Holder.Inner")),
    ],
)
def test_the_module_of_a_name(name, parts):
    assert split(name) == parts


def test_the_object_of_a_name():
    assert find("graph_toys.recorded.Holder.Inner") is recorded.Holder.Inner
    assert find("jax.nn.gelu") is jax.nn.gelu
