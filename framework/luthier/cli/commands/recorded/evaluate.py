"""Evaluate a checkpoint of a run once over every example of its evaluation sets.

RUN is the id of a run or the beginning of the id, NAME/ID, a folder, or `last`.
It can also be hf:DIR, the Hugging Face folder of a pretrained model.
OVERRIDEs may change the config as long as the arrays of the checkpoint still
fit.

examples:
  luthier evaluate last
  luthier evaluate hf:models/Qwen3-0.6B
  luthier evaluate last fiddler:int8 evaluations.held_out.num_batches=None
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from luthier import project
from luthier.cli import experiments
from luthier.cli.arguments import Problems
from luthier.cli.commands.recorded.runs import add_directory
from luthier.cli.commands.train import add_devices
from luthier.cli.printing import print_json, table
from luthier.errors import EXIT_DONE, Problem
from luthier.folders import HUGGING_FACE
from luthier.terminal import cell

USAGE = "luthier evaluate RUN [OVERRIDE ...] [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    add_checkpoint(parser)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="a change of the config, such as fiddler:int8",
    )
    parser.add_argument(
        "--evaluation",
        action="append",
        metavar="NAME",
        help="evaluate only this set (may be repeated)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a checkpoint."""
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="the run, as `luthier runs` lists it, or hf:DIR"
    )
    parser.add_argument("--step", metavar="N|best", help="the checkpoint (default: the latest)")
    parser.add_argument("--ema", action="store_true", help="use the averaged weights (EMA)")
    add_devices(parser)
    add_directory(parser)


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier evaluate`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    chosen = checkpoint(arguments, problems, "evaluate", overrides=arguments.overrides)
    from luthier import trainer
    from luthier.program import Weights

    trained, metrics = trainer.evaluate_run(
        evaluations=arguments.evaluation or (),
        weights=Weights.EMA if arguments.ema else None,  # None: those that each evaluation names
        **chosen,
    )
    for line in trained.notices:
        print(f"luthier: {line}", file=sys.stderr)
    if arguments.json:
        print_json({"step": trained.step, "evaluations": metrics})
        return EXIT_DONE
    print(cell(heading(trained)))
    rows = [
        (name, metric, f"{value:.6g}")
        for name, values in metrics.items()
        for metric, value in values.items()
    ]
    print("\n".join(table(["evaluation", "metric", "value"], rows)))
    return EXIT_DONE


def heading(trained: Any) -> str:
    """Return the run and its step, or the folder of pretrained weights."""
    return trained.title if trained.directory is None else f"{trained.title}, step {trained.step}"


def checkpoint(
    arguments: argparse.Namespace, problems: Problems, command: str, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the checkpoint and the devices, as arguments of the functions of `luthier.trainer`.

    Args:
      arguments: The arguments of `add_checkpoint`.
      problems: Problems of the command line found so far; raised together with those found here.
      command: The command, for messages.
      overrides: Changes of the config.

    Returns:
      `run`, which for a folder of pretrained weights is the state itself, and what else
      `luthier.trainer.load_run` takes.

    Raises:
      BadInput: All problems, at once.
    """
    # For all commands that read a checkpoint. Trust is decided by the record of the run, before
    # anything of it is imported; devices are configured here, since it must happen before JAX
    # starts.
    step: int | str | None = arguments.step
    if isinstance(step, str) and step != "best":
        if step.isdecimal():  # `isdigit` is true of ², too, which `int` refuses
            step = int(step)
        else:
            problems.add(f"--step {step!r} is not a step", remedy="write a whole number, or best")
    found = project.Project(Path.cwd())
    with problems.collected():
        found = project.find()
    packages: tuple[str, ...] = found.packages
    if arguments.run and arguments.run.startswith(HUGGING_FACE):
        return {"run": _pretrained(arguments, problems, command, overrides)}
    if not arguments.run:
        problems.add(
            "no run is given",
            remedy=f"write `luthier {command} ID`, or `last`; `luthier runs` lists the runs",
        )
    else:
        with problems.collected():
            from luthier import records
            from luthier.records import trust

            recorded = records.find(arguments.directory, arguments.run)
            packages = trust.packages_for(recorded.config_path, recorded.read_config(), packages)
    with problems.collected():
        from luthier.parallel import hosts

        hosts.configure(arguments.devices)
    problems.raise_any()
    # Overrides are passed on and not applied by `experiments.load`: they change the recorded graph.
    return {
        "run": arguments.run,
        "root": arguments.directory,
        "step": step,
        "devices": hosts.devices(),
        "packages": packages,
        "overrides": overrides,
        "shelves": found.shelves,
    }


def _pretrained(
    arguments: argparse.Namespace, problems: Problems, command: str, overrides: Sequence[str]
) -> Any:
    """Return the state of a Hugging Face folder, on the devices."""
    for option, value in (("--step", arguments.step), ("--ema", arguments.ema)):
        if value:
            problems.add(f"{option} needs a run, not {arguments.run}", remedy="leave it out")
    with problems.collected():
        from luthier.parallel import hosts

        hosts.configure(arguments.devices)
    graph, _ = experiments.load(arguments.run, overrides, problems, command=command)
    from luthier import trainer
    from luthier.data import Synthetic

    for name, evaluation in graph.evaluations.items() if command == "evaluate" else ():
        if getattr(evaluation.data, "__fn_or_cls__", None) is Synthetic:
            what = f"{name} has random tokens, since {arguments.run} has no tokenizer"
            remedy = """for text add 'fiddler:text("FILE", tokenizer=Bytes())'"""
            print(f"luthier: {what}; {remedy}", file=sys.stderr)
    return trainer.load_weights(graph, arguments.run, hosts.devices())
