"""Numbers of steps that are written in epochs, `training.steps=Epochs(3)`.

The config keeps what was written, and so do its record and its fingerprint: the same command
resumes the run. Programs are made from a copy in which each is a number.
"""

from __future__ import annotations

import fractions
import math
from typing import Any

from luthier import graph as graphs
from luthier.errors import BadInput, Problem, ValidationError
from luthier.graph import Graph


def with_known_steps(graph: Graph, data: Any = None) -> Graph:
    """Return a graph in which each number of steps that is written in epochs is a number.

    `Epochs(n)` becomes ceil(n R / B), with the R rows of an epoch and the B rows of a batch: the
    first step after which n epochs have been read.

    Args:
      graph: An experiment graph; it is not changed.
      data: Its data, if it is built already; its number of rows is asked for, which may read files.

    Returns:
      The graph itself where nothing is written in epochs.

    Raises:
      ValidationError: The data has no end, or settings do not go with the number of steps.

    Example:
      >>> import luthier
      >>> from luthier import program
      >>> config = luthier.experiment("quickstart")
      >>> program.with_known_steps(config) is config
      True
    """
    if not any(graphs.deferred_steps(graph)):
        return graph
    data = graphs.build(graphs.get(graph, "data")) if data is None else data
    num_rows = getattr(data, "num_rows", None)
    batch_size = graphs.evaluate(graphs.get(graph, "training.global_batch_size"))
    changed = graphs.copy_graph(graph)
    for path, owner, part, node in list(graphs.deferred_steps(changed)):
        origin = graphs.origin_of(graph, path)
        if not isinstance(num_rows, int) or num_rows < 1:
            what = f"{graphs.expression(node)} cannot be counted in steps: the data has no end"
            raise ValidationError(Problem(what, path, origin, "write a number of steps"))
        try:
            count = graphs.build(node).count
        except BadInput as error:
            what = error.problems[0].what.rpartition(": ")[2]
            raise ValidationError(Problem(what, path, origin)) from error
        # As it is written, in decimals: 0.1 is a tenth here, and not the nearest binary fraction.
        epochs = fractions.Fraction(str(count))
        steps = math.ceil(epochs * num_rows / batch_size)
        graphs.set_value(owner, part, steps, origin)
    if problems := graphs.declared_problems(changed):
        raise ValidationError(problems)
    return changed
