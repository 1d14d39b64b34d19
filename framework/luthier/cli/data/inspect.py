"""`luthier data inspect`: what an experiment trains on, in tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from luthier.cli import experiments
from luthier.cli.arguments import Problems
from luthier.errors import EXIT_DONE
from luthier.terminal import cell

_ROWS = 8


def run(arguments: argparse.Namespace, problems: Problems) -> int:
    """Print the report; return the exit code.

    Args:
      arguments: What `luthier.cli.commands.data.add_arguments` describes.
      problems: Problems of the command line found so far.
    """
    graph, _ = experiments.load(
        arguments.file, arguments.overrides, problems, command="data inspect", checked=False
    )
    from luthier import graph as graphs
    from luthier.data.inspection import inspect

    training = graphs.build(graphs.get(graph, "training"))
    report = inspect(
        graphs.build(graphs.get(graph, "data")),
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

    # What pipes get is not cut to 80 columns.
    console = Console(highlight=False, soft_wrap=True)
    console = console if console.is_terminal else Console(highlight=False, width=160)
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
    """Return a value for a cell; line ends and other signs of control are shown as escapes."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
