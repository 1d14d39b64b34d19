import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    AllExperts,
    Capacity,
    Dropless,
    Experts,
    GatedMlp,
    Linear,
    TopK,
    Zeros,
    as_scored,
    renormalized,
)
from luthier.parallel import AXES, ArrayInfo, Mesh, Rules, activation_rules, place, shardings
from luthier.program import split
from luthier.tasks.flops import inside

E, K, D = 4, 2, 6
SINGLE = Mesh(data=1)
DISPATCH = {"all": AllExperts(), "capacity": Capacity(E / K), "dropless": Dropless()}


def arranged(sizes):
    num_devices = math.prod(getattr(sizes, axis) for axis in AXES)
    return sizes.arrange(jax.devices()[:num_devices])


def make(dispatch, kind=jnp.float32, k=K):
    biased = functools.partial(Linear, bias=Zeros())
    return Experts(
        E,
        functools.partial(TopK, k, weights=as_scored if k == 1 else renormalized),
        functools.partial(GatedMlp, hidden_dim=8, down=biased),
        dispatch,
        dim=D,
        dtype=kind,
        param_dtype=kind,
        rngs=nnx.Rngs(params=0),
    )


def step_of(dispatch, kind, tokens, mesh, rules=Rules(), k=K, length=10):
    """Return a function from parameters and x to gradients by both and output; parameters."""
    structure, parameters, _ = split(make(dispatch, kind, k))

    def loss(parameters, x):
        y = structure.merge(parameters)(x, tokens)
        return jnp.sum(jnp.sin(y) * y), y

    sizes = dict(mesh.shape)
    infos = {n: ArrayInfo(p.shape, p.dtype, structure.axes()[n]) for n, p in parameters.items()}
    placed = shardings(place(infos, rules.parameters, sizes), mesh)
    rows = {"x": ArrayInfo((8, length, D), kind, ("batch", "length", "embed"))}
    at_x = shardings(place(rows, rules.activations, sizes), mesh)["x"]
    step = jax.jit(jax.grad(loss, (0, 1), has_aux=True), in_shardings=(placed, at_x))
    return step, parameters


def results(dispatch, x, tokens, sizes=SINGLE, rules=Rules(), k=K, router=None):
    """Return the output, and the gradients by the input and every parameter."""
    mesh = arranged(sizes)
    step, parameters = step_of(dispatch, x.dtype, tokens, mesh, rules, k, x.shape[1])
    if router is not None:
        parameters = parameters | {"router.logits.projection.kernel": router}
    with activation_rules(mesh, rules):
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


def skewed(loads):
    """Return tokens [8, 64, D] of which a share chooses each expert, and the router for it."""
    rng = np.random.default_rng(1)
    x_BLD = rng.standard_normal((8, 64, D))
    x_BLD[..., :E] = 4 * np.eye(E)[rng.choice(E, (8, 64), p=loads)]
    return jnp.asarray(x_BLD, jnp.float32), jnp.eye(D, E, dtype=jnp.float32)


SHARED = {"experts": ("expert", "tensor"), "mlp": ()}
OWNED_BY_TENSOR = Rules(
    parameters={**Rules().parameters, **SHARED}, activations={**Rules().activations, **SHARED}
)


@pytest.mark.full
@pytest.mark.parametrize("loads", [(1, 0, 0, 0), (0.5, 0, 0.3, 0.2)], ids=["one", "some"])
@pytest.mark.parametrize(
    ("sizes", "rules"),
    [
        (MESHES["expert"], Rules()),
        pytest.param(MESHES["expert, data and tensor"], Rules(), marks=pytest.mark.slow),
        (MESHES["expert, data and tensor"], OWNED_BY_TENSOR),
    ],
    ids=["expert", "expert, data and tensor", "experts over tensor"],
)
def test_a_load_of_any_balance_is_exchanged_in_rounds(sizes, rules, loads):
    # A round has places for a fourth of the choices (or half, of two peers), plus padding.
    x, router = skewed(loads)
    expected = results(AllExperts(), x, None, k=1, router=router)
    chosen = np.bincount(np.argmax(x @ router, -1).ravel(), minlength=E)
    assert chosen.max() > 1.5 * chosen.mean()
    found = results(Dropless(factor=1.0), x, None, sizes, rules, k=1, router=router)
    assert farthest(found, expected)[0] < 1e-6


@pytest.mark.full
def test_what_a_device_gets_in_a_round_does_not_grow_with_the_devices():
    sizes, length = MESHES["expert"], 64
    mesh = arranged(sizes)
    step, parameters = step_of(Dropless(factor=1.5), jnp.float32, None, mesh, length=length)
    with activation_rules(mesh, Rules()):
        traced = step.trace(parameters, jax.ShapeDtypeStruct((8, length, D), jnp.float32))
    # 2 rows of 64 tokens with 2 choices are 256; as many come at a balanced load.
    places = round(1.5 * 2 * length * K)
    exchanged = {
        equation.invars[0].aval.shape
        for equation in equations(traced.jaxpr)
        if equation.primitive.name == "all_to_all"
    }
    assert exchanged == {(places, D), (places,)}


def equations(jaxpr):
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for inner in inside(equation):
            yield from equations(inner)
