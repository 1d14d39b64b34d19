"""Sample text from a checkpoint of a run.

RUN is a run's id or the beginning of it, NAME/ID, a folder, or `last`. A
sample depends on the seed and its prompt only, not on the other prompts or on
the devices.

example:
  luthier generate last --prompt 'To be, ' --temperature 0.8 --top-p 0.9
"""

from __future__ import annotations

import argparse
import json
import sys

from luthier.cli.arguments import Problems, number_within, positive, whole
from luthier.cli.commands.recorded.evaluate import add_checkpoint, checkpoint
from luthier.errors import EXIT_DONE, Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    add_checkpoint(parser)
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="the text to continue (may be repeated)"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=positive,
        default=200,
        metavar="N",
        help="tokens to generate (default: 200)",
    )
    parser.add_argument(
        "--temperature",
        type=number_within(0, 1000),
        default=1.0,
        metavar="T",
        help="sampling temperature; 0 takes the most likely token (default: 1)",
    )
    parser.add_argument(
        "--top-k", type=positive, metavar="K", help="sample from the K most likely tokens"
    )
    parser.add_argument(
        "--top-p",
        type=number_within(0, 1, above=True),
        metavar="P",
        help="sample from the most likely tokens with a total probability of P",
    )
    parser.add_argument("--stop", default="", metavar="TEXT", help="the text that ends a sample")
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="random seed (default: 0)"
    )
    parser.add_argument(
        "--num-samples",
        type=positive,
        default=1,
        metavar="N",
        help="samples per prompt (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier generate`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    chosen = checkpoint(arguments, Problems(unknown), "generate")
    from luthier import trainer
    from luthier.program import Weights
    from luthier.terminal import printable

    # Without a prompt, a sample continues the empty text. Equal prompts get different draws, by
    # their order (`luthier.models.generate`), so several samples are the prompt several times.
    prompts = [p for p in arguments.prompt or [""] for _ in range(arguments.num_samples)]
    texts = trainer.sample_run(
        arguments.run,
        prompts,
        weights=Weights.EMA if arguments.ema else Weights.PARAMETERS,
        stop=arguments.stop,
        options={
            "max_new_tokens": arguments.max_new_tokens,
            "temperature": arguments.temperature,
            "top_k": arguments.top_k,
            "top_p": arguments.top_p,
            "seed": arguments.seed,
        },
        on_notice=lambda notice: print(f"note: {notice}", file=sys.stderr),
        **chosen,
    )
    samples = list(zip(prompts, texts, strict=True))
    if arguments.json:
        print(json.dumps([{"prompt": prompt, "text": text} for prompt, text in samples], indent=1))
        return EXIT_DONE
    for number, (prompt, text) in enumerate(samples, 1):
        if len(samples) > 1:
            print(f"--- sample {number}")
        # A model can generate control characters, which a terminal would obey; a pipe gets all
        # bytes.
        print(printable(prompt + text) if sys.stdout.isatty() else prompt + text)
    return EXIT_DONE
