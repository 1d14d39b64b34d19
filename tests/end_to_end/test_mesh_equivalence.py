"""The same experiment on every mesh: parameters, first gradient, losses.

Every row is one experiment with the words of one way, or of several, to spread it over devices.
The first rows have every kind between them, and their gradients are compared always; the others,
and everything else of a row, belong to the long fault-injection tests.
"""

import numpy as np
import pytest

from tests.compiling import gradient

COMMON = (
    "precision.matmul=highest",
    "model.num_layers=4",
    "model.block.attention.num_heads=8",
    "model.block.attention.num_kv_heads=4",
)
EXPERTS = (
    "model.block.mlp=Experts(num_experts=4, router=TopK(k=2), expert=GatedMlp(hidden_dim=32))",
    "model.block.mlp.dispatch=Dropless(factor=1.0)",
)
PIPELINE = "pipeline(stages={}, microbatches=4)"
RESIDUAL = "tensor({}, sequence_parallel=True)"
CIRCULAR = "pipeline(stages=2, microbatches=4, schedule=Circular(repeats=2))"
ALWAYS = {
    "hsdp tensor sequence": ["hsdp(2, 1)", "tensor(2)", "sequence(2)"],
    "fsdp ring": ["fsdp(2)", "ring(4)"],
    "expert all_to_all": ["expert(2)", "all_to_all(4)"],
    "data stage": ["data(4)", PIPELINE.format(2)],
    "fsdp residual": ["fsdp(2)", RESIDUAL.format(4)],
}
ROWS = {
    "data": ["data(8)"],
    "fsdp": ["fsdp(8)"],
    "hsdp": ["hsdp(2)"],
    "tensor": ["tensor(4)"],
    "sequence": ["sequence(8)"],
    "ring": ["ring(8)"],
    "all_to_all": ["all_to_all(8)"],
    "expert": ["expert(4)"],
    "stage": [PIPELINE.format(4)],
}
MIXTURES = {
    "stage of two": [PIPELINE.format(2)],
    "data tensor": ["data(2)", "tensor(4)"],
    "fsdp tensor": ["fsdp(4)", "tensor(2)"],
    "hsdp tensor": ["hsdp(2, 2)", "tensor(2)"],
    "fsdp tensor sequence": ["fsdp(2)", "tensor(2)", "sequence(2)"],
    "fsdp tensor ring": ["fsdp(2)", "tensor(2)", "ring(2)"],
    "hsdp ring": ["hsdp(2, 2)", "ring(2)"],
    "fsdp tensor all_to_all": ["fsdp(2)", "tensor(2)", "all_to_all(2)"],
    "stage fsdp": [PIPELINE.format(2), "fsdp(4)"],
    "stage fsdp tensor": [PIPELINE.format(2), "fsdp(2)", "tensor(2)"],
    "circular stage tensor": [CIRCULAR, "tensor(4)"],
    "stage all_to_all": [PIPELINE.format(2), "fsdp(2)", "all_to_all(2)"],
    "stage sequence": [PIPELINE.format(2), "fsdp(2)", "sequence(2)"],
    "expert fsdp tensor": ["expert(2)", "fsdp(2)", "tensor(2)"],
    "expert ring": ["expert(4)", "ring(2)"],
    "expert stage": ["expert(4)", PIPELINE.format(2)],
    "residual": [RESIDUAL.format(4)],
    "fsdp residual sequence": ["fsdp(2)", RESIDUAL.format(2), "sequence(2)"],
    "fsdp residual all_to_all": ["fsdp(2)", RESIDUAL.format(2), "all_to_all(2)"],
    "residual ring": [RESIDUAL.format(2), "ring(2)"],
    "expert residual": ["expert(4)", RESIDUAL.format(2)],
    "stage fsdp residual": [PIPELINE.format(2), "fsdp(2)", RESIDUAL.format(2)],
    "circular stage residual": [CIRCULAR, RESIDUAL.format(4)],
}


ALL = ALWAYS | ROWS | MIXTURES


def rows(*always):
    """Return the rows as parameters; all but `always` are slow."""
    return [
        pytest.param(name, marks=() if name in always else pytest.mark.slow, id=name)
        for name in ALL
    ]


def words(name):
    return [f"fiddler:luthier.recipes.{word}" for word in ALL[name]]


def base(name):
    return (*COMMON, *(EXPERTS if "expert" in name else ()))


@pytest.fixture(scope="module")
def known():
    """What the tests of this module have made of one device, by name."""
    return {}


@pytest.fixture
def one(known, shrunk, case, enough_tokens):
    """Return a function from a row's name and further words to the case on one device."""

    def make(name, *more):
        key = base(name), more
        if key not in known:
            known[key] = case(shrunk(*enough_tokens, *base(name), *more))
        return known[key]

    return make


@pytest.fixture
def many(shrunk, case, enough_tokens):
    """Return a function from a row's name and further words to the case on eight devices."""

    def make(name, *more):
        return case(shrunk(*enough_tokens, *base(name), *more, *words(name)), 8)

    return make


def tolerance(name):
    return 2e-6 if "ring" in name or "stage" in name else 1e-6


def reference(known, one, name, *more):
    """Return a batch, the leaves and the gradient of one device."""
    key = base(name), more, "gradient"
    if key not in known:
        case = one(name, *more)
        batch, leaves = case.batches(1)[0], tuple(np.asarray(x) for x in case.init())
        known[key] = batch, leaves, gradient(case, batch, leaves)
    return known[key]


@pytest.mark.full
@pytest.mark.parametrize("name", rows("hsdp tensor sequence"))
def test_initial_parameters_are_bit_identical(one, many, known, name):
    _, leaves, _ = reference(known, one, name)
    case = many(name)
    found = case.init()
    assert {len(array.sharding.device_set) for array in found} == {8}
    for array_name, array, expected in zip(case.program.names, found, leaves, strict=True):
        np.testing.assert_array_equal(np.asarray(array), expected, array_name)


@pytest.mark.full
@pytest.mark.parametrize("name", rows(*ALWAYS))
def test_the_first_gradient_agrees_to_float32(one, many, known, relative, name):
    batch, leaves, expected = reference(known, one, name)
    assert relative(gradient(many(name), batch, leaves), expected) < tolerance(name)


@pytest.mark.parametrize("name", rows())
def test_the_first_gradient_agrees_to_float64(one, many, known, relative, double, name):
    kinds = ("model.dtype=jnp.float64", "model.param_dtype=jnp.float64")
    batch, leaves, expected = reference(known, one, name, *kinds)
    assert {array.dtype for array in expected.values()} == {np.dtype(double)}
    assert relative(gradient(many(name, *kinds), batch, leaves), expected) < 1e-12


@pytest.mark.parametrize("name", rows())
def test_losses_over_ten_steps_agree(one, many, known, name):
    steps = ("training.steps=10",)
    single, found = one(name, *steps), many(name, *steps)
    key = base(name), "losses"
    if key not in known:
        batches = single.batches(10)
        known[key] = batches, single.steps(batches)[1]
    batches, losses = known[key]
    assert losses[-1] < losses[0] - 0.2
    np.testing.assert_allclose(found.steps(batches)[1], losses, rtol=1e-5)
