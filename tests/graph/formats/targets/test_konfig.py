"""ConfigDicts of konfig: calls by name and by position, constants, templates, and errors."""

from __future__ import annotations

import contextlib
import json

import fiddle as fdl
import hypothesis
import ml_collections
import pytest
from graph_toys import parts
from hypothesis import strategies as st

from luthier import graph as graphs
from luthier.errors import BadInput, RecordError
from luthier.graph import from_konfig

PACKAGES = ["graph_toys"]
CONFIG = {
    "__qualname__": "graph_toys.parts:Model",
    "0": 64,
    "layers": [
        {
            "__qualname__": "graph_toys.parts:Mlp",
            "hidden": 3,
            "activation": {"__const__": "graph_toys.parts:gelu"},
        },
        {
            "__qualname__": "functools:partial",
            "0": {"__const__": "graph_toys.parts:Mlp"},
            "1": 7,
            "dim": 4,
        },
    ],
}


def error(config) -> str:
    with pytest.raises(RecordError) as caught:
        from_konfig(config, PACKAGES)
    return str(caught.value)


@pytest.mark.parametrize("form", [dict, ml_collections.ConfigDict, json.dumps])
def test_a_config_as_konfig_writes_it(form):
    graph = from_konfig(form(CONFIG), PACKAGES)
    wanted = fdl.Config(
        parts.Model,
        dim=64,
        layers=(
            fdl.Config(parts.Mlp, hidden=3, activation=parts.gelu),
            fdl.Partial(parts.Mlp, hidden=7, dim=4),
        ),
    )
    assert graphs.equal(graph, wanted)


def test_arguments_in_a_list_tuples_and_dicts():
    config = {
        "__qualname__": "graph_toys.parts:Model",
        "__args__": [8, {"__qualname__": "builtins:tuple", "0": []}],
        "tie": {"a": 1},
    }
    graph = from_konfig(config, PACKAGES)
    assert (graph.dim, graph.layers, graph.tie) == (8, (), {"a": 1})


def test_the_origin_is_file_and_line():
    graph = from_konfig(json.dumps(CONFIG, indent=1), PACKAGES, "kauldron.json")
    assert graphs.origin_of(graph, "layers[0].hidden").startswith("kauldron.json")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"a": 1}, "config.json has no __qualname__ at its root"),
        ({"__qualname__": 3}, "__qualname__ is not a name [set by config.json]"),
        ({"__qualname__": "graph_toys.parts:Rules", "__args__": 3}, "__args__ is not a list"),
        (
            {"__qualname__": "graph_toys.parts:Model", "dimm": 3},
            "dimm: graph_toys.parts.Model takes no argument 'dimm'; did you mean dim?",
        ),
        ({"__qualname__": "os:system"}, "os.system"),
        (
            {"__qualname__": "builtins:tuple", "0": [1]},
            "config.json describes a plain value, not a node",
        ),
        (
            {"__qualname__": "graph_toys.parts:Model", "dim": object()},
            "an object of builtins.object cannot be recorded [set by config.json: dim]",
        ),
        *(
            (
                {
                    "__qualname__": "graph_toys.parts:Model",
                    "layers": {"__qualname__": "builtins:tuple", "0": [1], **more},
                },
                f"a tuple takes one argument, not {given} [set by config.json: layers]; "
                "put its elements into one list",
            )
            for more, given in (
                ({"1": [2]}, "2 arguments"),
                ({"__args__": [[2], 3]}, "3 arguments"),
                ({"start": 3}, "'start'"),
                ({"2": 3}, "'2'"),
            )
        ),
    ],
)
def test_what_is_wrong_is_reported(config, message):
    assert message in error(config)


def test_a_config_that_is_nested_too_deeply_is_refused():
    config = {"__qualname__": "graph_toys.parts:Model", "0": 8}
    for _ in range(2000):
        config = {"__qualname__": "graph_toys.parts:Model", "0": config}
    assert error(config) == "config.json is nested too deeply"


_KEYS = st.sampled_from(["__qualname__", "__const__", "__args__", "0", "1", "dim", "layers"])
_LEAVES = st.none() | st.integers(-3, 3) | st.floats()
_LEAVES |= st.sampled_from(
    ["graph_toys.parts:Model", "functools:partial", "builtins:tuple", "text", "a:b:c"]
)


@pytest.mark.full
@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    st.dictionaries(
        _KEYS,
        st.recursive(
            _LEAVES, lambda inside: st.dictionaries(_KEYS, inside) | st.lists(inside, max_size=2)
        ),
    )
)
def test_whatever_stands_in_it_nothing_but_bad_input_is_raised(config):
    with contextlib.suppress(BadInput):
        assert isinstance(from_konfig(config, PACKAGES), fdl.Buildable)
