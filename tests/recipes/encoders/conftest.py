"""What the tests of encoders share: two steps of training on generated batches."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import program as programs
from tests.compiling import quick_step

ROWS = 8
TRAINING = (
    "training.steps=20",
    f"training.global_batch_size={ROWS}",
    "optimizer:=luthier.optim.sgd(luthier.optim.Constant(0.1), momentum=0.0)",
    "evaluations={}",
    "checkpoints=None",
    "records.console=None",
    "records.wandb=None",
    "parallelism.mesh.data=2",
    "parallelism.mesh.fsdp=2",
    "parallelism.mesh.tensor=2",
)


@dataclasses.dataclass(frozen=True)
class Generated:
    """Always the same batch."""

    batch: Any
    num_rows: int = 1000

    def batch_spec(self, global_batch_size):
        return {name: (array.shape, array.dtype) for name, array in self.batch.items()}


@pytest.fixture(scope="session")
def assert_trains():
    """Return a function: a model takes two steps on eight devices, which change its loss."""

    def check(model, task, batch):
        graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), TRAINING)
        graph.model, graph.task, graph.data = model, task, Generated(batch)
        program = programs.make(graph, jax.devices()[:8])
        values, step = program.values(), quick_step(program)
        leaves = program.init(values)
        placed = {n: jax.device_put(batch[n], s.sharding) for n, s in program.batch.items()}
        index, losses = program.scalar_names.index("loss"), []
        for _ in range(2):
            leaves, scalars = step(values, leaves, placed)
            losses.append(float(np.asarray(scalars)[index]))
        assert np.isfinite(losses).all()
        assert losses[1] != losses[0]

    return check


@pytest.fixture(scope="session")
def text_batch():
    """Return a function that makes packed rows with padding, for masked modelling."""

    def make(length, vocab_size):
        rng = np.random.default_rng(0)
        shape = (ROWS, length)
        cut, end = length // 3, length - 2
        places = np.broadcast_to(np.arange(length), shape)
        segments = np.where(places < cut, 1, np.where(places < end, 2, 0))
        positions = np.where(segments == 2, places - cut, np.where(segments == 1, places, 0))
        documents = segments + 2 * np.arange(ROWS)[:, None]
        inputs = rng.integers(0, vocab_size, shape)
        ids = {
            "inputs": np.where(segments > 0, inputs, 0),
            "segments": segments,
            "positions": positions,
            "documents": np.where(segments > 0, documents, 0),
        }
        batch = {name: array.astype(np.int32) for name, array in ids.items()}
        return batch | {"weights": (segments > 0).astype(np.float32)}

    return make
