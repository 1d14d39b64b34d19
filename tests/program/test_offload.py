import dataclasses

import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import planner
from luthier import program as programs
from luthier.errors import ValidationError
from luthier.program import host_bytes
from tests.compiling import quick_step

SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "data.length=16",
    "training.global_batch_size=4",
    "evaluations.held_out.global_batch_size=4",
    "parallelism.mesh.fsdp=-1",
    "parallelism.mesh.data=1",
)
HOST = "training.optimizer_memory=HOST"
OFFLOAD = "model.stack.remat=OffloadNamed(names=['query'])"


@dataclasses.dataclass
class WithoutHost:
    """A device whose memory is all that it can use."""

    platform: str = "simple"

    def addressable_memories(self):
        return []


def make(*overrides, num_devices=2):
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL, *overrides])
    return graph, programs.make(graph, jax.devices()[:num_devices])


def run(program, steps=2):
    step, values = quick_step(program), program.values()
    assert programs.not_reused(step, program.abstract_state) == {}
    leaves = program.init(values)
    data = program.experiment.data.iterator(global_batch_size=4, seed=0)
    for _ in range(steps):
        batch = next(data)
        put = {n: jax.device_put(batch[n], s.sharding) for n, s in program.batch.items()}
        leaves, vector = step(values, leaves, put)
    return program.named(leaves), np.asarray(vector)


@pytest.mark.full
def test_the_optimizer_on_the_host_takes_the_same_steps():
    (_, plain), (_, offloaded) = make(num_devices=1), make(HOST, num_devices=1)
    reference, scalars = run(plain)
    found, scalars_ = run(offloaded)
    np.testing.assert_allclose(scalars_, scalars, rtol=1e-5)
    for name, array in reference.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
        waits = name.startswith("optimizer/") and array.ndim > 0
        kind = found[name].sharding.memory_kind
        assert kind == ("pinned_host" if waits else "device"), name


@pytest.mark.full
def test_what_is_on_the_host_is_not_counted_on_the_devices():
    graph, program = make(HOST)
    plan, plain = (planner.make(g, jax.devices()[:2]) for g in (graph, make()[0]))
    assert plan.host_bytes_per_device == host_bytes(program.placements, programs.Memory.HOST)
    before, after = (p.bytes_per_device["optimizer"] for p in (plain, plan))
    assert before == after + plan.host_bytes_per_device
    assert after < 100, "counters alone"


def test_backends_that_cannot_are_refused_by_name():
    graph, _ = make(HOST, OFFLOAD)
    with pytest.raises(ValidationError) as caught:
        programs.make(graph, [WithoutHost()])
    what = "the simple backend cannot keep arrays in the memory of the host"
    assert [(p.path, p.what, p.remedy) for p in caught.value.problems] == [
        ("training.optimizer_memory", what, "set training.optimizer_memory=DEVICE"),
        (
            "model.stack.remat",
            what,
            "set model.stack.remat=FullRemat, or name what to keep in SaveNamed",
        ),
    ]
