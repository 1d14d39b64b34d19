"""Products of groups in tiles, against a loop over groups in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from luthier.layers import Groups, MatrixProduct
from luthier.planner import flops_by_dtype
from luthier.tasks import Flops, count_flops


@functools.partial(jax.jit, static_argnums=(4, 5))
def results(x_NI, kernel_EIO, weights_NO, sizes_E, tile, elsewhere):
    """Return the products, and the gradients of their weighted sum by both factors."""
    groups = Groups(sizes_E, x_NI.shape[0] // (2 if elsewhere else 1), tile, elsewhere)

    def weighted(x_NI, kernel_EIO):
        y_NO = MatrixProduct().grouped(x_NI, kernel_EIO, groups)
        return jnp.sum((y_NO * weights_NO).astype(jnp.float32)), y_NO

    (to_x, to_kernel), y_NO = jax.grad(weighted, (0, 1), has_aux=True)(x_NI, kernel_EIO)
    return y_NO, to_x, to_kernel


def expected(x_NI, kernel_EIO, weights_NO, sizes):
    """Return the same by a loop in float64, zeros for rows of no group."""
    x_NI, kernel_EIO, weights_NO = (np.float64(x) for x in (x_NI, kernel_EIO, weights_NO))
    y_NO, to_x, to_kernel = (np.zeros_like(x) for x in (weights_NO, x_NI, kernel_EIO))
    start = 0
    for group, size in enumerate(sizes):
        rows, start = slice(start, start + size), start + size
        y_NO[rows] = x_NI[rows] @ kernel_EIO[group]
        to_x[rows] = weights_NO[rows] @ kernel_EIO[group].T
        to_kernel[group] = x_NI[rows].T @ weights_NO[rows]
    return y_NO, to_x, to_kernel


def drawn(sizes, num_rows, inputs, outputs):
    """Return rows, kernels and weights; rows after the last group are zeros."""
    draw = np.random.default_rng(0).standard_normal
    x_NI, kernel_EIO, weights_NO = (
        draw(shape).astype(np.float32)
        for shape in [(num_rows, inputs), (len(sizes), inputs, outputs), (num_rows, outputs)]
    )
    x_NI[sum(sizes) :], weights_NO[sum(sizes) :] = 0, 0
    return x_NI, kernel_EIO, weights_NO


# The wide kernels do not fit in one block of tiles, so that products are in turns. In the example a
# block has two tiles, and the last one that holds rows is half full.
@example(counts=[9, 4], tile=8, empty=3, shape=(256, 1024), elsewhere=True)
@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    tile=st.sampled_from([8, 16]),
    empty=st.integers(0, 3),
    shape=st.sampled_from([(3, 5), (256, 1024)]),
    elsewhere=st.booleans(),
)
def test_rows_meet_the_kernel_of_their_group(counts, tile, empty, shape, elsewhere):
    sizes = [tile * count for count in counts]
    arrays = drawn(sizes, max(sum(sizes) + tile * empty, tile), *shape)
    found = results(*arrays, jnp.array(sizes), tile, elsewhere)
    for got, want in zip(found, expected(*arrays, sizes), strict=True):
        got = np.float64(got)
        if got.shape[0] == arrays[0].shape[0]:
            got, want = got[: sum(sizes)], want[: sum(sizes)]
        assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


def test_gradients_of_kernels_are_summed_in_float32(distance):
    sizes = [8 * 64]
    arrays = drawn(sizes, 512, 16, 16)
    narrow = [x.astype(jnp.bfloat16) for x in arrays]
    _, _, to_kernel = results(*narrow, jnp.array(sizes), 8, False)
    want = expected(*narrow, sizes)[2]
    assert to_kernel.dtype == jnp.bfloat16
    assert distance(np.float64(to_kernel), want) < 2**-9


def test_a_kernel_that_devices_share_gets_the_gradient_of_all_their_rows(distance):
    sizes, tile = [16, 0, 8], 8
    arrays = drawn(sizes, 32, 6, 5)
    mesh = jax.make_mesh((2,), ("rows",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    rows, whole = PartitionSpec("rows"), PartitionSpec()

    def weighted(x_NI, kernel_EIO, weights_NO):
        def on_device(x_NI, kernel_EIO, weights_NO):
            groups = Groups(jnp.array(sizes), 32, tile)
            kernel_EIO = jax.lax.pcast(kernel_EIO, ("rows",), to="varying")
            return MatrixProduct().grouped(x_NI, kernel_EIO, groups) * weights_NO

        run = jax.shard_map(on_device, mesh=mesh, in_specs=(rows, whole, rows), out_specs=rows)
        return jnp.sum(run(x_NI, kernel_EIO, weights_NO))

    twice = [x if i == 1 else jnp.concatenate([x, 2 * x]) for i, x in enumerate(arrays)]
    found = jax.jit(jax.grad(weighted, 1))(*twice)
    assert distance(found, 5 * expected(*arrays, sizes)[2]) < 1e-6


def test_what_fills_tiles_is_idle_and_what_is_elsewhere_is_not_computed():
    shapes = [(64, 4), (3, 4, 5), (64, 5)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    arrays.append(jax.ShapeDtypeStruct((3,), jnp.int32))
    here, elsewhere = (
        jax.make_jaxpr(lambda *given, e=e: results(*given, 8, e))(*arrays) for e in (False, True)
    )
    flops = 3 * 2 * 64 * 4 * 5
    assert count_flops(here) == Flops(weights=flops)
    assert count_flops(elsewhere) == Flops(weights=flops // 2)
    assert flops_by_dtype(here) == {"float32": flops}
    assert flops_by_dtype(elsewhere) == {"float32": flops // 2}


def test_trials_that_are_batched_multiply_as_each_alone(distance):
    sizes, tile = jnp.array([[16, 0, 8], [0, 24, 0]]), 8
    arrays = drawn([16, 0, 8], 32, 256, 1024)
    pairs = [np.stack([x, 2 * x]) for x in arrays]
    together = jax.vmap(lambda *given: results(*given, tile, True))(*pairs, sizes)
    for trial in range(2):
        alone = results(*(x[trial] for x in pairs), sizes[trial], tile, True)
        for found, want in zip(together, alone, strict=True):
            end = 24 if len(want) == 32 else None
            assert distance(found[trial][:end], want[:end]) < 1e-6
