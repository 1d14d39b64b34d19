"""What the tests of recipes share: goldens of others, sizes, and two steps of training."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier import program as programs
from luthier.checkpoint.foreign import families
from tests.compiling import quick_step
from tests.foreign_tensors import filled

GOLDENS = Path(__file__).parent / "goldens"

TRAINING = (
    "data.length=32",
    "training.steps=20",
    "training.global_batch_size=8",
    "optimizer.learning_rate.warmup_steps=5",
    "evaluations={}",
    "checkpoints=None",
    "records.console=None",
    "records.wandb=None",
    "parallelism.mesh.fsdp=4",
    "parallelism.mesh.tensor=2",
)


@pytest.fixture(scope="session")
def abstract():
    """Return a function from a model's graph to the model without arrays."""

    def make(graph):
        template = graphs.build(graph)
        return nnx.eval_shape(lambda: template(rngs=nnx.Rngs(0)))

    return make


@pytest.fixture(scope="session")
def num_parameters(abstract):
    """Return a function that counts the parameters that a model's graph describes."""

    def count(graph):
        leaves = jax.tree.leaves(nnx.state(abstract(graph), nnx.Param))
        return sum(int(np.prod(leaf.shape)) for leaf in leaves)

    return count


@pytest.fixture(scope="session")
def golden(abstract):
    """Return a function from a golden's name and a graph to the filled model and the arrays."""

    def load(name, graph):
        with np.load(GOLDENS / f"{name}.npz") as file:
            arrays = dict(file)
        tensors = {k.removeprefix("foreign/"): v for k, v in arrays.items() if "/" in k}
        family = families.of_config(json.loads(str(arrays["config"])), name)
        return filled(abstract(graph), family, tensors), arrays

    return load


@pytest.fixture(scope="session")
def assert_equals_golden(golden):
    """Return a function: logits are those of the golden, whole and token by token with a cache."""

    def check(name, graph):
        with jax.default_matmul_precision("highest"):
            model, arrays = golden(name, graph)
            inputs, expected = jnp.asarray(arrays["inputs"]), arrays["logits"]
            logits = jax.jit(lambda model, inputs: model(inputs))(model, inputs)
            np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
            decode = jax.jit(lambda model, tokens, cache: model.decode(tokens, cache))
            cache, start = model.init_cache(*inputs.shape), 0
            for size in (9, *[1] * (inputs.shape[1] - 9)):
                after, cache = decode(model, inputs[:, start : start + size], cache)
                start += size
                np.testing.assert_allclose(after, logits[:, start - 1], rtol=1e-5, atol=1e-5)

    return check


@pytest.fixture(scope="session")
def assert_trains():
    """Return a function: a model's graph takes two steps on eight devices, with finite losses."""

    def check(model, *overrides):
        graph = graphs.resolve("configs.lm.quickstart")
        graph.model = model
        graph = graphs.apply(graph, [*TRAINING, *overrides])
        graphs.validate(graph)
        program = programs.make(graph, jax.devices()[:8])
        values, step = program.values(), quick_step(program)
        leaves = program.init(values)
        iterator = program.experiment.data.iterator(global_batch_size=8, seed=0)
        index, losses = program.scalar_names.index("loss"), []
        for _ in range(2):
            batch = next(iterator)
            placed = {n: jax.device_put(batch[n], s.sharding) for n, s in program.batch.items()}
            leaves, scalars = step(values, leaves, placed)
            losses.append(float(scalars[index]))
        assert np.isfinite(losses).all()
        assert losses[0] != losses[1]

    return check
