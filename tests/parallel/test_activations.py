import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from luthier.errors import ShardingError
from luthier.parallel import Mesh, Rules, activation_rules, constrain, make_mesh

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


def test_one_device_is_not_constrained():
    mesh = make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])
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
