"""Measure how long a language model reads prompts of awkward lengths, against even ones.

python tools/bench/generate.py            # medians of 5 runs
python tools/bench/generate.py --runs 9

Each run generates one token. The ratios are of processor seconds: 1,023 tokens to 1,024, and three
prompts of 1,024 beside one of a single token to four of 1,024. Exit code 1 where one is above 1.2.
"""

from __future__ import annotations

import argparse
import sys

from graph import measure

LIMIT = 1.2
PAIRS = {
    "1,023 / 1,024": ([1023], [1024]),
    "3 x 1,024 and 1 / 4 x 1,024": ([1024, 1024, 1024, 1], [1024] * 4),
}


def main() -> int:
    """Measure, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default: 5)")
    arguments = parser.parse_args()
    from flax import nnx

    from luthier import graph, models
    from luthier.recipes import decoders

    sizes = {"dim": 128, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 384}
    model = graph.build(decoders.llama(vocab_size=258, **sizes))(rngs=nnx.Rngs(0))

    def seconds(lengths: list[int]) -> float:
        prompts = [[1 + i % 255 for i in range(length)] for length in lengths]
        run = lambda: models.generate(model, prompts, max_new_tokens=1)  # noqa: E731
        run()  # compiles
        return measure(run, arguments.runs)[0]

    print(f"{'prompts':<32}{'processor':>12}{'other':>12}{'ratio':>8}")
    over = False
    for name, (awkward, even) in PAIRS.items():
        first, second = seconds(awkward), seconds(even)
        over = over or first > LIMIT * second
        print(f"{name:<32}{first:>10.3f} s{second:>10.3f} s{first / second:>8.2f}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
