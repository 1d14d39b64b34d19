"""Prepare data, and look at it.

`luthier data prepare DIR` tokenizes a corpus into DIR, for `luthier.data.Prepared`: in parallel,
and continued where it ended when it is given again. The corpus and the tokenizer are those of an
experiment's data (--experiment REF), or files (--text, --json-lines) and a vocabulary
(--tokenizer FILE; without it, bytes).

`luthier data inspect REF` shows what an experiment trains on: the first batches as text, how
documents share rows, lengths, the shares of a mixture, and where the time goes.

`luthier data train-tokenizer FILE --vocab-size N` learns a byte-level BPE vocabulary and writes it
to FILE. It learns from the training data of an experiment (--experiment REF), or from files
(--text, --json-lines).
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
from collections.abc import Sequence
from typing import Any

from luthier.cli import experiments
from luthier.cli.arguments import Problems, positive
from luthier.errors import EXIT_DONE, Problem

USAGE = {
    "inspect": "write `luthier data inspect configs.lm.quickstart`",
    "prepare": "write `luthier data prepare DIR --text 'books/*.txt'`",
    "train-tokenizer": "write `luthier data train-tokenizer FILE --text 'books/*.txt'`",
}
ACTIONS = tuple(USAGE)
SOURCES = ("--experiment", "--text", "--json-lines")
ONLY_FOR = {
    "--tokenizer": ("prepare",),
    "--processes": ("prepare",),
    "--shards": ("prepare",),
    "--dry-run": ("prepare",),
    "--verify": ("prepare",),
    "--batches": ("inspect",),
    "--vocab-size": ("train-tokenizer",),
    "--json": ("prepare", "inspect"),
    "--experiment": ("prepare", "train-tokenizer"),
    "--text": ("prepare", "train-tokenizer"),
    "--json-lines": ("prepare", "train-tokenizer"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("action", nargs="?", metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument(
        "file", nargs="?", metavar="FILE|DIR|REF", help="what to write, as bpe.json, or to look at"
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for the experiment")
    parser.add_argument(
        "--vocab-size", type=positive, metavar="N", help="train-tokenizer: default 4096"
    )
    parser.add_argument(
        "--experiment", metavar="REF", help="take the experiment's data.source and data.tokenizer"
    )
    parser.add_argument("--text", metavar="PATTERN", help="take text files, as 'books/*.txt'")
    parser.add_argument("--json-lines", metavar="PATTERN", help="take files of JSON lines")
    parser.add_argument(
        "--field", default="text", metavar="NAME", help="for --json-lines: default text"
    )
    parser.add_argument("--tokenizer", metavar="FILE", help="prepare: a vocabulary of BPE, as JSON")
    parser.add_argument(
        "--processes", type=positive, metavar="N", help="prepare: default, one a core"
    )
    parser.add_argument("--shards", type=positive, metavar="N", help="prepare: default, by size")
    parser.add_argument(
        "--dry-run", action="store_true", help="prepare: only estimate size and time"
    )
    parser.add_argument(
        "--verify", action="store_true", help="prepare: compare what is there with its digests"
    )
    parser.add_argument("--batches", type=positive, metavar="N", help="inspect: default 1")
    parser.add_argument("--json", action="store_true", help="prepare, inspect: print JSON")


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Do what is asked for; return the exit code.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    _check(arguments, problems)
    if arguments.action == "inspect":
        from luthier.cli.data import inspect

        return inspect.run(arguments, problems)
    if arguments.action == "prepare" and arguments.verify:
        from luthier.cli.data import prepare

        problems.raise_any()
        return prepare.verify(arguments)
    if not arguments.experiment:
        problems.raise_any()
    source, tokenizer = _corpus(arguments, problems)
    if arguments.action == "prepare":
        from luthier.cli.data import prepare

        return prepare.run(arguments, source, tokenizer)
    from luthier import data

    made = data.train_bpe(source, arguments.vocab_size or 4096, arguments.file)
    tokenizer_override = f'class:Packed.tokenizer=luthier.data.Bpe("{arguments.file}")'
    words = shlex.join([tokenizer_override, f"model.vocab_size={made.vocab_size}"])
    print(f"wrote {arguments.file}: {made.vocab_size} tokens. To use it, add:\n  {words}")
    return EXIT_DONE


def _check(arguments: argparse.Namespace, problems: Problems) -> None:
    if not arguments.action:
        problems.add("no action is given", remedy=USAGE["train-tokenizer"])
        return
    if arguments.action not in ACTIONS:
        nearest = difflib.get_close_matches(arguments.action, ACTIONS)
        remedy = USAGE[nearest[0]] if nearest else f"there are {', '.join(ACTIONS)}"
        problems.add(f"unknown action {arguments.action!r}", remedy, nearest)
        return
    usage = USAGE[arguments.action]
    for option, actions in ONLY_FOR.items():
        if arguments.action not in actions and _value(arguments, option):
            problems.add(f"{option} is for {' and '.join(actions)}", remedy=usage)
    if arguments.action == "inspect":
        return
    if not arguments.file:
        what = "file" if arguments.action == "train-tokenizer" else "folder"
        problems.add(f"no {what} to write is given", remedy=usage)
    given = [name for name in SOURCES if _value(arguments, name)]
    if arguments.action == "prepare" and arguments.verify:
        if given:
            problems.add(f"--verify and {given[0]} are given", remedy="name the folder alone")
    elif len(given) != 1:
        verb = "learn from" if arguments.action == "train-tokenizer" else "prepare"
        what = f"{' and '.join(given)} are given" if given else f"nothing to {verb} is given"
        problems.add(what, remedy=f"give one of {', '.join(SOURCES)}")
        arguments.experiment = None
    elif arguments.overrides and not arguments.experiment:
        problems.add(f"unexpected argument {arguments.overrides[0]!r}", remedy=usage)
    if arguments.tokenizer and arguments.experiment:
        problems.add("--tokenizer is for files", remedy="set data.tokenizer instead")


def _value(arguments: argparse.Namespace, option: str) -> Any:
    return getattr(arguments, option[2:].replace("-", "_"))


def _corpus(arguments: argparse.Namespace, problems: Problems) -> tuple[Any, Any]:
    if arguments.experiment:
        return _corpus_of_experiment(arguments, arguments.overrides, problems)
    from luthier import data

    if arguments.text:
        source: Any = data.TextFiles(arguments.text)
    else:
        source = data.JsonLines(arguments.json_lines, arguments.field)
    path = arguments.tokenizer
    return source, data.Bpe(os.path.abspath(path)) if path else data.Bytes()


def _corpus_of_experiment(
    arguments: argparse.Namespace, overrides: Sequence[str], problems: Problems
) -> tuple[Any, Any]:
    graph, _ = experiments.load(arguments.experiment, overrides, problems, command="data")
    from luthier import graph as graphs

    source = graphs.build(graphs.get(graph, "data.source"))
    if arguments.action != "prepare":
        return source, None
    return source, graphs.build(graphs.get(graph, "data.tokenizer"))
