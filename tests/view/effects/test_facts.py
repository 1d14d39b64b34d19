from __future__ import annotations

import math

import jax
import pytest

from luthier import graph as graphs
from luthier import optim
from luthier import program as programs
from luthier.errors import BadInput
from luthier.records import Evaluation, Step, encode_event
from luthier.view.effects import facts, facts_of, is_experiment


@pytest.fixture(scope="module")
def quickstart():
    return graphs.resolve("configs.lm.quickstart")


@pytest.mark.full
def test_bytes_are_those_that_materialize_allocates(quickstart):
    devices = jax.devices()[:1]
    graph = graphs.apply(
        quickstart, ["model.num_layers=1", "training.ema=luthier.optim.Ema(decay=0.9)"]
    )
    facts = facts_of(graph, devices)
    program = programs.make(graph, devices)
    allocated = {}
    for name, leaf in zip(
        program.names, programs.materialize(program, program.values()), strict=True
    ):
        kind = name.partition("/")[0]
        allocated[kind] = allocated.get(kind, 0) + leaf.nbytes
    assert facts.state_bytes == allocated
    assert (
        facts.state_bytes["ema"]
        == facts.state_bytes["parameters"]
        == facts.counts["gradient bytes"]
    )
    assert sum(facts.parameters.values()) * 4 == facts.state_bytes["parameters"]


@pytest.mark.full
def test_what_is_frozen_has_no_gradient_and_no_optimizer_state(quickstart):
    mask = "training.trainable=luthier.optim.Matching(pattern='norm')"
    devices = jax.devices()[:1]
    whole = facts_of(graphs.apply(quickstart, ["model.num_layers=1"]), devices)
    frozen = facts_of(graphs.apply(quickstart, ["model.num_layers=1", mask]), devices)
    assert frozen.parameters == whole.parameters
    assert frozen.counts["trained"] == 3 * 128 < whole.counts["trained"]
    assert frozen.counts["gradient bytes"] == 4 * frozen.counts["trained"]
    assert frozen.state_bytes["optimizer"] < whole.state_bytes["optimizer"] / 100
    assert "norm" in frozen.trainable
    assert whole.trainable == "all"


@pytest.mark.full
def test_what_is_on_a_device_follows_from_the_mesh(quickstart):
    alone = facts_of(quickstart, jax.devices()[:1])
    shared = facts_of(graphs.apply(quickstart, ["parallelism.mesh.fsdp=2"]), jax.devices()[:2])
    assert alone.state_bytes == shared.state_bytes
    assert shared.bytes_per_device["parameters"] < alone.bytes_per_device["parameters"]
    assert shared.mesh["fsdp"] == 2
    assert (alone.devices, shared.devices) == ("1 x cpu", "2 x cpu")


@pytest.mark.full
def test_the_step_is_that_of_the_compiler(quickstart):
    devices = jax.devices()[:1]

    def step(*overrides):
        return facts_of(graphs.apply(quickstart, overrides), devices).step

    assert step("name=other", "records.wandb=None") == step()
    assert step("optimizer.b2=0.9") != step()


def test_effects_are_those_of_experiments(quickstart):
    assert is_experiment(quickstart)
    assert not is_experiment(quickstart.model)
    with pytest.raises(BadInput, match="effects are those of an experiment"):
        facts_of(quickstart.model, jax.devices()[:1])


def _optimizer(schedule, **others):
    return optim.Optimizer(None, schedule, others)


def test_every_step_of_a_short_run_is_a_point():
    schedule = optim.WarmupLinear(peak=1.0, warmup_steps=2, total_steps=4)
    found = facts.learning_rates(_optimizer(schedule), 4)
    assert found == {"learning rate": [(0, 0.0), (1, 0.5), (2, 1.0), (3, 0.5)]}


def test_a_long_run_has_both_ends_and_a_number_is_constant():
    found = facts.learning_rates(_optimizer(optim.Constant(0.5), head=optim.Constant(0.25)), 10**6)
    assert set(found) == {"learning rate", "head"}
    steps = [step for step, _ in found["head"]]
    assert (steps[0], steps[-1], len(steps)) == (0, 10**6 - 1, facts.NUM_POINTS)
    assert {value for _, value in found["head"]} == {0.25}


def _write(path, events):
    import json

    lines = [json.dumps(encode_event(event, 5.0, event.step)) for event in events]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_was_recorded_is_read_by_name(tmp_path):
    path = _write(
        tmp_path / "metrics.jsonl",
        [
            Step(1, {"loss": 3.0, "mfu": 0.4, "tokens": 8, "learning_rate": 0.1}),
            Step(2, {"loss": math.nan}),
            Evaluation(2, "held_out", {"loss": 2.5}),
            Step(3, {"loss": 2.0}),
        ],
    )
    assert facts.metrics(path) == {"loss": [(1, 3.0), (3, 2.0)], "held_out/loss": [(2, 2.5)]}
    assert facts.metrics(tmp_path / "nothing") == {}


def test_many_points_become_means_of_stretches(tmp_path):
    count = 20 * facts.NUM_POINTS
    events = [Step(step, {"loss": float(step % 2)}) for step in range(1, count + 1)]
    points = facts.metrics(_write(tmp_path / "metrics.jsonl", events))["loss"]
    assert len(points) == 2 * facts.NUM_POINTS
    assert points[-1] == (count, pytest.approx(0.5))


def test_curves_of_both_sides_stand_under_one_name():
    found = facts.overlaid([{"a": [(0, 1.0)], "b": [(0, 2.0)]}, {"a": [(0, 3.0)]}])
    assert found == {
        "a": [
            {"side": 0, "name": "a", "points": [[0, 1.0]]},
            {"side": 1, "name": "a", "points": [[0, 3.0]]},
        ],
        "b": [{"side": 0, "name": "b", "points": [[0, 2.0]]}],
    }


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "luthier" / "effects"


@pytest.fixture
def counted(monkeypatch):
    calls = []
    work_out = facts.facts_of

    def facts_of(graph, *given):
        calls.append(graphs.get(graph, "name"))
        return work_out(graph, *given)

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
