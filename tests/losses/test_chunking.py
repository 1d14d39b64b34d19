from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.losses import Chunked, Whole
from luthier.tasks import weighted_sum


def square(x_BL, y_BL):
    return {"z": jnp.square(x_BL) + y_BL[..., None], "y": y_BL}


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 100])
def test_every_chunk_length_gives_the_whole(length):
    x = jnp.arange(2 * 7 * 3.0).reshape(2, 7, 3)
    y = jnp.arange(14).reshape(2, 7)
    whole, chunked = Whole().map(square, x, y), Chunked(length).map(square, x, y)
    jax.tree.map(np.testing.assert_array_equal, whole, chunked)


def test_a_chunk_as_long_as_the_sequence_is_no_scan():
    jaxpr = jax.make_jaxpr(lambda x: Chunked(7).map(jnp.sin, x))(jnp.ones((2, 7)))
    assert [equation.primitive.name for equation in jaxpr.eqns] == ["sin"]


def test_memory_falls_with_the_chunk():
    table = jnp.ones((2000, 16))

    def temporary_bytes(chunking):
        def loss(table, hidden):
            return jnp.sum(chunking.map(lambda h: jnp.sum(jnp.exp(h @ table.T), -1), hidden))

        compiled = jax.jit(jax.grad(loss)).lower(table, jnp.ones((2, 256, 16))).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(Chunked(32)) < temporary_bytes(Whole()) / 4


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"values of shape \(4, 1\) have weights of shape \(4,\)"):
        weighted_sum(jnp.ones((4, 1)), jnp.ones(4))
