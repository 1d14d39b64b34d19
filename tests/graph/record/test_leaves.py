from __future__ import annotations

import collections
import enum
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graph_toys import recorded
from graph_toys.names import case_name

from luthier.errors import RecordError
from luthier.graph import load_object
from luthier.graph.record import decode_leaf, encode_leaf, is_singleton

WRITTEN = [
    (1, 1),
    (2**80, 2**80),
    (True, True),
    (None, None),
    (1.0, 1.0),
    ("ü", "ü"),
    (math.inf, {"float": "inf"}),
    (-math.inf, {"float": "-inf"}),
    (1 - 2j, {"complex": "(1-2j)"}),
    (b"\x00\xff", {"bytes": "00ff"}),
    (jax.nn.gelu, {"name": "jax.nn.gelu"}),
    (jnp.bfloat16, {"name": "jax.numpy.bfloat16"}),
    (np.float32, {"name": "numpy.float32"}),
    (np.dtype("float32"), {"dtype": "float32"}),
    (np.dtype(jnp.bfloat16), {"dtype": "bfloat16"}),
    (np.dtype(">f4"), {"dtype": ">f4"}),
    (np.float32(0.5), {"dtype": "float32", "value": 0.5}),
    (np.float32(math.inf), {"dtype": "float32", "value": {"float": "inf"}}),
    (np.bool_(True), {"dtype": "bool", "value": True}),
    (recorded.Speed.FAST, {"enum": "graph_toys.recorded.Speed", "member": "FAST"}),
    (recorded.Ways.UP | recorded.Ways.DOWN, {"enum": "graph_toys.recorded.Ways", "value": 3}),
    (pathlib.Path("a/b"), {"path": "a/b", "kind": "Path"}),
    (pathlib.PurePosixPath("/c"), {"path": "/c", "kind": "PurePosixPath"}),
    (pathlib.PureWindowsPath("c:/d"), {"path": "c:\\d", "kind": "PureWindowsPath"}),
    (range(1, 9, 2), {"range": [1, 9, 2]}),
    (slice(None, 3), {"slice": [None, 3, None]}),
    (Ellipsis, {"ellipsis": True}),
    (
        jax.sharding.PartitionSpec("data", None, ("fsdp", "tensor")),
        {"partition_spec": ["data", None, ["fsdp", "tensor"]]},
    ),
]


def _load(name):
    return load_object(name, ["graph_toys"])


@pytest.mark.parametrize(
    ("value", "written"), WRITTEN, ids=[case_name(repr(value)) for value, _ in WRITTEN]
)
def test_leaves_are_written_and_read(value, written):
    assert encode_leaf(value) == written
    read = decode_leaf(written, _load)
    assert type(read) is type(value)
    assert read == value


def test_not_a_number():
    assert encode_leaf(math.nan) == {"float": "nan"}
    assert math.isnan(decode_leaf({"float": "nan"}, _load))
    read = decode_leaf(encode_leaf(np.float32(math.nan)), _load)
    assert isinstance(read, np.float32)
    assert np.isnan(read)


class Loud(str):
    """A string that is more than a string."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(2), r"array of float64\[2\]"),
        (jnp.zeros(()), "array of float32"),
        (jax.random.key(0), "array of"),
        (jax.sharding.PartitionSpec(jax.sharding.PartitionSpec.UNCONSTRAINED), "mesh axes only"),
        (np.dtype([("a", "f4")]), "dtype"),
        (lambda: 0, "lambda"),
        (object(), "use fdl.Config"),
        (Loud("a"), "Loud"),
        (collections.OrderedDict(), "plain dict"),
        (enum, "module enum"),
        (np.datetime64("2020-01-01"), "cannot be recorded"),
        (iter([]), "cannot be recorded"),
    ],
)
def test_what_cannot_be_written(value, message):
    with pytest.raises(RecordError, match=message) as caught:
        encode_leaf(value)
    assert caught.value.problems[0].remedy


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {"strange": 1},
        {"dtype": "float31"},
        {"bytes": 3},
        {"path": "x", "kind": "os"},
        {"slice": 1},
    ],
)
def test_what_cannot_be_read(data):
    with pytest.raises(RecordError, match="cannot read"):
        decode_leaf(data, _load)


def test_singletons():
    for value in (int, jax.nn.gelu, jax.nn.relu, np.dtype("int8"), recorded.Speed.FAST, Ellipsis):
        assert is_singleton(value)
    for value in (pathlib.Path("a"), range(3), recorded.Point(1), {1}):
        assert not is_singleton(value)
