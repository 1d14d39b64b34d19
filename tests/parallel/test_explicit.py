"""Layouts that layers say where axes are explicit."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from luthier import parallel
from luthier.errors import ShardingError
from luthier.parallel import AxisType, Mesh, Rules, activation_rules, is_explicit, result_sharding


@pytest.fixture
def mesh():
    devices = jax.devices()[:8]
    return Mesh(data=1, fsdp=2, tensor=4, axis_type=AxisType.EXPLICIT).arrange(devices)


def laid_out(mesh, *entries):
    sharding = NamedSharding(mesh, PartitionSpec(*entries))
    return jax.device_put(jnp.ones((8, 4, 16)), sharding)


def traced(mesh, function, *arrays):
    """Return the layout of what a function gives under the mesh."""

    def under(*arrays):
        with activation_rules(mesh, Rules()):
            return function(*arrays)

    return jax.jit(under).trace(*arrays).out_info.sharding.spec


def test_axes_are_automatic_by_default():
    mesh = Mesh().arrange(jax.devices()[:8])
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}
    with activation_rules(mesh, Rules()):
        assert not is_explicit()
        assert result_sharding(jnp.ones((8, 4)), 1, ("mlp",)) is None


def test_without_a_mesh_nothing_is_explicit():
    assert not is_explicit()
    assert result_sharding(jnp.ones((8, 4)), 1, ("mlp",)) is None


def test_a_result_is_laid_out_as_its_operand_and_by_the_rules(mesh):
    found = []

    def look(x):
        found.append(result_sharding(x, 2, ("mlp",)).spec)
        found.append(result_sharding(x, 2, ("embed",)).spec)
        return x

    traced(mesh, look, laid_out(mesh, "fsdp", None, None))
    assert found == [PartitionSpec("fsdp", None, "tensor"), PartitionSpec("fsdp", None, None)]


def test_a_mesh_axis_is_used_once(mesh):
    found = []

    def look(x):
        found.append(result_sharding(x, 2, ("mlp",)).spec)
        return x

    traced(mesh, look, laid_out(mesh, "tensor", None, None))
    assert found == [PartitionSpec("tensor", None, None)]


def test_constrain_lays_out_what_the_rules_name_and_leaves_the_rest(mesh):
    x = laid_out(mesh, None, "fsdp", None)
    layout = traced(mesh, lambda x: parallel.constrain(x, (None, None, "mlp")), x)
    assert layout == PartitionSpec(None, "fsdp", "tensor")


def test_constrain_leaves_an_array_that_is_laid_out_so(mesh):
    x = laid_out(mesh, "fsdp", None, "tensor")

    def same(x):
        assert parallel.constrain(x, ("batch", None, "mlp")) is x
        return x

    traced(mesh, same, x)


def test_functions_of_places_are_refused(mesh):
    with activation_rules(mesh, Rules()), pytest.raises(ShardingError, match="axis_type=AUTO"):
        parallel.current_layout().shard_map(lambda x: x, ("fsdp",), None, None)
