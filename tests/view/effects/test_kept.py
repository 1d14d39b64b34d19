from __future__ import annotations

import jax
import pytest

from luthier import graph as graphs
from luthier.view.effects import facts


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "luthier" / "effects"


@pytest.fixture
def counted(monkeypatch):
    calls = []
    work_out = facts.facts_of

    def facts_of(graph, devices):
        calls.append(graphs.get(graph, "name"))
        return work_out(graph, devices)

    monkeypatch.setattr(facts, "facts_of", facts_of)
    return calls


@pytest.mark.full
def test_the_same_graph_is_worked_out_once(cache, counted):
    graph = graphs.resolve("configs.lm.quickstart")
    devices = jax.devices()[:1]
    first = facts.known_facts(graph, devices)
    assert facts.known_facts(graphs.copy_graph(graph), devices) == facts.known_facts(graph, devices)
    again = facts.known_facts(graph, devices)
    assert counted == ["quickstart"]
    assert (again.arrays, again.step) == (first.arrays, first.step)
    (file,) = cache.iterdir()
    file.write_text('{"damaged')
    assert facts.known_facts(graph, devices) == first
    assert len(counted) == 2


def test_what_the_facts_follow_from_is_in_the_key(cache, monkeypatch):
    graph = graphs.resolve("configs.lm.quickstart")
    other = graphs.apply(graph, ["optimizer.b2=0.9"])
    one, two = jax.devices()[:1], jax.devices()[:2]
    keys = {facts._key(graph, one, ()), facts._key(other, one, ()), facts._key(graph, two, ())}
    monkeypatch.setattr(facts, "hash_package", lambda name: "another state of the code")
    assert len(keys | {facts._key(graph, one, ())}) == 4


@pytest.mark.full
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, counted):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    graph = graphs.resolve("configs.lm.quickstart")
    for _ in range(2):
        facts.known_facts(graph, jax.devices()[:1])
    assert len(counted) == 2
