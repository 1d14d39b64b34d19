import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from luthier.optim import AdamScale, Constant, Layout, Matching, NewtonSchulz, SpectralScale, muon
from luthier.parallel import Mesh, Rules, activation_rules

ZERO = jnp.int32(0)


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (3, 6, 6)])
def test_the_iteration_keeps_singular_vectors_and_evens_values(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = NewtonSchulz()(jnp.asarray(x), ZERO)
    values = np.linalg.svd(np.asarray(found))[1]
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, v = np.linalg.svd(x, full_matrices=False)
    exact = NewtonSchulz(20, (1.875, -1.25, 0.375))(jnp.asarray(x), ZERO)
    np.testing.assert_allclose(exact, u @ v, atol=1e-4)


@pytest.mark.parametrize("shape", [(8, 5), (5, 8)])
def test_the_iteration_is_that_of_optax(shape):
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    coefficients = jnp.asarray((3.4445, -4.7750, 2.0315))
    theirs = optax.contrib._muon.orthogonalize_via_newton_schulz(x, coefficients, 5, eps=1e-7)
    np.testing.assert_allclose(NewtonSchulz()(x, ZERO), theirs, rtol=1e-4, atol=1e-5)


def test_scales():
    assert SpectralScale()(4, 16, ZERO) == 2
    assert SpectralScale()(16, 4, ZERO) == 1
    np.testing.assert_allclose(AdamScale(0.2)(16, 4, ZERO), 0.8, rtol=1e-6)
    # What it is for: the root mean square of an orthogonal update.
    update = AdamScale(0.2)(64, 16, ZERO) * np.linalg.qr(np.ones((64, 16)) + np.eye(64, 16))[0]
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(update))), 0.2, rtol=1e-5)


@pytest.mark.full
def test_adam_may_have_a_rate_of_its_own():
    parameters = {"up.kernel": jnp.eye(4), "norm.scale": jnp.ones(4)}
    gradients = {"up.kernel": jnp.eye(4), "norm.scale": jnp.ones(4)}
    optimizer = muon(0.5, adam_learning_rate=0.001, weight_decay=0.0)
    updates, _ = optimizer.update(gradients, optimizer.init(parameters), parameters)
    np.testing.assert_allclose(updates["norm.scale"], -0.001, rtol=1e-4)
    assert np.abs(updates["up.kernel"]).max() > 0.1
    assert optimizer.learning_rates == {"adam": Constant(0.001)}
    assert muon(0.5).learning_rates == {}


def test_which_kernels_are_matrices_is_a_setting():
    parameters = {"up.kernel": jnp.eye(4), "down.kernel": jnp.eye(4), "head.kernel": jnp.eye(4)}
    parts = muon(0.1).init(parameters).stages[1].parts
    assert set(parts["matrices"][0].trace) == {"up.kernel", "down.kernel"}
    parts = muon(0.1, matrices=Matching("up")).init(parameters).stages[1].parts
    assert set(parts["matrices"][0].trace) == {"up.kernel"}
    assert set(parts["rest"][0].first_moment) == {"down.kernel", "head.kernel"}
    (problem,) = muon(0.1, matrices=Matching("none")).check(parameters)
    assert problem.path == "matrices"


@pytest.mark.full
@pytest.mark.parametrize("sizes", [{"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"fsdp": 2, "expert": 4}])
def test_devices_exchange_the_parts_of_matrices_and_gather_none(sizes):
    """Each matrix is iterated on by one device: two exchanges of the kernels, whatever the axes."""
    mesh, rng = Mesh(**sizes).arrange(jax.devices()[:8]), np.random.default_rng(0)
    kernels = {
        **{f"blocks.{i}.up": ((64, 256), ("embed", "mlp")) for i in range(7)},
        **{f"blocks.{i}.down": ((256, 64), ("mlp", "embed")) for i in range(7)},
        "stack.query": ((5, 64, 4, 16), ("layers", "embed", "heads", "head_dim")),
        "moe.up": ((4, 64, 32), ("experts", "embed", "mlp")),
    }
    layouts = {name: Layout(shape, axes, 1) for name, (shape, axes) in kernels.items()}
    split = {"embed": "fsdp", "mlp": "tensor", "heads": "tensor", "experts": "expert"}
    shardings = {
        name: NamedSharding(mesh, PartitionSpec(*(split.get(axis) for axis in axes)))
        for name, (_, axes) in kernels.items()
    }

    def drawn():
        return {
            name: jax.device_put(rng.normal(size=shape).astype(np.float32), shardings[name])
            for name, (shape, _) in kernels.items()
        }

    parameters, gradients = drawn(), drawn()
    optimizer = muon(0.1)
    state = optimizer.init(parameters, layouts)

    def update(gradients, state, parameters):
        with activation_rules(mesh, Rules()):
            return optimizer.update(gradients, state, parameters, layouts)[0]

    compiled = jax.jit(update, out_shardings=shardings).lower(gradients, state, parameters)
    compiled = compiled.compile()
    moved = _moved_bytes(compiled.as_text())
    on_a_device = sum(x.addressable_shards[0].data.nbytes for x in parameters.values())
    if "expert" not in sizes:  # experts of a device stay there, and are gathered over fsdp
        assert set(moved) <= {"all-to-all", "all-reduce"}
        assert moved["all-reduce"] < 1000  # norms of the gradient
    # Out and back over each side that is split; matrices of zeros fill up the number.
    num_sides = 2 if "tensor" in sizes else 1
    assert moved["all-to-all"] <= 1.5 * 2 * num_sides * on_a_device

    alone = jax.jit(lambda *all_: optimizer.update(*all_, layouts)[0])
    expected = alone(*jax.device_get((gradients, state, parameters)))
    for name, found in compiled(gradients, state, parameters).items():
        assert found.sharding.is_equivalent_to(shardings[name], found.ndim)
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-6)


def _moved_bytes(text):
    """Return the bytes on one device of the results of collectives, by their kind."""
    found = {}
    kinds = "all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter"
    for result, kind in re.findall(rf"= (.*?) ({kinds})[-a-z]*\(", text):
        sizes = [
            np.prod([int(n) for n in s.split(",") if n])
            for s in re.findall(r"f32\[(.*?)\]", result)
        ]
        found[kind] = found.get(kind, 0) + 4 * int(sum(sizes))
    return found
