"""The same experiment with its layers in a pipeline: parameters, gradient, losses."""

import fiddle as fdl
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import recipes
from luthier.layers import Circular, GPipe

CIRCULAR = fdl.Config(Circular, repeats=2)
# Stages, microbatches, schedule, and what else splits the work on eight devices.
MIXTURES = [
    pytest.param(2, 4, GPipe, (), id="stage 2 x data 4"),
    pytest.param(4, 8, GPipe, (), id="stage 4 x data 2"),
    pytest.param(8, 8, GPipe, (), id="stage 8"),
    pytest.param(2, 2, CIRCULAR, (), id="circular, stage 2 x data 4"),
    pytest.param(4, 16, CIRCULAR, (), id="circular, stage 4 x data 2"),
    pytest.param(2, 4, GPipe, ("fsdp=4",), id="stage 2 x fsdp 4"),
    pytest.param(4, 4, GPipe, ("fsdp=2",), id="stage 4 x fsdp 2"),
    pytest.param(2, 4, GPipe, ("tensor=2",), id="stage 2 x data 2 x tensor 2"),
    pytest.param(4, 8, CIRCULAR, ("tensor=2",), id="circular, stage 4 x tensor 2"),
    pytest.param(2, 4, CIRCULAR, ("fsdp=2", "tensor=2"), id="circular, stage 2 x fsdp x tensor"),
    pytest.param(2, 4, GPipe, ("replica=2", "fsdp=2"), id="stage 2 x replica x fsdp"),
]
SIZES = ("precision.matmul=highest", "model.num_layers=8")
DROPOUT = "model.block.dropout=partial:luthier.layers.Dropout(rate=0.2)"


@pytest.fixture(scope="module")
def model(shrunk, enough_tokens):
    def make(*overrides):
        return shrunk(*SIZES, *enough_tokens, *overrides)

    return make


@pytest.fixture(scope="module")
def one(model, case):
    return case(model())


@pytest.fixture(scope="module")
def batches(one):
    return one.batches(10)


@pytest.fixture(scope="module")
def gradient(one, batches):
    return one.gradient(batches[0])


@pytest.fixture(scope="module")
def reference_losses(one, batches):
    return one.steps(batches)[1]


@pytest.fixture(scope="module")
def computed_once():
    """Return a dictionary for what tests in sixty-four bit mode share."""
    return {}


@pytest.fixture
def piped(model, case):
    def make(stages, microbatches, schedule, mesh, *overrides, gather="tick"):
        graph = model(*overrides, *(f"parallelism.mesh.{size}" for size in mesh))
        graph = recipes.pipeline(graph, stages, microbatches, schedule)
        return case(graphs.apply(graph, [f"model.stack.gather={gather}"]), 8)

    return make


def assert_same_start(one, many):
    reference, found = one.program.named(one.init()), many.program.named(many.init())
    assert list(found) == list(reference)
    for name, array in reference.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(array), err_msg=name)
    spec = many.program.placements["parameters/blocks.mlp.up.kernel"].spec
    assert spec[0] == "stage"


def packed(batch):
    """Return a batch in which another document starts within each row, at a place of its own."""
    rows, length = batch["inputs"].shape
    starts = np.random.default_rng(0).integers(1, length, (rows, 1))
    after = np.arange(length) >= starts
    positions = np.where(after, np.arange(length) - starts, batch["positions"])
    return {
        **batch,
        "segments": batch["segments"] + after.astype(np.int32),
        "positions": positions.astype(np.int32),
        "documents": batch["documents"] + 1000 * after.astype(np.int32),
    }


@pytest.mark.parametrize("gather", ["tick", "step"])
def test_a_pipeline_with_everything_else(model, case, piped, batches, relative, gather):
    """Packed rows, dropout, accumulation, sharded parameters and rounds at the same time."""
    overrides = (DROPOUT, "training.accumulation=2")
    one = case(model(DROPOUT))
    many = piped(2, 4, CIRCULAR, ("fsdp=2", "tensor=2"), *overrides, gather=gather)
    assert_same_start(one, many)
    batch = packed(batches[0])
    assert relative(many.gradient(batch), one.gradient(batch)) < 2e-6
    assert relative(many.gradient(batch), one.gradient(batches[0])) > 0.1


@pytest.mark.full
@pytest.mark.parametrize(("gather", "is_in_loops"), [("tick", True), ("step", False)])
def test_parameters_are_gathered_by_tick_or_once_a_step(piped, gather, is_in_loops):
    overrides = ("training.global_batch_size=32", "fiddler:quick_compile")
    program = piped(2, 4, GPipe, ("fsdp=4",), *overrides, gather=gather).program
    loops, entry = program.lower_and_compile(program.traced_step).as_text().split("ENTRY")
    assert (" all-gather" in loops) == is_in_loops
    assert " all-gather" in entry


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "microbatches", "schedule", "mesh"), MIXTURES)
def test_the_first_gradient_agrees_to_float32(
    one, gradient, piped, batches, relative, stages, microbatches, schedule, mesh
):
    many = piped(stages, microbatches, schedule, mesh)
    assert_same_start(one, many)
    assert relative(many.gradient(batches[0]), gradient) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "microbatches", "schedule", "mesh"), MIXTURES)
def test_the_first_gradient_agrees_to_float64(
    model,
    case,
    piped,
    batches,
    relative,
    double,
    computed_once,
    stages,
    microbatches,
    schedule,
    mesh,
):
    kinds = ("model.dtype=jnp.float64", "model.param_dtype=jnp.float64")
    if not computed_once:
        computed_once.update(case(model(*kinds)).gradient(batches[0]))
    expected = computed_once
    assert all(array.dtype == np.float64 for array in expected.values())
    many = piped(stages, microbatches, schedule, mesh, *kinds)
    assert relative(many.gradient(batches[0]), expected) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "microbatches", "schedule", "mesh"), MIXTURES)
def test_losses_over_ten_steps_agree(
    reference_losses, piped, batches, stages, microbatches, schedule, mesh
):
    _, found = piped(stages, microbatches, schedule, mesh).steps(batches)
    assert reference_losses[-1] < reference_losses[0] - 0.1
    np.testing.assert_allclose(found, reference_losses, rtol=1e-5)
