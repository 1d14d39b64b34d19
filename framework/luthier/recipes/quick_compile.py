"""Compiling quickly on a CPU, as a fiddler: for runs of few steps."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import graph, parallel
from luthier.errors import BadInput, Problem
from luthier.recipes.selection import is_experiment


def quick_compile(experiment: fdl.Buildable) -> Any:
    """Return an experiment whose programs for CPUs compile in about two thirds of the time.

    For short runs and experiments: steps take as long, or up to a fifth longer, because the
    compiler optimizes less (`luthier help performance` has a table). The bits of results may differ
    from those with other options. Other compiler options stay, as do programs for other platforms.

        luthier train configs.lm.quickstart fiddler:quick_compile training.steps=20

    Args:
      experiment: A graph of an experiment; it is not changed.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph is of no experiment.

    Example:
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.quick_compile(config)
      >>> graph.get(changed, "compiler.cpu")["xla_backend_optimization_level"]
      1
    """
    if not is_experiment(experiment):
        raise BadInput(Problem("a model alone is not compiled", remedy="give an experiment"))
    changed = graph.copy_graph(experiment)
    # Replaced as a whole, because options are one dictionary of the graph; ours take precedence.
    options = {**graph.get(changed, "compiler.cpu"), **parallel.quick_cpu_options()}
    graph.set_value(changed, "compiler.cpu", options)
    return changed
