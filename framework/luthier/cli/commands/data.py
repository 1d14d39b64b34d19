"""Prepare a corpus, inspect data, or train a tokenizer.

actions:
  prepare          tokenize a corpus into a folder, for `luthier.data.Prepared`
  inspect          show batches, packing, lengths and mixture of an experiment's data
  train-tokenizer  learn a byte-level BPE vocabulary

`luthier data ACTION --help` describes an action.

examples:
  luthier data prepare corpus --text 'books/*.txt' --tokenizer bpe.json
  luthier data inspect configs.lm.quickstart --batches 2
  luthier data train-tokenizer bpe.json --text 'books/*.txt' --vocab-size 8192
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from luthier.cli import experiments
from luthier.cli.arguments import Action, Problems, positive
from luthier.errors import EXIT_DONE, Problem
from luthier.terminal import cell

# `luthier data inspect`: the data of an experiment, in tables.

_ROWS = 8


def run_inspect(arguments: argparse.Namespace, problems: Problems) -> int:
    """Run `luthier data inspect`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      problems: Problems of the command line found so far.
    """
    # Not validated: the data can be looked at before the rest of the experiment is complete.
    graph, _ = experiments.load(
        arguments.file, arguments.overrides, problems, command="data inspect", checked=False
    )
    from luthier import graph as graphs
    from luthier.data.inspection import inspect
    from luthier.program import with_known_steps

    data = graphs.build(graphs.get(graph, "data"))
    training = graphs.build(graphs.get(with_known_steps(graph, data), "training"))
    report = inspect(
        data,
        seed=graphs.evaluate(graphs.get(graph, "seed")),
        global_batch_size=training.global_batch_size,
        num_batches=arguments.batches or 1,
        steps=training.steps,
    )
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        _show(report)
    return EXIT_DONE


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console

    # Rich would cut tables to 80 columns in a pipe, hence a width for that. On a terminal,
    # `soft_wrap` has rich print whole lines, and the terminal breaks them.
    console = Console(highlight=False, soft_wrap=True)
    console = console if console.is_terminal else Console(highlight=False, width=160)
    # A dict holds the components of a mixture, which have a table of their own.
    described = [
        (name, _text(value))
        for name, value in report["describe"].items()
        if not isinstance(value, dict)
    ]
    if "epochs" in report:
        described.append(("epochs in this run", f"{report['epochs']:.3g}"))
    console.print(_table("data", ["", ""], described))
    if "mixture" in report:
        console.print(_mixture(report["mixture"]))
    entries = [
        (name, "x".join(map(str, entry["shape"])), entry["dtype"])
        for name, entry in report["spec"].items()
    ]
    console.print(_table("entries of a batch", ["entry", "shape", "dtype"], entries))
    for number, batch in enumerate(report["batches"], 1):
        console.print(_batch(number, batch))
    if "lengths" in report:
        console.print(_lengths(report["lengths"]))
    seconds = [(name, f"{value:.4f} s") for name, value in report["seconds"].items()]
    console.print(_table("time of each stage", ["stage", "seconds"], seconds))


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_header=any(heads))
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell(text)) for text in row])
    return table


def _batch(number: int, batch: Sequence[dict[str, Any]]) -> Any:
    names = list(batch[0]) if batch else []
    rows = [[str(place), *[_text(row[name]) for name in names]] for place, row in enumerate(batch)]
    more = f" (the first {_ROWS} of {len(rows)} rows)" if len(rows) > _ROWS else ""
    return _table(f"batch {number}{more}", ["row", *names], rows[:_ROWS])


def _lengths(bins: Sequence[dict[str, int]]) -> Any:
    most = max(bin_["count"] for bin_ in bins)
    rows = [
        (
            f"{bin_['from']:,} to {bin_['to']:,}",
            f"{bin_['count']:,}",
            "#" * -(-40 * bin_["count"] // most),
        )
        for bin_ in bins
    ]
    return _table("targets in a document", ["targets", "documents", ""], rows)


def _mixture(components: Sequence[dict[str, Any]]) -> Any:
    stages = range(len(components[0]["planned"]))
    heads = ["component", "rows"]
    for stage in stages:
        heads += [f"stage {stage}: planned", "first rows"]
    heads += ["epochs"] if "epochs" in components[0] else []
    rows = []
    for component in components:
        row = [component["name"], f"{component['rows']:,}"]
        for stage in stages:
            row += [f"{component[kind][stage]:.2%}" for kind in ("planned", "observed")]
        row += [f"{component['epochs']:.3g}"] if "epochs" in component else []
        rows.append(row)
    return _table("mixture", heads, rows)


def _text(value: Any) -> str:
    """Return a value for a cell, with line ends and control characters escaped."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def run_prepare(arguments: argparse.Namespace, source: Any, tokenizer: Any) -> int:
    """Run `luthier data prepare`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      source: The documents.
      tokenizer: The tokenizer of the documents.
    """
    # A sample of documents is tokenized first (`survey`): its size decides the number of shards,
    # and its time the estimate. The layout is fixed before any shard is written, so that a resumed
    # preparation makes the same shards.
    from luthier import data

    found = data.survey(source, tokenizer)
    layout = data.plan_layout(source, tokenizer, found, arguments.shards)
    # A shard is written by one process, so more processes than shards would have nothing to do.
    processes = arguments.processes or min(os.cpu_count() or 1, layout.num_shards)
    estimate = {
        "documents": found.documents,
        "bytes": found.num_bytes,
        "tokens": found.num_tokens,
        "disk_bytes": found.disk_bytes,
        "shards": layout.num_shards,
        "processes": processes,
        "seconds": found.seconds / processes,
    }
    if arguments.dry_run:
        _print_estimate(estimate, found.sampled, arguments)
        return EXIT_DONE
    with _bar(layout.num_shards, found.documents) as report:
        manifest = data.prepare(
            source, tokenizer, arguments.file, layout, num_processes=processes, report=report
        )
    if arguments.json:
        print(json.dumps(manifest, indent=1))
        return EXIT_DONE
    print(
        f"prepared {arguments.file}: {manifest['documents']:,} documents, "
        f"{manifest['bytes']:,} bytes, {manifest['tokens']:,} tokens in "
        f"{len(manifest['shards'])} shards. To train on it, use these overrides, with a length of "
        f"your choice:\n  {_overrides_of(arguments, tokenizer)}"
    )
    return EXIT_DONE


def _overrides_of(arguments: argparse.Namespace, tokenizer: Any) -> str:
    """Return the overrides by which a language model is trained on a prepared corpus."""
    if arguments.experiment:
        shown = "..."  # that of the experiment, which may have any settings
    else:
        shown = f'Bpe("{arguments.tokenizer}")' if arguments.tokenizer else "Bytes()"
    rest = f"length=128, packing=Concatenate(), tokenizer={shown}"
    data = f'data:=luthier.data.Prepared("{arguments.file}", {rest})'
    return shlex.join([data, f"model.vocab_size={tokenizer.vocab_size}"])


def verify(arguments: argparse.Namespace) -> int:
    """Run `luthier data prepare --verify`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
    """
    from luthier import data

    manifest = data.verify(os.path.expanduser(arguments.file))
    print(f"{arguments.file}: {len(manifest['shards'])} shards match their digests")
    return EXIT_DONE


def _print_estimate(estimate: dict[str, Any], sampled: int, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(estimate, indent=1))
        return
    about = "" if sampled == estimate["documents"] else "about "
    print(
        f"{estimate['documents']:,} documents, {about}{estimate['bytes']:,} bytes, "
        f"{about}{estimate['tokens']:,} tokens ({sampled} documents were sampled)\n"
        f"{estimate['shards']} shards of {about}{estimate['disk_bytes']:,} bytes together, "
        f"in about {_clock(estimate['seconds'])} with {estimate['processes']} processes\n"
        f"nothing was written"
    )


@contextlib.contextmanager
def _bar(shards: int, documents: int) -> Iterator[Callable[[dict[str, Any], bool], None]]:
    """Show a progress bar on standard error; without a terminal, a line every 10 seconds."""
    # Shards that exist already come in an instant. They count as done, but not for the speed, or
    # the time left of a resumed preparation would be far too small.
    if sys.stderr.isatty():
        with _live_bar(documents) as live:
            yield live
        return
    start, last, done, ready, kept = time.monotonic(), 0.0, 0, 0, 0

    def report(entry: dict[str, Any], there: bool) -> None:
        nonlocal last, done, ready, kept
        ready, done = ready + 1, done + entry["documents"]
        kept += entry["documents"] if there else 0
        now = time.monotonic() - start
        if ready < shards and now - last < 10:
            return
        last = now
        left = (documents - done) * now / max(done - kept, 1)
        line = f"{ready} of {shards} shards, {done:,} of {documents:,} documents"
        print(f"{line}, {_clock(left)} left", file=sys.stderr, flush=True)

    yield report


@contextlib.contextmanager
def _live_bar(documents: int) -> Iterator[Callable[[dict[str, Any], bool], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("documents"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("documents", total=documents)
        yield lambda entry, there: progress.update(bar, advance=entry["documents"])


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


USAGE = "luthier data ACTION [ARGUMENTS] [OPTIONS]"
ACTIONS = {
    "inspect": Action(
        "luthier data inspect REF [OVERRIDE ...] [OPTIONS]",
        """\
Show the data of an experiment.

It prints the first batches as text, how documents are packed into sequences,
lengths, the proportions of a mixture, and the time of each stage.

examples:
  luthier data inspect configs.lm.quickstart
  luthier data inspect configs.lm.quickstart data.length=256 --batches 2
""",
    ),
    "prepare": Action(
        "luthier data prepare DIR [OVERRIDE ...] [OPTIONS]",
        """\
Tokenize a corpus into DIR, for `luthier.data.Prepared`.

The corpus and the tokenizer are those of an experiment (--experiment), which
OVERRIDEs change, or files (--text, --json-lines) and a vocabulary
(--tokenizer; default: bytes). Several processes work at once; the same command
resumes a preparation that was interrupted. If DIR is the URL of a folder in an
object store, shards are uploaded from memory when they are finished.

examples:
  luthier data prepare corpus --text 'books/*.txt' --tokenizer bpe.json
  luthier data prepare gs://lab/corpus --text 'books/*.txt'
  luthier data prepare corpus --experiment configs.lm.quickstart --dry-run
""",
    ),
    "train-tokenizer": Action(
        "luthier data train-tokenizer FILE [OVERRIDE ...] [OPTIONS]",
        """\
Learn a byte-level BPE vocabulary, and write it to FILE.

It learns from the training data of an experiment (--experiment), which
OVERRIDEs change, or from files (--text, --json-lines).

examples:
  luthier data train-tokenizer bpe.json --text 'books/*.txt' --vocab-size 8192
  luthier data train-tokenizer bpe.json --experiment configs.lm.quickstart
""",
    ),
}
EXAMPLES = {
    "inspect": "write `luthier data inspect configs.lm.quickstart`",
    "prepare": "write `luthier data prepare DIR --text 'books/*.txt'`",
    "train-tokenizer": "write `luthier data train-tokenizer FILE --text 'books/*.txt'`",
}
SOURCES = ("--experiment", "--text", "--json-lines")
ONLY_FOR = {
    "--experiment": ("prepare", "train-tokenizer"),
    "--text": ("prepare", "train-tokenizer"),
    "--json-lines": ("prepare", "train-tokenizer"),
    "--field": ("prepare", "train-tokenizer"),
    "--tokenizer": ("prepare",),
    "--processes": ("prepare",),
    "--shards": ("prepare",),
    "--dry-run": ("prepare",),
    "--verify": ("prepare",),
    "--batches": ("inspect",),
    "--vocab-size": ("train-tokenizer",),
    "--json": ("prepare", "inspect"),
}
_PLACES = {
    "prepare": ("DIR", "the folder to write, or its URL (gs://... or s3://...)"),
    "inspect": ("REF", "the experiment, as configs.lm.quickstart"),
    "train-tokenizer": ("FILE", "the file to write"),
}


def add_arguments(parser: argparse.ArgumentParser, action: str = "") -> None:
    """Add this command's arguments to `parser`.

    Args:
      parser: The parser.
      action: The action whose arguments are added; empty for those of all actions.
    """
    if action:
        metavar, text = _PLACES[action]
    else:
        parser.add_argument("action", nargs="?", metavar="ACTION", help=", ".join(ACTIONS))
        metavar, text = "|".join(each for each, _ in _PLACES.values()), "see the actions"
    parser.add_argument("file", nargs="?", metavar=metavar, help=text)
    parser.add_argument(
        "overrides", nargs="*", metavar="OVERRIDE", help="a change of the experiment"
    )
    corpus = parser.add_argument_group("corpus")

    def option(name: str, group: Any = parser, **settings: Any) -> None:
        if not action:
            # `luthier data --help` lists the actions, and their help the options.
            parser.add_argument(name, **(settings | {"help": argparse.SUPPRESS}))
        elif action in ONLY_FOR[name]:
            group.add_argument(name, **settings)

    option(
        *("--experiment", corpus),
        metavar="REF",
        help="use data.source and data.tokenizer of an experiment",
    )
    option("--text", corpus, metavar="PATTERN", help="use text files, such as 'books/*.txt'")
    option("--json-lines", corpus, metavar="PATTERN", help="use files of JSON lines")
    option(
        *("--field", corpus),
        metavar="NAME",
        help="for --json-lines: the field of the text (default: text)",
    )
    option("--tokenizer", corpus, metavar="FILE", help="a BPE vocabulary, as JSON")
    option(
        "--vocab-size", type=positive, metavar="N", help="number of tokens to learn (default: 4096)"
    )
    option(
        "--processes",
        type=positive,
        metavar="N",
        help="number of processes (default: one per core)",
    )
    option("--shards", type=positive, metavar="N", help="number of shards (default: by size)")
    option("--dry-run", action="store_true", help="only estimate the size and the time")
    option("--verify", action="store_true", help="compare the shards in DIR with their digests")
    option("--batches", type=positive, metavar="N", help="number of batches (default: 1)")
    option("--json", action="store_true", help="print JSON")


# All three actions.


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier data`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    # Problems of the options are raised together with those of the experiment, if there is one:
    # `inspect` and --experiment load it with the problems found so far.
    problems = Problems(unknown)
    _check(arguments, problems)
    if arguments.action == "inspect":
        return run_inspect(arguments, problems)
    if arguments.action == "prepare" and arguments.verify:
        problems.raise_any()
        return verify(arguments)
    if not arguments.experiment:
        problems.raise_any()
    source, tokenizer = _corpus(arguments, problems)
    if arguments.action == "prepare":
        return run_prepare(arguments, source, tokenizer)
    from luthier import data

    trained = data.train_bpe(source, arguments.vocab_size or 4096, arguments.file)
    # By class and not by path: in a mixture each component has a tokenizer, somewhere below `data`.
    tokenizer_override = f'class:Packed.tokenizer=luthier.data.Bpe("{arguments.file}")'
    words = shlex.join([tokenizer_override, f"model.vocab_size={trained.vocab_size}"])
    print(f"wrote {arguments.file}: {trained.vocab_size} tokens. To use it, add:\n  {words}")
    return EXIT_DONE


def _check(arguments: argparse.Namespace, problems: Problems) -> None:
    """Add the problems of the action and of options; drop an experiment that conflicts."""
    if not arguments.action:
        problems.add("no action is given", remedy=EXAMPLES["train-tokenizer"])
        return
    if arguments.action not in ACTIONS:
        nearest = difflib.get_close_matches(arguments.action, ACTIONS)
        remedy = EXAMPLES[nearest[0]] if nearest else f"the actions are {', '.join(ACTIONS)}"
        problems.add(f"unknown action {arguments.action!r}", remedy, nearest)
        return
    usage = EXAMPLES[arguments.action]
    for option, actions in ONLY_FOR.items():
        if arguments.action not in actions and _value(arguments, option):
            problems.add(f"{option} is an option of {' and '.join(actions)}", remedy=usage)
    # `experiments.load` reports the missing experiment of `inspect` itself.
    if arguments.action == "inspect":
        return
    if not arguments.file:
        what = "file" if arguments.action == "train-tokenizer" else "folder"
        problems.add(f"no {what} to write is given", remedy=usage)
    given = [name for name in SOURCES if _value(arguments, name)]
    if arguments.action == "prepare" and arguments.verify:
        if given:
            problems.add(
                f"--verify cannot be combined with {given[0]}", remedy="give the folder alone"
            )
    elif len(given) != 1:
        verb = "learn from" if arguments.action == "train-tokenizer" else "prepare"
        what = (
            f"{' and '.join(given)} cannot be combined" if given else f"nothing to {verb} is given"
        )
        problems.add(what, remedy=f"give one of {', '.join(SOURCES)}")
        # Of several sources, the experiment may not be the one that is meant: `run` then neither
        # loads it, nor is --tokenizer judged by it below.
        arguments.experiment = None
    elif arguments.overrides and not arguments.experiment:
        problems.add(f"unexpected argument {arguments.overrides[0]!r}", remedy=usage)
    if arguments.tokenizer and arguments.experiment:
        problems.add("--tokenizer needs files", remedy="set data.tokenizer instead")


def _value(arguments: argparse.Namespace, option: str) -> Any:
    return getattr(arguments, option[2:].replace("-", "_"))


def _corpus(arguments: argparse.Namespace, problems: Problems) -> tuple[Any, Any]:
    if arguments.experiment:
        return _corpus_of_experiment(arguments, arguments.overrides, problems)
    from luthier import data

    if arguments.text:
        source: Any = data.TextFiles(arguments.text)
    else:
        source = data.JsonLines(arguments.json_lines, arguments.field or "text")
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
