"""Tell what products of matrices reach on one core, with torch or with XLA: what no trainer beats.

Run by `tools/bench/peers.py` in the interpreters of both sides. The products are those of its
workload, in float32; of each the best of many calls, as other work on the machine only slows down.

Command: python tools/bench/cpu_peers/products.py torch|xla
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

SHAPES = ((2048, 256, 256), (2048, 256, 1024), (2048, 1024, 256), (256, 2048, 1024))
REPEATS = 60


def best(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest call."""
    call()
    fastest = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def with_torch(rows: int, inner: int, columns: int) -> float:
    """Return the seconds of one product [rows, inner] x [inner, columns]."""
    import torch

    torch.set_num_threads(1)
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    return best(lambda: a @ b)


def with_xla(rows: int, inner: int, columns: int) -> float:
    """Return the seconds of one product [rows, inner] x [inner, columns]."""
    import jax

    keys = jax.random.split(jax.random.key(0))
    a, b = jax.random.normal(keys[0], (rows, inner)), jax.random.normal(keys[1], (inner, columns))
    product = jax.jit(lambda a, b: a @ b)
    return best(lambda: product(a, b).block_until_ready())


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    measure = {"torch": with_torch, "xla": with_xla}[sys.argv[1]]
    flops = sum(2 * rows * inner * columns for rows, inner, columns in SHAPES)
    print(json.dumps({"GFLOP/s": flops / sum(measure(*shape) for shape in SHAPES) / 1e9}))
