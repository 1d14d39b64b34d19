from __future__ import annotations

import fiddle as fdl
import hypothesis
import ml_collections
import pytest
from graph_toys import parts
from hypothesis import strategies as st
from ml_collections import config_dict

from luthier import graph as graphs
from luthier.errors import RecordError
from luthier.graph import to_config_dict


def _part(value):
    return fdl.Config(parts.Experiment, extra=value)


def test_a_graph_is_a_locked_config_dict_of_its_values():
    config = to_config_dict(parts.experiment())
    assert isinstance(config, ml_collections.ConfigDict)
    assert config.is_locked
    assert config.optimizer.learning_rate.is_locked
    assert config.model.layers[0].is_locked
    assert config["class"] == "graph_toys.parts.Experiment"
    assert (config.model.dim, config.optimizer.b2, config.optimizer.b1) == (16, 0.99, 0.9)
    assert config.model.layers[0].activation is parts.relu
    assert config.kind is parts.Kind.FAST
    assert config.evaluations["long text"].data["class"] == "graph_toys.parts.Source"
    with pytest.raises(AttributeError):
        config.misspelt = 1


def test_defaults_can_be_left_out():
    config = to_config_dict(parts.experiment(), defaults=False)
    assert "b1" not in config.optimizer
    assert "b2" in config.optimizer


def test_a_shared_node_is_one_config_dict():
    config = to_config_dict(parts.experiment())
    assert config.model.layers[0] is config.model.layers[2]


def test_a_constant_is_one_reference_and_arithmetic_follows_it():
    dim = graphs.value(16, "dim")
    graph = parts.experiment()
    graph.model.dim, graph.extra = dim, graphs.power(2, graphs.subtract(dim, 10))
    graph.model.layers[0].hidden = graphs.multiply(dim, 4)
    config = to_config_dict(graph)
    assert (config.model.layers[0].hidden, config.extra) == (64, 64)
    with config.unlocked():
        config.model.dim = 12
    assert (config.model.layers[0].hidden, config.extra) == (48, 4)


def test_what_is_not_set_is_reported_by_its_path():
    graph = parts.experiment()
    graph.model.dim = fdl.Config(graphs.value(1, "dim").__fn_or_cls__, name="dim")
    graph.extra = graphs.floor_divide(1, 0)
    with pytest.raises(RecordError) as caught:
        to_config_dict(graph)
    assert [problem.path for problem in caught.value.problems] == ["model.dim", "extra"]


def test_a_circle_is_reported():
    graph = _part(None)
    graph.extra = [graph]
    with pytest.raises(RecordError, match=r"extra\[0\]: the config contains a cycle"):
        to_config_dict(graph)


def test_arguments_that_are_not_set_are_absent():
    assert "rate" not in to_config_dict(fdl.Config(parts.Constant))


_PLAIN = st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab.", max_size=3)
_PLAIN |= st.floats(allow_nan=False, allow_infinity=False)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    st.recursive(
        _PLAIN | st.integers(1, 9).map(lambda n: graphs.add(graphs.value(n, "n"), n)),
        lambda inside: (
            st.lists(inside, max_size=3)
            | st.dictionaries(st.text("ab.", max_size=3), inside, max_size=3)
            | inside.map(lambda value: fdl.Config(parts.Cosine, peak=value))
        ),
    )
)
def test_values_are_those_of_the_graph(value):
    assert _plain(to_config_dict(_part(value)).extra) == _wanted(value)


def _plain(found):
    if isinstance(found, config_dict.FieldReference):
        return found.get()
    if isinstance(found, ml_collections.ConfigDict):
        return {key: _plain(found[key]) for key in found}
    return [_plain(item) for item in found] if isinstance(found, list) else found


def _wanted(value):
    if graphs.is_value_node(value):
        return graphs.evaluate(value)
    if isinstance(value, fdl.Config):
        given = {"peak": _wanted(value.peak), "warmup_steps": 100, "total_steps": 1000}
        return {"class": "graph_toys.parts.Cosine", **given}
    if isinstance(value, dict):
        return {key: _wanted(child) for key, child in value.items()}
    return [_wanted(item) for item in value] if isinstance(value, list) else value
