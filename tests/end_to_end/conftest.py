"""What the end-to-end tests share: shipped experiments, shrunk, and their programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier import records
from luthier.trainer import configuration

SHRUNK = (
    "model.dim=32",
    "model.num_layers=2",
    "model.block.attention.num_heads=4",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=64",
    "data.length=32",
    "training.steps=20",
    "optimizer.learning_rate.warmup_steps=5",
    "training.global_batch_size=8",
    "evaluations.held_out.num_batches=1",
    "evaluations.held_out.global_batch_size=8",
    "checkpoints.every.count=5",
    "records.console=None",
    "records.wandb=None",
)


@pytest.fixture
def make_run():
    """Return a function that records a run of a graph, as training does."""

    def make(graph, name, id):
        return records.RunDirectory.create("runs", name, id, configuration=configuration(graph))

    return make


@pytest.fixture(scope="session")
def shrunk():
    """Return the quickstart, small, with further overrides."""

    def make(*overrides, directory="runs"):
        graph = graphs.resolve("configs.lm.quickstart")
        graph = graphs.apply(graph, [*SHRUNK, f"records.directory={directory}"])
        return graphs.apply(graph, overrides)

    return make


# Enough tokens for the rounding of float32 to average out. The gradient of a small batch is itself
# 1e-6 away from float64's; two ways of computing it cannot be nearer to each other than that.
ENOUGH_TOKENS = ("data.length=64", "training.global_batch_size=32")


class Case:
    """A program on some devices, with a state and batches."""

    def __init__(self, graph, num_devices=1, hoist=()):
        self.program = programs.make(graph, jax.devices()[:num_devices], hoist)
        self.values = self.program.values()

    def init(self, seed_graph=None):
        return self.program.init(self.program.values(seed_graph))

    def put(self, batch):
        return {n: jax.device_put(batch[n], s.sharding) for n, s in self.program.batch.items()}

    def gradient(self, batch, leaves=None):
        """Return the gradient by parameter name, on the host."""
        program = self.program

        def gradient(values, leaves, batch):
            with program.tracing(values) as experiment:
                return programs.gradient_of(experiment, program.named(leaves), batch)[1]

        leaves = self.init() if leaves is None else leaves
        found = jax.jit(gradient)(self.values, leaves, self.put(batch))
        return {name: np.asarray(array) for name, array in found.items()}

    def steps(self, batches, values=None, leaves=None):
        """Take a step on every batch; return the state and the losses."""
        step = self.program.compile_step()
        leaves = self.init() if leaves is None else leaves
        values = self.values if values is None else values
        losses, index = [], self.program.scalar_names.index("loss")
        for batch in batches:
            leaves, vector = step(values, leaves, self.put(batch))
            losses.append(float(vector[index]))
        return self.program.named(leaves), losses

    def batches(self, count):
        training = self.program.experiment.training
        data = self.program.experiment.data
        iterator = data.iterator(global_batch_size=training.global_batch_size, seed=0)
        return [next(iterator) for _ in range(count)]


@pytest.fixture(scope="session")
def enough_tokens():
    return ENOUGH_TOKENS


@pytest.fixture(scope="session")
def case():
    return Case


@pytest.fixture(scope="session")
def relative():
    """Return the largest norm of the difference over norm of the reference, over parameters."""

    def distance(found, reference):
        assert set(found) == set(reference)
        errors = {}
        for name, expected in reference.items():
            expected = np.asarray(expected, np.float64)
            difference = np.linalg.norm(np.asarray(found[name], np.float64) - expected)
            errors[name] = difference / max(np.linalg.norm(expected), 1e-30)
        return max(errors.values())

    return distance


@pytest.fixture
def highest():
    """Matrix products in full precision; the programs set their own, so this is for references."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def double():
    """Sixty-four bit mode, put back afterwards."""
    jax.config.update("jax_enable_x64", True)
    yield jnp.float64
    jax.config.update("jax_enable_x64", False)


def uneven(batch, seed=0):
    """Return a batch in which rows have very different numbers of targets that count."""
    rng = np.random.default_rng(seed)
    share = rng.uniform(0.02, 1.0, size=(batch["weights"].shape[0], 1))
    keep = rng.uniform(size=batch["weights"].shape) < share
    return {**batch, "weights": batch["weights"] * keep.astype(np.float32)}


@pytest.fixture(scope="session")
def uneven_batch():
    return uneven
