"""Prepare data.

`luthier data train-tokenizer FILE --vocab-size N` learns a byte-level BPE vocabulary and writes it
to FILE. It learns from the training data of an experiment (--experiment REF), or from files
(--text, --json-lines).
"""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Sequence
from typing import Any

from luthier.cli import experiments
from luthier.cli.arguments import Problems, positive
from luthier.errors import EXIT_DONE, Problem

ACTIONS = ("train-tokenizer",)
SOURCES = ("--experiment", "--text", "--json-lines")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("action", nargs="?", metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("file", nargs="?", metavar="FILE", help="the file to write, as bpe.json")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for --experiment")
    parser.add_argument(
        "--vocab-size", type=positive, default=4096, metavar="N", help="default: 4096"
    )
    parser.add_argument(
        "--experiment", metavar="REF", help="learn from the experiment's data.source"
    )
    parser.add_argument("--text", metavar="PATTERN", help="learn from text files, as 'books/*.txt'")
    parser.add_argument("--json-lines", metavar="PATTERN", help="learn from files of JSON lines")
    parser.add_argument(
        "--field", default="text", metavar="NAME", help="for --json-lines: default text"
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Do what is asked for; return the exit code.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    _check(arguments, problems)
    if not arguments.experiment:
        problems.raise_any()
    source = _source(arguments, problems)
    from luthier import data

    tokenizer = data.train_bpe(source, arguments.vocab_size, arguments.file)
    tokenizer_override = f'class:Packed.tokenizer=luthier.data.Bpe("{arguments.file}")'
    words = shlex.join([tokenizer_override, f"model.vocab_size={tokenizer.vocab_size}"])
    print(f"wrote {arguments.file}: {tokenizer.vocab_size} tokens. To use it, add:\n  {words}")
    return EXIT_DONE


def _check(arguments: argparse.Namespace, problems: Problems) -> None:
    usage = "write `luthier data train-tokenizer FILE --text 'books/*.txt'`"
    if not arguments.action:
        problems.add("no action is given", remedy=usage)
        return
    if arguments.action not in ACTIONS:
        nearest = difflib.get_close_matches(arguments.action, ACTIONS)
        problems.add(f"unknown action {arguments.action!r}", usage, nearest)
        return
    if not arguments.file:
        problems.add("no file to write is given", remedy=usage)
    given = [name for name in SOURCES if getattr(arguments, name[2:].replace("-", "_"))]
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "nothing to learn from is given"
        problems.add(what, remedy=f"give one of {', '.join(SOURCES)}")
        arguments.experiment = None
    elif arguments.overrides and not arguments.experiment:
        problems.add(f"unexpected argument {arguments.overrides[0]!r}", remedy=usage)


def _source(arguments: argparse.Namespace, problems: Problems) -> Any:
    if arguments.experiment:
        return _source_of_experiment(arguments.experiment, arguments.overrides, problems)
    from luthier import data

    if arguments.text:
        return data.TextFiles(arguments.text)
    return data.JsonLines(arguments.json_lines, arguments.field)


def _source_of_experiment(reference: str, overrides: Sequence[str], problems: Problems) -> Any:
    graph, _ = experiments.load(reference, overrides, problems, command="data")
    from luthier import graph as graphs

    return graphs.build(graphs.get(graph, "data.source"))
