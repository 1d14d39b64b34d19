"""Chooses the run that `luthier train run:ID` trains: a new one, or the one it started earlier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from luthier.cli.showing import differences
from luthier.errors import BadInput
from luthier.terminal import cell

if TYPE_CHECKING:
    from luthier.graph import Graph
    from luthier.records import RunDirectory


def choose_run(recorded: RunDirectory, graph: Graph) -> tuple[str | None, bool]:
    """Return the run to resume, and whether to start a new one, for `luthier train run:ID`.

    A recorded graph is trained in a new run, beside the recorded one. If that run was started
    before and has not finished, the same command resumes it. A changed graph belongs to another
    run, as for any other reference.

    Args:
      recorded: The directory of the run that the reference names.
      graph: Its graph, with the changes of the command line.
    """
    from luthier import graph as graphs
    from luthier import records
    from luthier.trainer.opening import run_id

    # The id of a run is a hash of its graph, with -2, -3, ... for further runs of the same graph.
    # So the runs that this command may have started are those of the same hash and a higher number.
    # A run with a live writer is left alone: another process trains it.
    base, root = run_id(graph), graphs.build(graphs.get(graph, "records")).directory
    name = graphs.get(graph, "name")
    number = _number(recorded.id, base)
    if number == 0 or recorded.name != name:
        return None, False
    # The list ends with the most recently updated run, which is the one to resume.
    for summary in reversed(records.list_runs(root)):
        run = summary.directory
        later = run.name == name and _number(run.id, base) > number
        if later and summary.status != "finished" and run.writer() is None:
            return str(Path(run.path)), False
    return None, True


def print_changes(recorded: RunDirectory, before: Graph, after: Graph) -> None:
    """Print the changes that the command line makes to a recorded graph.

    Args:
      recorded: The directory of the run.
      before: Its graph.
      after: The graph that will be trained.
    """
    print(f"the config of run {cell(f'{recorded.name}/{recorded.id}')}, with these changes:")
    differences.print_changes(before, after)


def print_difference(name: str, graph: Graph) -> None:
    """Print how the graph that is to resume a run differs from the recorded one, if it does.

    Args:
      name: The run, as `--run` names it; if there is none, the trainer reports that.
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
    """Return the number of a run among those of one graph: 1, 2, ...; 0 for another graph."""
    if id == base:
        return 1
    start, dash, number = id.rpartition("-")
    return int(number) if start == base and dash and number.isdecimal() else 0
