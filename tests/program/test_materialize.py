import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier.checkpoint import Store

SMALL = (
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "training.global_batch_size=8",
)


@pytest.mark.full
def test_a_restored_state_is_read_into_the_shards_of_another_mesh(tmp_path, monkeypatch):
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), SMALL)
    one = programs.make(graph, jax.devices()[:1])
    leaves = programs.materialize(one, one.values())
    store = Store(tmp_path)
    store.save(7, one.named(leaves))
    store.wait()
    wide = graphs.apply(graph, ["parallelism.mesh.fsdp=4", "parallelism.mesh.tensor=2"])
    many = programs.make(wide, jax.devices()[:8])

    def refuse(*_):
        raise AssertionError("a restored state is not initialized first")

    monkeypatch.setattr(programs.Program, "init", refuse)
    restored = programs.materialize(many, many.values(), store=store, step=7)
    store.close()
    for name, before, after in zip(one.names, leaves, restored, strict=True):
        np.testing.assert_array_equal(np.asarray(after), np.asarray(before), err_msg=name)
        assert after.sharding == many.abstract_state[name].sharding
