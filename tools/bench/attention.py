"""Measure attention in blocks against einsum on a CPU: processor time and memory by length.

python tools/bench/attention.py               # medians of 5 runs
python tools/bench/attention.py --runs 9

Each run is a forward and a backward pass over causal rows, 4 heads of 64, float32; the two cores
take turns. Temporaries are those of the compiled program. Exit code 1 where blocks take over 1.1
times the processor time of einsum for rows of 256, or over a fiftieth of its memory for 8,192.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
NUM_TOKENS, NUM_HEADS, HEAD_DIM = 4096, 4, 64


def main() -> int:
    """Measure, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default: 5)")
    arguments = parser.parse_args()
    import jax

    from luthier import layers

    cores = {"einsum": layers.EinsumAttention(), "blocks": layers.BlockwiseAttention()}
    print("| length | einsum | in blocks | ratio | einsum | in blocks |")
    print("|---|---|---|---|---|---|")
    fails = False
    for length in LENGTHS:
        rows = max(1, NUM_TOKENS // length)
        keys = jax.random.split(jax.random.key(0), 3)
        arrays = [jax.random.normal(k, (rows, length, NUM_HEADS, HEAD_DIM)) for k in keys]
        compiled = {name: _compiled(core, arrays) for name, core in cores.items()}
        seconds: dict[str, list[float]] = {name: [] for name in cores}
        for run in range(arguments.runs + 1):
            for name, function in compiled.items():
                start = time.process_time()
                jax.block_until_ready(function(*arrays))
                if run:  # the first warms up
                    seconds[name].append(time.process_time() - start)
        einsum, blocks = (statistics.median(seconds[name]) for name in cores)
        bytes_ = [f.memory_analysis().temp_size_in_bytes / 2**20 for f in compiled.values()]
        cells = f"{einsum * 1e3:,.0f} ms | {blocks * 1e3:,.0f} ms | {blocks / einsum:.2f}"
        print(f"| {length:,} | {cells} | {bytes_[0]:,.0f} MiB | {bytes_[1]:,.0f} MiB |")
        fails |= length == LENGTHS[0] and blocks > 1.1 * einsum
        fails |= length == LENGTHS[-1] and 50 * bytes_[1] > bytes_[0]
    return int(fails)


def _compiled(core, arrays):
    import jax

    from luthier import layers

    tokens = layers.Tokens.single(*arrays[0].shape[:2])
    loss = lambda *x: core(*x, tokens, tokens).sum()  # noqa: E731
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*arrays).compile()


if __name__ == "__main__":
    sys.exit(main())
