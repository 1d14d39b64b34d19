import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import AllExperts, Capacity, Dropless, Experts, GatedMlp, Linear, TopK, Zeros
from luthier.parallel import AXES, ArrayInfo, Mesh, Rules, activation_rules, place, shardings
from luthier.program import split

E, K, D = 4, 2, 6
SINGLE = Mesh(data=1)
DISPATCH = {"all": AllExperts(), "capacity": Capacity(E / K), "dropless": Dropless()}


def arranged(sizes):
    num_devices = math.prod(getattr(sizes, axis) for axis in AXES)
    return sizes.arrange(jax.devices()[:num_devices])


def make(dispatch, kind=jnp.float32):
    biased = functools.partial(Linear, bias=Zeros())
    return Experts(
        E,
        functools.partial(TopK, K),
        functools.partial(GatedMlp, hidden_dim=8, down=biased),
        dispatch,
        dim=D,
        dtype=kind,
        param_dtype=kind,
        rngs=nnx.Rngs(params=0),
    )


def step_of(dispatch, kind, tokens, mesh):
    """Return a function from parameters and x to gradients by both and output; parameters."""
    structure, parameters, _ = split(make(dispatch, kind))

    def loss(parameters, x):
        y = structure.merge(parameters)(x, tokens)
        return jnp.sum(jnp.sin(y) * y), y

    rules, sizes = Rules(), dict(mesh.shape)
    infos = {n: ArrayInfo(p.shape, p.dtype, structure.axes()[n]) for n, p in parameters.items()}
    placed = shardings(place(infos, rules.parameters, sizes), mesh)
    rows = {"x": ArrayInfo((8, 10, D), kind, ("batch", "length", "embed"))}
    at_x = shardings(place(rows, rules.activations, sizes), mesh)["x"]
    step = jax.jit(jax.grad(loss, (0, 1), has_aux=True), in_shardings=(placed, at_x))
    return step, parameters


def results(dispatch, x, tokens, sizes=SINGLE):
    """Return the output, and the gradients by the input and every parameter."""
    mesh = arranged(sizes)
    step, parameters = step_of(dispatch, x.dtype, tokens, mesh)
    with activation_rules(mesh, Rules()):
        (by_parameter, by_x), y = step(parameters, x)
    return jax.device_get({"output": y, "x": by_x, **by_parameter})


def farthest(found, expected):
    parts = {
        name: np.linalg.norm(np.float64(found[name]) - expected[name])
        / np.linalg.norm(np.float64(expected[name]))
        for name in expected
    }
    return max((far, name) for name, far in parts.items())


@pytest.fixture
def packed(pack):
    return pack([[10], [4, 3], [], [5, 4], [9], [1, 9], [6], [10]], 10)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "tolerance"), [(jnp.float32, 1e-6), (jnp.float64, 1e-12)])
def test_capacity_that_drops_nothing_and_dropless_give_what_all_experts_give(
    kind, tolerance, packed
):
    with jax.enable_x64(kind == jnp.float64):
        x = jnp.asarray(np.random.default_rng(0).standard_normal((8, 10, D)), kind)
        expected = results(DISPATCH["all"], x, packed)
        assert expected["output"].dtype == kind
        for name in ("capacity", "dropless"):
            assert farthest(results(DISPATCH[name], x, packed), expected)[0] < tolerance


MESHES = {
    "expert": Mesh(data=1, expert=4),
    "expert and fsdp": Mesh(data=1, fsdp=2, expert=4),
    "expert, data and tensor": Mesh(data=2, expert=2, tensor=2),
    "expert and sequence": Mesh(data=1, expert=4, sequence=2),
    "data": Mesh(data=8),
}


LIGHT = {("capacity", "expert"), ("dropless", "expert and fsdp")}
PAIRS = [
    pytest.param(name, mesh, marks=() if (name, mesh) in LIGHT else pytest.mark.slow)
    for name in DISPATCH
    for mesh in MESHES
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "mesh"), PAIRS)
def test_the_mesh_changes_nothing(name, mesh, packed):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((8, 10, D)), jnp.float32)
    found = results(DISPATCH[name], x, packed, MESHES[mesh])
    assert farthest(found, results(DISPATCH[name], x, packed))[0] < 1e-6


@pytest.mark.full
def test_tokens_move_all_to_all_to_their_places_and_are_gathered_without_places(packed):
    texts, mesh = {}, arranged(MESHES["expert"])
    for name in ("capacity", "dropless"):
        step, parameters = step_of(DISPATCH[name], jnp.float32, packed, mesh)
        with activation_rules(mesh, Rules()):
            lowered = step.lower(parameters, jax.ShapeDtypeStruct((8, 10, D), jnp.float32))
        texts[name] = lowered.compile().as_text()
    assert "all-to-all" in texts["capacity"]
    assert "all-to-all" not in texts["dropless"]
    assert "reduce-scatter" in texts["dropless"]
