"""Chooses the run that `luthier train run:ID` trains: a new one, or the one it began earlier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from luthier.cli.showing import differences
from luthier.errors import BadInput
from luthier.graph import Graph
from luthier.terminal import cell


def choose_run(recorded: Any, graph: Graph) -> tuple[str | None, bool]:
    """Return the run to go on with, and whether to begin a new one, for `luthier train run:ID`.

    A recorded graph is trained in a run of its own, beside the recorded one. Where that was begun
    already and did not end, the same command goes on with it. A graph that was changed names
    another run, as it does for any other reference.

    Args:
      recorded: The directory of the run that the reference names.
      graph: Its graph, with the changes of the command line.
    """
    from luthier import graph as graphs
    from luthier import records
    from luthier.trainer.opening import run_id

    base, root = run_id(graph), graphs.build(graphs.get(graph, "records")).directory
    name = graphs.get(graph, "name")
    number = _number(recorded.id, base)
    if number == 0 or recorded.name != name:
        return None, False
    for summary in reversed(records.list_runs(root)):
        run = summary.directory
        later = run.name == name and _number(run.id, base) > number
        if later and summary.status.status != "finished" and run.writer() is None:
            return str(Path(run.path)), False
    return None, True


def tell_changes(recorded: Any, before: Any, after: Any) -> None:
    """Print what the command line changes in a recorded graph.

    Args:
      recorded: The directory of the run.
      before: Its graph.
      after: The graph that will be trained.
    """
    print(f"the graph of run {cell(f'{recorded.name}/{recorded.id}')}, with these changes:")
    differences.print_changes(before, after)


def tell_difference(name: str, graph: Graph) -> None:
    """Print how the graph that is to continue a run differs from the run's; nothing where it is it.

    Args:
      name: The run, as `--run` names it; where there is none, it is for others to say so.
      graph: The graph that will be trained.
    """
    from luthier import graph as graphs
    from luthier.cli.operands import operand, recorded
    from luthier.cli.showing import differences

    root = graphs.build(graphs.get(graph, "records")).directory
    try:
        before = recorded.read_run(name, root)
    except BadInput:
        return
    after = operand.of_graph("this graph", lambda: graph)
    comparison = differences.comparison_of(before, after)
    if comparison["changes"]:
        differences.print_difference(comparison)


def _number(id: str, base: str) -> int:
    """Return which of the runs of one graph an id is: 1, 2, ...; 0 where it is of another graph."""
    if id == base:
        return 1
    start, dash, number = id.rpartition("-")
    return int(number) if start == base and dash and number.isdigit() else 0
