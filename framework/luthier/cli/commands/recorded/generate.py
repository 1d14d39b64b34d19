"""Sample text from a checkpoint of a run.

RUN is the id of a run or the beginning of the id, NAME/ID, a folder, or `last`.
It can also be hf:DIR, the Hugging Face folder of a pretrained model.
A sample depends only on the seed and its prompt, and not on other prompts or on
the devices. An encoder-decoder model prints the target that it generates from
the prompt.

examples:
  luthier generate last --prompt 'To be, ' --temperature 0.8 --top-p 0.9
  luthier generate hf:models/Qwen3-0.6B --prompt 'To be, ' --temperature 0
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from luthier.cli.arguments import Problems, number_within, positive, token_ids, whole
from luthier.cli.commands.recorded.evaluate import add_checkpoint, checkpoint
from luthier.errors import EXIT_DONE, Problem

USAGE = "luthier generate RUN [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    add_checkpoint(parser)
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--prompt", action="append", metavar="TEXT", help="the text to continue (may be repeated)"
    )
    sampling.add_argument(
        "--tokens",
        action="append",
        type=token_ids,
        metavar="IDS",
        help="token ids to continue instead of text: 1,15,7 (may be repeated)",
    )
    sampling.add_argument(
        "--max-new-tokens",
        type=positive,
        default=200,
        metavar="N",
        help="tokens to generate (default: 200)",
    )
    sampling.add_argument(
        "--temperature",
        type=number_within(0, 1000),
        default=1.0,
        metavar="T",
        help="sampling temperature; 0 selects the most likely token (default: 1)",
    )
    sampling.add_argument(
        "--top-k", type=positive, metavar="K", help="sample from the K most likely tokens"
    )
    sampling.add_argument(
        "--top-p",
        type=number_within(0, 1, above=True),
        metavar="P",
        help="sample from the most likely tokens with a total probability of P",
    )
    sampling.add_argument("--stop", default="", metavar="TEXT", help="the text that ends a sample")
    sampling.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="random seed (default: 0)"
    )
    sampling.add_argument(
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
    problems = Problems(unknown)
    if arguments.tokens:
        for option in ("prompt", "stop"):
            if getattr(arguments, option):
                what = f"--{option} is text, and --tokens are ids"
                problems.add(what, remedy="leave out one of them")
    chosen = checkpoint(arguments, problems, "generate")
    from luthier import trainer
    from luthier.program import Weights
    from luthier.terminal import printable

    # Without a prompt, a sample continues the empty text. Equal prompts get different draws, by
    # their order (`luthier.models.generate`), so several samples are the prompt several times.
    given = arguments.tokens or arguments.prompt or [""]
    prompts = [p for p in given for _ in range(arguments.num_samples)]
    weights = Weights.EMA if arguments.ema else Weights.PARAMETERS
    options = {
        "max_new_tokens": arguments.max_new_tokens,
        "temperature": arguments.temperature,
        "top_k": arguments.top_k,
        "top_p": arguments.top_p,
        "seed": arguments.seed,
    }
    run = chosen.pop("run")
    trained = trainer.load_run(run, **chosen) if isinstance(run, str) else run
    kind = "tokens" if arguments.tokens else "text"
    drawn: list[Any]
    if arguments.tokens:
        drawn = trainer.sample_tokens(
            trained, prompts, weights=weights, options=options, on_notice=_note
        )
    else:
        drawn = trainer.sample_run(
            trained,
            prompts,
            weights=weights,
            stop=arguments.stop,
            options=options,
            on_notice=_note,
        )
    samples = list(zip(prompts, drawn, strict=True))
    if arguments.json:
        print(json.dumps([{"prompt": prompt, kind: new} for prompt, new in samples], indent=1))
        return EXIT_DONE
    for number, (prompt, new) in enumerate(samples, 1):
        if len(samples) > 1:
            print(f"--- sample {number}")
        whole = new if trainer.transduces(trained.program) else prompt + new
        text = ",".join(map(str, whole)) if arguments.tokens else str(whole)
        # A model can generate control characters, which a terminal would obey; a pipe gets all
        # bytes.
        print(printable(text) if sys.stdout.isatty() else text)
    return EXIT_DONE


def _note(notice: str) -> None:
    print(f"note: {notice}", file=sys.stderr)
