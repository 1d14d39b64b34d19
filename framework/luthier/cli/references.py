"""What the first word of a command line stands for: an experiment, or a run that was recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from luthier.errors import BadInput, Problem, RunError

RUN = "run:"
STUDY = "study:"
RUNS = "runs"
"""Where runs are looked for."""


def load_reference(reference: str, packages: Sequence[str] = ()) -> Any:
    """Return the graph that a reference names.

    Args:
      reference: `configs.lm.quickstart`, `package.module:function(a=1)`; a run that was recorded:
        its folder, or `run:` with its id, the beginning of it, NAME/ID or `last`; or a trial of a
        study, `study:NAME/17`.
      packages: The user's packages that a recorded graph may name.

    Returns:
      The graph. That of a run has the history that was recorded with it.

    Raises:
      BadInput: There is nothing of that name, several runs are meant, or it cannot be read.
    """
    if reference.startswith(STUDY):
        from luthier import sweep

        return sweep.trial_graph(reference.removeprefix(STUDY))
    run = find_run(reference)
    if run is not None:
        return _load_run(run, packages)
    from luthier import graph as graphs

    return graphs.resolve(reference)


def find_run(reference: str) -> Any:
    """Return the directory of the run that a reference names; None where it names no run.

    Args:
      reference: As for `load_reference`.

    Raises:
      BadInput: There is no such run, or several are meant.
    """
    is_folder = bool(reference) and (Path(reference) / "config.json").is_file()
    if not is_folder and not reference.startswith(RUN):
        return None
    from luthier import records

    name = reference.removeprefix(RUN)
    if not name:
        remedy = "write `run:ID`; `luthier runs` lists them"
        raise BadInput(Problem(f"{reference!r} names no run", remedy=remedy))
    return records.find(RUNS, name)


def _load_run(run: Any, packages: Sequence[str]) -> Any:
    from luthier import graph as graphs
    from luthier.graph.recorded_defaults import restore_defaults
    from luthier.records import trust

    text = run.read_config()
    packages = trust.packages_for(run.config_path, text, packages)
    graph = graphs.from_json(text, packages, source=str(run.config_path))
    with contextlib.suppress(RunError):  # a missing or damaged file of values says nothing
        restore_defaults(graph, run.read_values())
    with contextlib.suppress(RunError):  # a damaged history hides who set what, and nothing else
        graphs.restore_history(graph, run.read_history(), f"{run.name}/{run.id}")
    return graph
