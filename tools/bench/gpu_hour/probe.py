"""Ceilings of the device, measured on random data: zeros and ones run faster than real numbers.

`python -m tools.bench.gpu_hour.probe SIZE [SIDE]` prints FLOP/s of products in bfloat16, of a
square and of the shapes of a model, and bytes per second of a copy, as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tools.bench.gpu_hour.experiment import SIZES


def seconds(run: Callable[[], Any], calls: int = 8) -> float:
    """Return the median of the seconds of a call, over five groups of calls."""
    jax.block_until_ready(run())
    found = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready([run() for _ in range(calls)])
        found.append((time.perf_counter() - start) / calls)
    return statistics.median(found)


def product(rows: int, inner: int, columns: int) -> float:
    """Return the FLOP/s of a product of random matrices."""
    one = jax.random.normal(jax.random.key(0), (rows, inner), jnp.bfloat16)
    other = jax.random.normal(jax.random.key(1), (inner, columns), jnp.bfloat16)
    run = jax.jit(jnp.matmul)
    return 2 * rows * inner * columns / seconds(lambda: run(one, other))


def main(name: str, side: int) -> dict[str, Any]:
    """Measure the ceilings."""
    size = SIZES[name]
    tokens, dim = size.rows * size.length, size.dim
    many = jax.random.normal(jax.random.key(2), (4, side, side), jnp.float32)
    copy = jax.jit(lambda x: -x)
    return {
        "device": jax.devices()[0].device_kind,
        "square": product(side, side, side),
        "qkv": product(tokens, dim, 3 * dim),
        "mlp_up": product(tokens, dim, 4 * dim),
        "mlp_down": product(tokens, 4 * dim, dim),
        "logits": product(tokens, dim, size.vocab_size),
        "copy_bytes": 2 * many.nbytes / seconds(lambda: copy(many)),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
