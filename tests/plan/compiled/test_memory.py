import jax
import jax.numpy as jnp

from luthier.plan.compiled.memory import memory_of, refusal


def test_memory_is_what_the_compiler_counts():
    def double(x):
        return 2 * x, jnp.sum(x)

    shape = jax.ShapeDtypeStruct((256, 4), jnp.float32)
    found = memory_of(jax.jit(double, donate_argnums=0).lower(shape).compile())
    assert found.arguments == 4096
    assert 4 <= found.outputs < 64  # the sum: the rest takes the place of the argument
    assert found.needed == found.arguments + found.outputs + found.temporaries


def test_a_refusal_is_read():
    told = refusal(
        RuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. "
            "Used 26.72G of 15.75G hbm. Exceeded hbm capacity by 10.97G."
        )
    )
    assert (told.needed, told.limit) == (int(26.72 * 2**30), int(15.75 * 2**30))
    assert told.line == "Used 26.72G of 15.75G hbm"
    other = refusal(
        RuntimeError("RESOURCE_EXHAUSTED: the temporaries (1.5M) exceeds available HBM (1M)")
    )
    assert (other.needed, other.limit) == (1_572_864, 1_048_576)


def test_other_errors_are_none():
    assert refusal(RuntimeError("INTERNAL: 3G of 2G hbm")) is None
    assert refusal(RuntimeError("RESOURCE_EXHAUSTED: no numbers")).needed is None
