import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import (
    Circular,
    FullRemat,
    GPipe,
    NoRemat,
    Pipelined,
    Scanned,
    Turns,
)
from luthier.parallel import Mesh, Rules, activation_rules
from tests.layers.pipeline import pipelined_toy as toy

KINDS = (toy.Layer, toy.Scale)


@pytest.mark.full
@pytest.mark.parametrize(
    ("stack", "stages", "sizes"),
    [
        (Pipelined(4, GPipe()), 2, {"fsdp": 2}),
        (Pipelined(8, Circular(2)), 4, {}),
        (Pipelined(4, stage_remat=NoRemat()), 4, {}),
        (Pipelined(4, remat=FullRemat(), stage_remat=NoRemat()), 2, {"tensor": 2}),
    ],
    ids=repr,
)
def test_a_pipeline_is_what_its_layers_are_one_after_the_other(distance, stack, stages, sizes):
    expected, given = toy.plain()
    found, given_ = toy.run(stack, stages=stages, **sizes)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-6
    assert distance(given_["sum"], given["sum"]) < 1e-6
    assert given["layer"].tolist() == [toy.ROWS * layer for layer in range(toy.LAYERS)]
    assert given_["layer"].tolist() == given["layer"].tolist()


@pytest.mark.full
@pytest.mark.parametrize("schedule", [GPipe(), Circular(2)], ids=repr)
def test_layers_by_turns(distance, schedule):
    expected, given = toy.plain(KINDS)
    found, given_ = toy.run(Pipelined(4, schedule), KINDS, stages=2)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-6
    assert isinstance(given_, Turns)
    for one, other in zip(given_.cycle, given.cycle, strict=True):
        assert distance(one["sum"], other["sum"]) < 1e-6


@pytest.mark.full
def test_sixteen_bits_are_added_up_in_float32(distance):
    expected, _ = toy.plain()
    plain, _ = toy.plain(dtype=jnp.bfloat16)
    found, _ = toy.run(Pipelined(16, Circular(2)), stages=4, dtype=jnp.bfloat16)
    for one, other, exact in zip(found, plain, expected, strict=True):
        assert distance(one, exact) < 1.1 * distance(other, exact) + 1e-3


def test_one_stage_and_no_mesh_run_layers_as_a_scan(distance):
    expected, _ = toy.plain()
    found, _ = toy.run(Pipelined(3))
    for one, other in zip(found, expected, strict=True):
        assert (one == other).all()


def test_parameters_are_those_of_a_scan():
    stacks = (Pipelined(4).create(KINDS, 5, nnx.Rngs(3)), Scanned().create(KINDS, 5, nnx.Rngs(3)))
    found, expected = (nnx.state(layers) for layers in stacks)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x == y).all()), found, expected)))


def test_layers_with_something_of_their_own_run_in_turn():
    layers = Scanned().create(toy.Layer, 4, nnx.Rngs(0))
    add = lambda layer, index, x, own: (x + own, own)
    mesh = Mesh(stage=2).arrange(jax.devices())
    stack = Pipelined(4)
    own = stack.init_own(layers, lambda layer: layer.kernel[...].sum() * 0 + 1)
    with activation_rules(mesh, Rules()):
        y, given = jax.jit(lambda x: stack.apply(layers, add, x, own))(jnp.zeros((3, 2)))
    assert y.tolist() == [[4, 4]] * 3
    assert given.tolist() == [1] * 4


def test_what_cannot_be_shared_out_is_refused_at_once():
    with pytest.raises(BadInput) as caught:
        toy.run(Pipelined(6, Circular(3)), stages=4)
    assert str(caught.value).splitlines() == [
        "8 layers cannot be split evenly over 4 stages x 3 repeats; "
        "use a multiple of 12 layers, or fewer stages or repeats",
        "microbatches: 6 microbatches cannot be split evenly over 4 stages; set microbatches=8",
        "microbatches: 16 rows cannot be cut into 6 microbatches; use a multiple of 6 rows",
    ]


def test_layers_left_after_the_last_turn_are_refused():
    with pytest.raises(BadInput) as caught:
        toy.run(Pipelined(4), KINDS, stages=2, num_layers=9)
    assert str(caught.value) == (
        "9 layers cannot be split evenly over 2 stages x 2 kinds of layers; "
        "use a multiple of 4 layers, or fewer stages"
    )


def test_pipelines_are_values():
    assert Pipelined(4) == Pipelined(4, GPipe())
    assert hash(Pipelined(4, Circular(2))) == hash(Pipelined(4, Circular(2)))
