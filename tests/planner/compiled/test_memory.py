import types

import jax
import jax.numpy as jnp

from luthier.planner.compiled import memory_of, refusal


def test_memory_is_what_the_compiler_counts():
    def double(x):
        return 2 * x, jnp.sum(x)

    shape = jax.ShapeDtypeStruct((256, 4), jnp.float32)
    found = memory_of(jax.jit(double, donate_argnums=0).lower(shape).compile())
    assert found.arguments == 4096
    assert 4 <= found.outputs < 64  # the sum: the rest takes the place of the argument
    assert found.needed == found.arguments + found.outputs + found.temporaries


class _OnTpu:
    """What a compiled program of a TPU tells: temporaries with the donated arguments once more."""

    def memory_analysis(self):
        return types.SimpleNamespace(
            argument_size_in_bytes=600,
            output_size_in_bytes=510,
            alias_size_in_bytes=500,
            temp_size_in_bytes=900,
            peak_memory_in_bytes=1010,
            host_argument_size_in_bytes=0,
            host_temp_size_in_bytes=0,
        )

    output_shardings = (types.SimpleNamespace(device_set=[types.SimpleNamespace(platform="tpu")]),)


def test_of_a_tpu_the_peak_counts():
    found = memory_of(_OnTpu())
    assert found.needed == 1010
    assert (found.arguments, found.outputs, found.temporaries) == (600, 10, 400)


def test_a_refusal_is_read():
    reason = refusal(
        RuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. "
            "Used 26.72G of 15.75G hbm. Exceeded hbm capacity by 10.97G."
        )
    )
    assert (reason.needed, reason.limit) == (int(26.72 * 2**30), int(15.75 * 2**30))
    assert reason.line == "Used 26.72G of 15.75G hbm"
    other = refusal(
        RuntimeError("RESOURCE_EXHAUSTED: the temporaries (1.5M) exceeds available HBM (1M)")
    )
    assert (other.needed, other.limit) == (1_572_864, 1_048_576)


def test_other_errors_are_none():
    assert refusal(RuntimeError("INTERNAL: 3G of 2G hbm")) is None
    assert refusal(RuntimeError("RESOURCE_EXHAUSTED: no numbers")).needed is None
