import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import FanIn, FullRemat, Linear, Normal, Scanned, Shared, Unrolled


def make_layer(rngs):
    axes = {"input_axes": ("embed",), "output_axes": (None,)}
    return Linear(FanIn(), Normal(), inputs=(8,), outputs=(8,), **axes, rngs=rngs)


def function(layer, index, x, own):
    y = jnp.tanh(layer(x)) * (1.0 + index) + (0 if own is None else own)
    return y, (index, y.sum())


def run(stack, state_of, x, own=None, num_layers=6):
    layers = stack.create(make_layer, num_layers, nnx.Rngs(7))
    graphdef, state = nnx.split(layers)
    state = state_of(state)

    def loss(state, x):
        y, given = stack.apply(nnx.merge(graphdef, state), function, x, own)
        return jnp.square(y).sum(), (y, given)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(state, x)


@pytest.mark.parametrize("num_groups", [1, 2, 6])
@pytest.mark.parametrize("own", [False, True])
def test_as_if_each_layer_had_its_groups_parameters(num_groups, own, draw, distance):
    """The gradient of a group is the sum over the layers that it serves."""
    x, own = draw(3, 8), draw(6, 3, 8) if own else None
    stack = Shared(num_groups)
    groups = {}

    def keep(state):
        groups.update({path[-1]: v[...] for path, v in nnx.to_flat_state(state)})
        return state

    def spread(state):
        for path, variable in nnx.to_flat_state(state):
            variable.set_value(jnp.repeat(groups[path[-1]], 6 // num_groups, axis=0))
        return state

    (_, (y, given)), (of_state, of_x) = run(stack, keep, x, own)
    (_, expected), (of_each, of_x_too) = run(Scanned(), spread, x, own)
    assert distance(y, expected[0]) < 1e-6
    np.testing.assert_array_equal(given[0], np.arange(6))
    assert distance(given[1], expected[1][1]) < 1e-6
    assert distance(of_x, of_x_too) < 1e-6
    each = {path[-1]: v[...] for path, v in nnx.to_flat_state(of_each)}
    for path, gradient in nnx.to_flat_state(of_state):
        summed = each[path[-1]].reshape(num_groups, -1, *gradient.shape[1:]).sum(1)
        assert distance(gradient[...], summed) < 1e-6


def test_remat_changes_nothing(draw, distance):
    x, same = draw(3, 8), lambda state: state
    plain, other = run(Shared(2), same, x), run(Shared(2, FullRemat()), same, x)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        assert distance(a, b) < 1e-6


def test_groups_start_like_the_first_layers_of_other_stacks():
    shared = nnx.to_flat_state(nnx.state(Shared(2).create(make_layer, 4, nnx.Rngs(7))))
    others = nnx.to_flat_state(nnx.state(Unrolled().create(make_layer, 2, nnx.Rngs(7))))
    others = {path: value[...] for path, value in others}
    for path, value in shared:
        assert value.get_metadata()["logical_axes"][0] == "layers"
        for i in range(2):
            np.testing.assert_array_equal(value[i], others[(i, path[-1])])


def test_what_belongs_to_layers_is_not_shared():
    layers = Shared(2).create(make_layer, 4, nnx.Rngs(7))
    own = Shared(2).init_own(layers, lambda layer: layer.kernel[0, :3])
    assert own.shape == (4, 3)
    np.testing.assert_array_equal(own[0], own[1])
    assert (own[1] != own[2]).all()


def test_layers_that_do_not_divide_into_groups_are_refused():
    with pytest.raises(BadInput, match="5 layers do not divide into 2 groups"):
        Shared(2).create(make_layer, 5, nnx.Rngs(7))
