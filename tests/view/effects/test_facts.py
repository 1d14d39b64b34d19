from __future__ import annotations

import jax
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import BadInput
from luthier.view.effects import facts_of, is_experiment


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
