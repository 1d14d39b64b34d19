import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    Cycle,
    FanIn,
    FullRemat,
    Linear,
    NoRemat,
    Normal,
    SaveNamed,
    SaveProjections,
    Scanned,
    Turns,
    Unrolled,
)
from luthier.parallel import Mesh, Rules, activation_rules, stand_ins_for

STACKS = [
    Scanned(),
    Scanned(unroll=3),
    Scanned(FullRemat()),
    Scanned(SaveNamed(("x",))),
    Scanned(SaveProjections()),
    Unrolled(),
    Unrolled(FullRemat()),
]


def make_layer(rngs):
    axes = {"input_axes": ("embed",), "output_axes": (None,)}
    return Linear(FanIn(), Normal(), inputs=(8,), outputs=(8,), **axes, rngs=rngs)


def function(layer, index, x, own):
    y = jnp.tanh(layer(x)) + (0 if own is None else own)
    return y, (index, y.sum())


def run(stack, x, own=None):
    layers = stack.create(make_layer, 3, nnx.Rngs(7))
    graphdef, state = nnx.split(layers)

    def loss(state, x):
        y, given = stack.apply(nnx.merge(graphdef, state), function, x, own)
        return jnp.square(y).sum(), (y, given)

    gradients, results = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(state, x)
    return _by_layer(gradients[0]), gradients[1], results


def _by_layer(state):
    """Return {name: array with a leading layers axis}, for scanned and unrolled alike."""
    flat = {path: value[...] for path, value in nnx.to_flat_state(state)}
    if all(isinstance(path[0], int) for path in flat):
        names = {path[1:] for path in flat}
        layers = sorted({path[0] for path in flat})
        return {name: jnp.stack([flat[(i, *name)] for i in layers]) for name in names}
    return flat


@pytest.mark.parametrize("jit", [False, True])
def test_parameters_are_bit_identical(jit):
    def init(stack):
        return nnx.state(stack.create(make_layer, 3, nnx.Rngs(7)))

    init = jax.jit(init, static_argnums=0) if jit else init
    scanned, unrolled = _by_layer(init(Scanned())), _by_layer(init(Unrolled()))
    assert scanned.keys() == unrolled.keys()
    for name, value in scanned.items():
        assert np.asarray(value).tobytes() == np.asarray(unrolled[name]).tobytes(), name


@pytest.mark.full
def test_layers_differ_and_do_not_depend_on_their_number():
    few, many = (_by_layer(nnx.state(Scanned().create(make_layer, n, nnx.Rngs(7)))) for n in (2, 5))
    for name, value in many.items():
        assert (value[:2] == few[name]).all()
        assert (value[0] != value[1]).any()


def test_the_layers_axis_is_named():
    layers = Scanned().create(make_layer, 3, nnx.Rngs(0))
    assert layers.kernel.get_metadata()["logical_axes"] == ("layers", "embed", None)
    assert layers.bias.get_metadata()["logical_axes"] == ("layers", None)
    assert len(jax.tree.leaves(nnx.state(layers))) == 2


@pytest.mark.parametrize("stack", STACKS[1:], ids=repr)
def test_stacks_agree(stack, draw, distance):
    x, own = draw(4, 8), draw(3, 8)
    parameters, inputs, (y, given) = run(STACKS[0], x, own)
    parameters_, inputs_, (y_, given_) = run(stack, x, own)
    for name, gradient in parameters.items():
        assert distance(parameters_[name], gradient) < 1e-6, name
    assert distance(inputs_, inputs) < 1e-6
    assert distance(y_, y) < 1e-6
    assert (given_[0] == given[0]).all()
    assert distance(given_[1], given[1]) < 1e-6


def test_unrolled_layers_are_computed_again_too():
    def num_barriers(stack):
        state = nnx.state(stack.create(make_layer, 3, nnx.Rngs(7)))
        graphdef = nnx.graphdef(stack.create(make_layer, 3, nnx.Rngs(7)))

        def loss(state):
            return stack.apply(nnx.merge(graphdef, state), function, jnp.ones((4, 8)))[0].sum()

        return jax.jit(jax.grad(loss)).lower(state).as_text().count("optimization_barrier")

    # Without barriers, XLA merges a layer with its recomputation, unless a loop separates them.
    assert num_barriers(Scanned(FullRemat())) == num_barriers(Scanned())
    assert num_barriers(Scanned(FullRemat(), unroll=2)) == num_barriers(Scanned(unroll=2))
    assert num_barriers(Scanned(FullRemat(), unroll=3)) > num_barriers(Scanned(unroll=3))


@pytest.mark.parametrize(
    ("platform", "remat", "number", "unrolls"),
    [
        ("gpu", NoRemat(), 48, True),
        ("gpu", SaveProjections(), 3, True),
        ("gpu", SaveNamed(["query"]), 3, False),
        ("gpu", FullRemat(), 3, False),
        ("gpu", NoRemat(), 49, False),
        ("tpu", NoRemat(), 3, False),
        ("cpu", NoRemat(), 3, False),
    ],
)
def test_gpus_run_no_loop_where_one_would_save_little(platform, remat, number, unrolls):
    stack = Scanned(remat, unroll="auto")
    layers = stack.create(make_layer, number, nnx.Rngs(7))
    mesh = Mesh().arrange(jax.devices()[:1])
    with activation_rules(mesh, Rules()), stand_ins_for(platform):
        jaxpr = jax.make_jaxpr(lambda x: stack.apply(layers, function, x)[0])(jnp.ones((4, 8)))
    (scan,) = (e for e in jaxpr.eqns if e.primitive.name == "scan")
    assert scan.params["unroll"] == (number if unrolls else 1)


@pytest.mark.parametrize("stack", [Scanned(), Unrolled()], ids=repr)
def test_what_belongs_to_each_layer(stack):
    layers = stack.create(make_layer, 3, nnx.Rngs(0))
    sums = stack.init_own(layers, lambda layer: layer.kernel[...].sum())
    assert sums.shape == (3,)
    assert len(set(sums.tolist())) == 3


@pytest.mark.parametrize("stack", [Scanned(), Unrolled()], ids=repr)
def test_settings_may_be_traced(stack):
    class Scaled(nnx.Module):
        def __init__(self, scale, rngs):
            self.scale = scale
            self.kernel = nnx.Param(jnp.ones(2))

    def apply(scale):
        layers = stack.create(lambda rngs: Scaled(scale, rngs), 2, nnx.Rngs(0))
        body = lambda layer, index, x, own: (x * layer.scale * layer.kernel[...], None)
        return stack.apply(layers, body, jnp.ones(2))[0]

    assert jax.jit(apply)(3.0).tolist() == [9.0, 9.0]


def test_stacks_are_abstract_under_eval_shape():
    layers = nnx.eval_shape(lambda: Scanned().create(make_layer, 3, nnx.Rngs(0)))
    assert layers.kernel.get_raw_value().shape == (3, 8, 8)


def test_stacks_are_values():
    assert Scanned() == Scanned(NoRemat(), 1)
    assert hash(Scanned(SaveNamed(["a"]))) == hash(Scanned(SaveNamed(("a",))))


def make_wide(rngs):
    """Make a layer of another shape and kind than `make_layer`."""
    axes = {"input_axes": ("embed",), "output_axes": (None, None)}
    return Linear(Normal(0.3), inputs=(8,), outputs=(2, 4), **axes, rngs=rngs)


def in_turn(layer, index, x, own):
    y = layer(x).reshape(x.shape)
    given = y[:, :3].sum(0) if layer.bias is None else y.sum(0)
    y = jnp.tanh(y) * (1.0 + index / 8)
    return (y if own is None else y + jnp.tanh(own).mean()), given


KINDS = [make_layer, make_wide, make_layer]


def by_number(layers):
    """Return {(layer, name): array} for scanned and unrolled layers that take turns."""
    found, kinds = {}, len(KINDS)
    for path, value in nnx.to_flat_state(nnx.state(layers)):
        array = value[...]
        if path[0] == "cycle":
            for turn, one in enumerate(array):
                found[(turn * kinds + path[1], *path[2:])] = one
        elif path[0] == "rest":
            whole = len(layers.cycle) and kinds * layers.cycle[0].kernel.shape[0]
            found[(whole + path[1], *path[2:])] = array
        else:
            found[path] = array
    return found


@pytest.mark.parametrize("num_layers", [2, 3, 7, 9])
@pytest.mark.parametrize("jit", [False, True])
def test_parameters_of_layers_by_turns_are_bit_identical(num_layers, jit):
    def init(stack):
        return stack.create(KINDS, num_layers, nnx.Rngs(7))

    init = nnx.jit(init, static_argnums=0) if jit else init
    scanned, unrolled = by_number(init(Scanned())), by_number(init(Unrolled()))
    assert scanned.keys() == unrolled.keys()
    assert {path[0] for path in scanned} == set(range(num_layers))
    for name, value in scanned.items():
        assert np.asarray(value).tobytes() == np.asarray(unrolled[name]).tobytes(), name


def test_names_and_axes_of_layers_by_turns():
    layers = Scanned().create(KINDS, 7, nnx.Rngs(0))
    assert isinstance(layers, Cycle)
    found = {
        ".".join(map(str, path)): (value.shape, value.get_metadata()["logical_axes"])
        for path, value in nnx.to_flat_state(nnx.state(layers))
    }
    assert found == {
        "cycle.0.kernel": ((2, 8, 8), ("layers", "embed", None)),
        "cycle.0.bias": ((2, 8), ("layers", None)),
        "cycle.1.kernel": ((2, 8, 2, 4), ("layers", "embed", None, None)),
        "cycle.2.kernel": ((2, 8, 8), ("layers", "embed", None)),
        "cycle.2.bias": ((2, 8), ("layers", None)),
        "rest.0.kernel": ((8, 8), ("embed", None)),
        "rest.0.bias": ((8,), (None,)),
    }


@pytest.mark.parametrize("num_layers", [2, 3, 7])
@pytest.mark.parametrize("stack", [*STACKS[1:], Scanned(unroll=2)], ids=repr)
def test_stacks_of_layers_by_turns_agree(stack, num_layers, draw, distance):
    x = draw(4, 8)

    def run(stack):
        layers = stack.create(KINDS, num_layers, nnx.Rngs(7))
        graphdef, state = nnx.split(layers)
        own = stack.init_own(layers, lambda layer: layer.kernel[...].sum(0))

        def loss(state, x):
            y, given = stack.apply(nnx.merge(graphdef, state), in_turn, x, own)
            again, _ = stack.apply(nnx.merge(graphdef, state), in_turn, y, given)
            return jnp.square(again).sum(), (y, given)

        (gradient, of_x), (y, given) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(state, x)
        return by_number(nnx.merge(graphdef, gradient)), of_x, y, given

    expected, found = run(STACKS[0]), run(stack)
    assert expected[0].keys() == found[0].keys()
    for name, gradient in expected[0].items():
        assert distance(found[0][name], gradient) < 1e-6, name
    assert distance(found[1], expected[1]) < 1e-6
    assert distance(found[2], expected[2]) < 1e-6


def test_what_layers_by_turns_give():
    layers = Scanned().create(KINDS, 7, nnx.Rngs(0))
    y, given = Scanned().apply(layers, in_turn, jnp.ones((4, 8)))
    assert y.shape == (4, 8)
    assert isinstance(given, Turns)
    assert [gift.shape for gift in given.cycle] == [(2, 8), (2, 3), (2, 8)]
    assert [gift.shape for gift in given.rest] == [(8,)]


def test_one_kind_in_a_list_is_no_cycle():
    layers = Scanned().create([make_layer], 3, nnx.Rngs(0))
    assert layers.kernel.shape == (3, 8, 8)
