"""Export a run's weights as safetensors, in the format of the Hugging Face hub.

RUN is the id of a run or the beginning of the id, NAME/ID, a folder, or `last`.
It can also be hf:DIR, the Hugging Face folder of a pretrained model to convert.
The model family is detected from the config. The command also writes the
config.json of the family and the files of the tokenizer.

examples:
  luthier export last --output my_model
  luthier export hf:models/bert --output converted --family luthier
"""

from __future__ import annotations

import argparse
import json

from luthier.cli.arguments import Problems
from luthier.cli.commands.recorded.evaluate import add_checkpoint, checkpoint, heading
from luthier.errors import EXIT_DONE, Problem
from luthier.folders import HUGGING_FACE

USAGE = "luthier export RUN [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    add_checkpoint(parser)
    parser.add_argument(
        "--to",
        choices=("safetensors",),
        default="safetensors",
        help="the format (default: safetensors)",
    )
    parser.add_argument(
        "--output", metavar="DIR", help="the folder (default: export-STEP in the folder of the run)"
    )
    parser.add_argument(
        "--weights",
        choices=("parameters", "ema"),
        help="the weights to export (default: parameters)",
    )
    parser.add_argument(
        "--family",
        metavar="NAME",
        help="the model family to export for; `luthier` keeps luthier's own names",
    )
    parser.add_argument(
        "--merge", action="store_true", help="merge adapters (LoRA) into their kernels"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier export`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    # A misspelt family is reported together with the other problems, before any weights are read.
    # --to is not looked at, because there is one format only. --ema comes with the arguments of all
    # commands that read a checkpoint, and means --weights ema here.
    problems = Problems(unknown)
    if arguments.ema and arguments.weights == "parameters":
        problems.add("--ema and --weights parameters cannot be combined", remedy="leave out one")
    if arguments.family is not None:
        with problems.collected():
            from luthier.checkpoint import foreign

            # PLAIN (luthier's own names) is the absence of a family.
            if arguments.family != foreign.PLAIN:
                foreign.families.named(arguments.family)
    is_run = not (arguments.run or "").startswith(HUGGING_FACE)
    if not is_run and not arguments.output:
        what = f"{arguments.run} is not a run, in whose folder the export could be put"
        problems.add(what, remedy="name a folder with --output")
    chosen = checkpoint(arguments, problems, "export")
    from luthier import trainer
    from luthier.program import Weights

    averaged = arguments.ema or arguments.weights == "ema"
    trained, exported = trainer.export_run(
        chosen.pop("run"),
        arguments.output,
        weights=Weights.EMA if averaged else Weights.PARAMETERS,
        family=arguments.family,
        merge=arguments.merge,
        **chosen,
    )
    if arguments.json:
        report = {
            "directory": str(exported.directory),
            "family": exported.family,
            "step": trained.step,
            "tensors": exported.num_tensors,
            "files": list(exported.files),
        }
        print(json.dumps(report, indent=1))
        return EXIT_DONE
    print(
        f"{heading(trained)}: {exported.num_tensors} tensors ({exported.family}) in "
        f"{exported.directory}"
    )
    print("\n".join(f"  {name}" for name in exported.files))
    return EXIT_DONE
