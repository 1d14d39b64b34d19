from __future__ import annotations

import ast
import math

import hypothesis
import pytest
from hypothesis import strategies as st

from luthier.graph.export.layout import literal, number, string
from luthier.graph.export.names import Imports


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
