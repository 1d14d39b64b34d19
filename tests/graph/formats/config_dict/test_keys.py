from __future__ import annotations

import json
import pathlib

import pytest
from graph_toys import parts

from luthier import graph as graphs
from luthier.errors import OverrideError

FILES = pathlib.Path(__file__).parent / "files"


@pytest.fixture
def graph(monkeypatch):
    monkeypatch.chdir(FILES)
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


def test_a_key_that_set_nothing_is_told_with_the_nearest(graph):
    with pytest.raises(OverrideError) as caught:
        graphs.apply(graph, ["config_dict:learning_rat=1"])
    assert str(caught.value) == (
        "no key 'learning_rat' set anything [set by argument 1: config_dict:learning_rat=1]; "
        "did you mean config_dict:learning_rate?"
    )
    with pytest.raises(OverrideError, match="the graph has no values of a ConfigDict"):
        graphs.apply(parts.experiment(), ["config_dict:steps=1"])
