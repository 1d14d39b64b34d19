"""The same experiment on every mesh: parameters, gradient, losses."""

import numpy as np
import pytest

# The last one has all three axes; the others are run with the long drills.
MESHES = [
    pytest.param(("parallelism.mesh.data=8",), marks=pytest.mark.slow),
    ("parallelism.mesh.fsdp=8",),
    pytest.param(("parallelism.mesh.fsdp=4", "parallelism.mesh.tensor=2"), marks=pytest.mark.slow),
    ("parallelism.mesh.fsdp=2", "parallelism.mesh.tensor=2"),
]
HIGHEST = "precision.matmul=highest"


@pytest.fixture(scope="module")
def overrides(enough_tokens):
    return (HIGHEST, *enough_tokens)


@pytest.fixture(scope="module")
def one(shrunk, case, overrides):
    return case(shrunk(*overrides))


@pytest.fixture(scope="module")
def batches(one):
    return one.batches(20)


@pytest.mark.parametrize("mesh", MESHES, ids=" ".join)
def test_initial_parameters_are_bit_identical(shrunk, case, one, overrides, mesh):
    many = case(shrunk(*overrides, *mesh), 8)
    reference = one.program.named(one.init())
    found = many.program.named(many.init())
    assert any(not array.sharding.is_fully_replicated for array in found.values()) or "data" in str(
        mesh
    )
    for name, array in reference.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(array), err_msg=name)


@pytest.mark.parametrize("mesh", MESHES, ids=" ".join)
def test_the_first_gradient_agrees_to_float32(
    shrunk, case, one, batches, relative, overrides, mesh
):
    many = case(shrunk(*overrides, *mesh), 8)
    assert relative(many.gradient(batches[0]), one.gradient(batches[0])) < 1e-6


@pytest.mark.parametrize("mesh", MESHES[-2:], ids=" ".join)
def test_the_first_gradient_agrees_to_float64(
    shrunk, case, batches, relative, double, overrides, mesh
):
    kinds = (*overrides, "model.dtype=jnp.float64", "model.param_dtype=jnp.float64")
    one = case(shrunk(*kinds))
    many = case(shrunk(*kinds, *mesh), 8)
    gradient = one.gradient(batches[0])
    assert all(array.dtype == np.float64 for array in gradient.values())
    assert relative(many.gradient(batches[0]), gradient) < 1e-12


@pytest.mark.parametrize("mesh", MESHES[-2:], ids=" ".join)
def test_losses_over_twenty_steps_agree(shrunk, case, one, batches, overrides, mesh):
    _, reference = one.steps(batches)
    _, found = case(shrunk(*overrides, *mesh), 8).steps(batches)
    assert reference[-1] < reference[0] - 0.3
    np.testing.assert_allclose(found, reference, rtol=1e-5)
