import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from luthier.program import not_reused


def compiled(function, *leaves):
    """Return a compiled function of a tuple `leaves`, donated, and the leaves by name."""
    sharding = SingleDeviceSharding(jax.devices()[0])
    given = {
        f"parameters/{i}": jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
        for i, shape in enumerate(leaves)
    }
    scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding)
    jitted = jax.jit(function, donate_argnums=1)
    return jitted.lower(scale, tuple(given.values())).compile(), given


def test_all_buffers_of_a_step_are_reused():
    step, given = compiled(lambda scale, leaves: [x * scale for x in leaves], (4, 4), (8,))
    assert not_reused(step, given) == {}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_buffer_that_is_not_reused_is_named():
    def step(scale, leaves):
        _, kept, reduced = leaves
        return kept * scale, reduced.sum(), scale

    found = not_reused(*compiled(step, (2, 2), (4, 4), (3, 8)))
    assert found == {"parameters/0": 16, "parameters/2": 96}
