"""What the tests of Pax's recipes share: sizes of the whole, and two steps of a small twin."""

import importlib
import inspect
import math
import re

import jax
import numpy as np
from flax import nnx

from luthier import graph as graphs
from luthier import program as programs
from luthier.recipes import tiny
from tests.compiling import quick_step

LENGTH = 16
ROWS = 8
"""Of which all microbatches and meshes of twins split the batch."""

VOCABULARY = 512


def pax_names(reference):
    """Return what the docstring of an experiment says that it is called in Pax."""
    module, _, function = reference.partition(":")
    made = getattr(importlib.import_module(module), function or "experiment")
    return re.findall(r"^Pax: (.+)$", inspect.getdoc(made), re.MULTILINE)


def num_parameters(template):
    """Count the scalars of a model, without making an array."""
    model = nnx.eval_shape(lambda: graphs.build(template)(rngs=nnx.Rngs(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def mesh_sizes(experiment):
    """Return the devices along the mesh axes that are in use: within a slice, and across."""
    mesh = experiment.parallelism.mesh
    across = mesh.across_slices.sizes()
    within = {axis: getattr(mesh, axis) for axis in across}
    return tuple({a: n for a, n in sizes.items() if n != 1} for sizes in (within, across))


def num_devices(experiment):
    """Return how many devices the mesh takes."""
    return math.prod(n for sizes in mesh_sizes(experiment) for n in sizes.values())


def twin(reference):
    """Return a small twin of an experiment that reads synthetic tokens, on its own mesh axes."""
    graph = tiny(graphs.resolve(reference))
    for path, most in (
        ("data.length", LENGTH),
        ("data.vocab_size", VOCABULARY),
        ("model.vocab_size", VOCABULARY),
    ):
        graphs.set_value(graph, path, most)
    if graphs.evaluate(graph.parallelism.mesh.data) == -1:
        graphs.set_value(graph, "parallelism.mesh.data", 1)  # no copies that fill the machine
    rows = graphs.evaluate(graph.training.global_batch_size)
    graphs.set_value(graph, "training.global_batch_size", -(-rows // ROWS) * ROWS)
    graphs.validate(graph)
    return graph


def assert_takes_two_steps(graph, still=r"^$"):
    """Train two steps on as many virtual devices as the mesh takes; return what was built.

    Args:
      graph: Of a small experiment.
      still: A pattern of the names of parameters that such few steps do not move.
    """
    experiment = graphs.build(graph)
    program = programs.make(graph, jax.devices()[: num_devices(experiment)])
    values, step = program.values(), quick_step(program)
    leaves = program.init(values)
    first = {n: np.asarray(x) for n, x in program.named(leaves).items()}
    rows = experiment.training.global_batch_size
    iterator = program.experiment.data.iterator(global_batch_size=rows, seed=0)
    index, losses = program.scalar_names.index("loss"), []
    for _ in range(2):
        batch = next(iterator)
        placed = {n: jax.device_put(batch[n], s.sharding) for n, s in program.batch.items()}
        leaves, scalars = step(values, leaves, placed)
        losses.append(float(scalars[index]))
    assert np.isfinite(losses).all()
    trained = {n: x for n, x in program.named(leaves).items() if n.startswith("parameters/")}
    same = {n for n, x in trained.items() if (np.asarray(x) == first[n]).all()}
    assert same == {n for n in trained if re.search(still, n)}, "what moves"
    return experiment
