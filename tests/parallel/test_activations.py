import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from luthier.errors import ShardingError
from luthier.parallel import (
    RESIDUAL_AXES,
    Mesh,
    Rules,
    activation_rules,
    activation_rules_table,
    constrain,
    current_layout,
    gather_length,
    make_mesh,
)

AXES = ("batch", "length", "embed")


def device_mesh(**sizes):
    return make_mesh(Mesh(**sizes).sizes(8), jax.devices())


def constraints(function, *arguments):
    """Return the specs that tracing `function` asks for."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "sharding_constraint":
            found.append(eqn.params["sharding"].spec)
    return found


def test_nothing_is_constrained_outside_of_the_context():
    assert constraints(lambda x: constrain(x, AXES), jnp.zeros((8, 4, 2))) == []


def test_the_compiled_layout_is_the_one_of_the_rules():
    mesh = device_mesh(fsdp=4, tensor=2)
    with activation_rules(mesh, Rules()):
        x = jax.jit(lambda x: constrain(x + 1, ("batch", "length", "mlp")))(jnp.zeros((8, 4, 6)))
    expected = jax.sharding.NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "tensor"))
    assert x.sharding.is_equivalent_to(expected, x.ndim)
    assert (x == 1).all()


def test_what_cannot_be_divided_or_has_no_rule_is_left_to_the_compiler():
    free = PartitionSpec.UNCONSTRAINED
    with activation_rules(device_mesh(fsdp=4, tensor=2), Rules()):
        heads = constraints(lambda x: constrain(x, ("batch", "heads")), jnp.zeros((8, 7)))
        unknown = constraints(lambda x: constrain(x, ("foo", None, "embed")), jnp.zeros((8, 7, 2)))
        nothing = constraints(lambda x: constrain(x, ("foo", "batch")), jnp.zeros((8, 7)))
    assert heads == [PartitionSpec("fsdp", free)]
    assert unknown == [PartitionSpec(free, free, None)]
    assert nothing == []


def test_the_residual_stream_is_split_as_its_rows_are_but_for_a_rule_of_its_own():
    x, mesh = jnp.zeros((8, 8, 2)), device_mesh(sequence=2, tensor=4)
    whole = PartitionSpec(None, "sequence", None)
    with activation_rules(mesh, Rules()):
        assert constraints(lambda x: constrain(x, RESIDUAL_AXES), x) == [whole]
        assert constraints(gather_length, x) == []
    # A table of one's own that does not name it, as in records of earlier versions.
    with activation_rules(mesh, Rules(activations={"length": ("sequence",), "embed": ()})):
        free = PartitionSpec(PartitionSpec.UNCONSTRAINED, "sequence", None)
        assert constraints(lambda x: constrain(x, RESIDUAL_AXES), x) == [free]
        assert constraints(gather_length, x) == []
    # A rule for `length` holds for the residual stream, too.
    table = activation_rules_table() | {"length": ("tensor",)}
    with activation_rules(mesh, Rules(activations=table)):
        assert constraints(lambda x: constrain(x, RESIDUAL_AXES), x) == [
            PartitionSpec(None, "tensor", None)
        ]
    with activation_rules(mesh, Rules(activations={"residual_length": ("tensor",)})):
        assert constraints(lambda x: constrain(x, RESIDUAL_AXES), x[:, :6]) == [
            PartitionSpec(PartitionSpec.UNCONSTRAINED, None, PartitionSpec.UNCONSTRAINED)
        ]
    table = activation_rules_table() | {"residual_length": ("tensor",)}
    with activation_rules(mesh, Rules(activations=table)):
        split = PartitionSpec(None, ("sequence", "tensor"), None)
        assert constraints(lambda x: constrain(x, RESIDUAL_AXES), x) == [split]
        assert constraints(gather_length, x) == [whole]
        assert constraints(lambda x: constrain(x, RESIDUAL_AXES), x[:, :6]) == [whole]
        uneven = constraints(lambda x: constrain(x, RESIDUAL_AXES), x[:, :3])
        assert uneven == [PartitionSpec(None, PartitionSpec.UNCONSTRAINED, None)]


def test_one_device_is_not_constrained():
    mesh = make_mesh(Mesh().sizes(1), jax.devices()[:1])
    with activation_rules(mesh, Rules()):
        assert constraints(lambda x: constrain(x, AXES), jnp.zeros((8, 4, 2))) == []


def test_the_context_ends_and_nests_also_after_an_error():
    def specs():
        return constraints(lambda x: constrain(x, ("batch",)), jnp.zeros(8))

    def fail_inside():
        with activation_rules(device_mesh(fsdp=8), Rules()):
            assert specs() == [PartitionSpec("fsdp")]
            raise RuntimeError

    with activation_rules(device_mesh(), Rules()):
        outer = specs()
        with pytest.raises(RuntimeError):
            fail_inside()
        assert specs() == outer == [PartitionSpec("data")]
    assert specs() == []


def test_threads_do_not_see_each_other():
    inside, found, go = [], [], threading.Event()

    def other():
        go.wait(30)
        found.extend(constraints(lambda x: constrain(x, ("batch",)), jnp.zeros(8)))
        with activation_rules(device_mesh(fsdp=8), Rules()):
            inside.extend(constraints(lambda x: constrain(x, ("batch",)), jnp.zeros(8)))

    thread = threading.Thread(target=other)
    thread.start()
    with activation_rules(device_mesh(), Rules()):
        go.set()
        thread.join()
        assert constraints(lambda x: constrain(x, ("batch",)), jnp.zeros(8)) == [
            PartitionSpec("data")
        ]
    assert (found, inside) == ([], [PartitionSpec("fsdp")])


def test_a_jitted_layer_is_traced_again_under_another_mesh():
    traces = []

    @jax.jit
    def layer(x):
        traces.append(x.shape)
        return constrain(x, ("batch",))

    x = jnp.zeros(8)
    layer(x)
    layouts = []
    for mesh in (device_mesh(), device_mesh(fsdp=2, tensor=4), device_mesh()):
        with activation_rules(mesh, Rules()):
            layouts.append(len(layer(x).sharding.device_set))
            layouts.append(layer(x).sharding.shard_shape(x.shape))
    assert layouts == [8, (1,), 8, (4,), 8, (1,)]
    assert len(traces) == 3


def test_constraints_survive_vmap_scan_and_gradients():
    def loss(x):
        def body(carry, row):
            return constrain(carry * row, ("batch", "mlp")), None

        return jax.lax.scan(body, x, jnp.ones((3, *x.shape)))[0].sum()

    x = jnp.ones((4, 8, 2))
    with activation_rules(device_mesh(fsdp=4, tensor=2), Rules()):
        gradients = jax.jit(jax.vmap(jax.grad(loss)))(x)
    assert (gradients == 1).all()


def test_a_wrong_number_of_axes_and_an_unknown_mesh_axis_are_refused():
    with pytest.raises(ShardingError, match=r"1 logical axes \('batch',\) for shape \(2, 3\)"):
        constrain(jnp.zeros((2, 3)), ("batch",))
    rules = Rules(activations={"batch": ("model",)})
    with (
        pytest.raises(
            ShardingError, match=r"rules\.activations\.batch: the mesh has no axis 'model'"
        ),
        activation_rules(device_mesh(), rules),
    ):
        pass


def test_constraints_inside_of_a_mapped_axis_leave_it_out():
    mesh = device_mesh(data=2, sequence=2, tensor=2)

    def inside(x):
        layout = current_layout()
        assert layout.mesh_axes("length") == ()
        assert layout.mesh_axes("mlp") == ("tensor",)
        return constrain(x * 2, ("batch", "length", "mlp"))

    def function(x):
        layout = current_layout()
        assert layout.mesh_axes("length") == ("sequence",)
        spec = PartitionSpec(None, "sequence")
        return layout.shard_map(inside, ("sequence",), spec, spec)(x).sum()

    x = jnp.arange(64.0).reshape(4, 4, 4)
    with activation_rules(mesh, Rules()):
        total, gradient = jax.jit(jax.value_and_grad(function))(x)
    assert total == 2 * x.sum()
    assert (gradient == 2).all()


def test_mapped_axes_nest():
    mesh = device_mesh(stage=2, sequence=2, data=2)

    def add_up(x):
        return jax.lax.psum(constrain(x, ("batch", "length")), "sequence")

    def stage(x):
        spec = PartitionSpec(None, "sequence")
        return current_layout().shard_map(add_up, ("sequence",), spec, PartitionSpec())(x)

    def function(x):
        of_stage = PartitionSpec("stage")
        return current_layout().shard_map(stage, ("stage",), of_stage, of_stage)(x)

    x = jnp.arange(32.0).reshape(8, 4)
    with activation_rules(mesh, Rules()):
        found = jax.jit(function)(x)
    assert (found == x[:, :2] + x[:, 2:]).all()


def test_own_rules_go_before_those_of_the_trace():
    with activation_rules(device_mesh(fsdp=4, tensor=2), Rules()):
        own = {"length": ("tensor",), "mlp": ()}
        found = constraints(
            lambda x: constrain(x, ("batch", "length", "mlp"), own), jnp.zeros((8, 4, 6))
        )
    assert found == [PartitionSpec("fsdp", "tensor", None)]
    assert current_layout() is None
