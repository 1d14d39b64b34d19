"""How fast batches are assembled: tokens per second on one core, and through the iterator.

    python tools/bench_input.py [--length 256] [--global-batch-size 64] [--blocks 7]

Each block assembles `--tokens` tokens of Shakespeare in shuffled order; printed are the median
over blocks and the spread (slowest to fastest). `assemble` is order and rows in this thread alone
(CPU seconds of the process), `iterate` is what a training loop would get from Grain's threads
(wall seconds).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from luthier.data import (
    Bytes,
    Concatenate,
    FirstFit,
    Packed,
    Shakespeare,
    Unpacked,
    host_positions,
    shuffled_rows,
    train_bpe,
)


def main() -> None:
    arguments = _arguments()
    print(f"L={arguments.length} B={arguments.global_batch_size} {arguments.blocks} blocks")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        bpe = train_bpe(Shakespeare("train"), 8192, f"{folder}/tokenizer.json")
        print(f"train a BPE vocabulary of 8,192: {time.perf_counter() - began:.2f} s")
        for tokenizer in (Bytes(), bpe):
            for packing in (Concatenate(), FirstFit(), Unpacked()):
                data = Packed(Shakespeare("train"), tokenizer, arguments.length, packing)
                _measure(data, arguments)


def _measure(data: Packed, arguments: argparse.Namespace) -> None:
    size = arguments.global_batch_size
    began = time.perf_counter()
    num_rows = data.num_rows
    prepared = time.perf_counter() - began
    began = time.perf_counter()
    described = data.describe()
    describing = time.perf_counter() - began

    def assemble() -> Iterator[dict[str, np.ndarray]]:
        for step in range(2**62):
            yield data.rows.gather(shuffled_rows(host_positions(step, size), num_rows, 0))

    steps = max(arguments.tokens // (size * arguments.length), 1)
    iterator = data.iterator(global_batch_size=size, seed=0)
    alone = _rate(assemble(), steps, arguments, time.process_time)
    through = _rate(iterator, steps, arguments, time.perf_counter)
    name = f"{type(data.tokenizer).__name__} {type(data.packing).__name__}"
    print(
        f"{name:18} read and tokenize {prepared:.2f} s, describe {describing:.2f} s, "
        f"fill {described['fill']:.3f}; assemble {alone}; iterate {through} (M tokens/s)"
    )
    iterator.close()


def _rate(
    batches: Iterator[dict[str, np.ndarray]],
    steps: int,
    arguments: argparse.Namespace,
    clock: Callable[[], float],
) -> str:
    tokens = steps * arguments.global_batch_size * arguments.length
    rates = []
    for _ in range(arguments.blocks + 1):
        began = clock()
        for _ in range(steps):
            next(batches)
        rates.append(tokens / (clock() - began) / 1e6)
    rates = sorted(rates[1:])  # the first block warms up
    return f"{statistics.median(rates):.1f} ({rates[0]:.1f} to {rates[-1]:.1f})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=2_000_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
