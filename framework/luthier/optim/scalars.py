"""Hyperparameters as arrays that the compiler does not know.

A hyperparameter is a Python number, a traced array, or an object with `__jax_array__`, arithmetic
and a complement `1 - x` of its own (a hoisted leaf of a sweep). All of them must give the same
bits. A compiler that knows a number rewrites with it: XLA turns a division by a constant into a
multiplication by its reciprocal, evaluates `log1p` of a constant with another library than the
device's, and fuses differently.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Hyperparameter = Any
"""A float, a traced scalar, or a scalar object with `__jax_array__`."""


def runtime(value: Hyperparameter, count: Any) -> jax.Array:
    """Return a hyperparameter as an array whose value is opaque to the compiler.

    It is selected by a condition that always holds and that only the running program can know.
    (`jax.lax.optimization_barrier` does not do: XLA removes it on the CPU before it simplifies.)
    Write complements on the raw object: `runtime(1 - b2, count)`.

    Args:
      value: The hyperparameter.
      count: An int32 that is never negative and not known to the compiler, such as the number of
        updates so far.

    Returns:
      The value, float32 (float64 under `jax_enable_x64`), of the shape of `count`.
    """
    array = jnp.asarray(value, jnp.result_type(float))
    return jnp.where(jnp.asarray(count) < 0, jnp.zeros_like(array), array)
