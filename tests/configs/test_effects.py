"""Effects agree with what training allocates, for every experiment that fits this machine."""

import jax
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import DataError
from luthier.view.effects import facts_of

# What is larger is compared by the shapes that the initialization returns.
MOST_BYTES = 1 << 30


def _facts_and_program(experiment):
    graph = graphs.resolve(experiment.reference)
    devices = jax.devices()[:1]
    try:
        facts = facts_of(graph, devices)
    except DataError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))
    return facts, programs.make(graph, devices)


def _bytes(program, leaves):
    """Return the bytes of leaves by kind."""
    found = {}
    for name, leaf in zip(program.names, leaves, strict=True):
        kind = name.partition("/")[0]
        found[kind] = found.get(kind, 0) + leaf.size * leaf.dtype.itemsize
    return found


@pytest.mark.slow
def test_bytes_are_those_of_the_shapes_that_are_initialized(small_experiment):
    facts, program = _facts_and_program(small_experiment)
    leaves = jax.eval_shape(program.init, program.values())
    assert _bytes(program, leaves) == facts.state_bytes
    sizes = {n: x.size for n, x in zip(program.names, leaves, strict=True)}
    parameters = sum(size for name, size in sizes.items() if name.startswith("parameters/"))
    assert sum(facts.parameters.values()) == parameters


@pytest.mark.slow
def test_bytes_are_those_of_the_arrays_that_are_allocated(small_experiment):
    facts, program = _facts_and_program(small_experiment)
    if sum(facts.state_bytes.values()) > MOST_BYTES:
        pytest.skip("too large for a machine of tests; its shapes are compared")
    leaves = programs.materialize(program, program.values())
    found = {}
    for name, leaf in zip(program.names, leaves, strict=True):
        kind = name.partition("/")[0]
        found[kind] = found.get(kind, 0) + leaf.nbytes
    assert found == facts.state_bytes
