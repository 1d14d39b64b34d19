from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from luthier.checkpoint import DeviceCopy, HostCopy


def test_copies_on_the_device_outlive_a_donation():
    arrays = {"w": jnp.arange(8.0), "n": jnp.int32(3)}
    copies = DeviceCopy()(arrays)
    jax.jit(lambda a: {k: v * 0 for k, v in a.items()}, donate_argnums=0)(arrays)
    np.testing.assert_array_equal(copies["w"], np.arange(8.0))
    assert copies["n"].dtype == jnp.int32
    assert DeviceCopy().in_background


def test_copies_keep_their_sharding():
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("fsdp"))
    array = jax.device_put(jnp.arange(16.0), sharding)
    assert DeviceCopy()({"w": array})["w"].sharding == sharding


def test_the_host_copy_is_left_to_orbax():
    arrays = {"w": jnp.arange(8.0)}
    assert HostCopy()(arrays) is arrays
    assert not HostCopy().in_background
