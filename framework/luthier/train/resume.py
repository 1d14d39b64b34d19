"""Whether a run can be continued with a graph that is not the one it was started with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from luthier import graph as graphs
from luthier.errors import Problem, RunError
from luthier.parallel import Placement

HARMLESS = (
    "name",
    "records",
    "checkpoints",
    "parallelism",
    "evaluations",
    "training.stop",
    "training.early_stopping",
    "training.divergence",
)
"""Paths below which a change leaves the updates as they are."""

REFUSED = {
    "data": "the order of the data would change",
    "seed": "the random streams would change",
    "training.global_batch_size": "the order of the data would change",
    "restore": "it is read once, when a run starts",
}
"""Paths below which a change makes another run of it, and why."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What a changed graph means for a run that is to be continued.

    Args:
      refused: Changes that make another run of it.
      reshaped: Schedules that a changed number of steps reshapes, with both lengths.
      training: Changes that alter the updates from here on.
      harmless: Changes that leave the updates as they are.
    """

    refused: Sequence[str] = ()
    reshaped: Sequence[str] = ()
    training: Sequence[str] = ()
    harmless: Sequence[str] = ()


def compare(recorded: Any, graph: Any) -> Comparison:
    """Sort the differences between a run's graph and another by what they mean for the run.

    Args:
      recorded: The graph of the run.
      graph: The graph that is to continue it.
    """
    found: dict[str, list[str]] = {"refused": [], "training": [], "harmless": []}
    for change in graphs.diff(recorded, graph):
        line = graphs.render_diff([change]).strip()
        reason = next((why for path, why in REFUSED.items() if _below(change.path, path)), None)
        if reason is not None:
            found["refused"].append(f"{line} ({reason})")
        elif any(_below(change.path, path) for path in HARMLESS):
            found["harmless"].append(line)
        else:
            found["training"].append(line)
    steps = tuple(graphs.evaluate(graphs.get(g, "training.steps")) for g in (recorded, graph))
    reshaped = _reshaped(recorded, graph) if steps[0] != steps[1] else []
    return Comparison(found["refused"], reshaped, found["training"], found["harmless"])


def check_continuation(
    comparison: Comparison,
    arrays: Mapping[str, Mapping[str, Any]],
    placements: Mapping[str, Placement],
    *,
    run: str,
    extend: bool,
) -> list[str]:
    """Refuse what cannot be continued, and say what will be different.

    Args:
      comparison: The differences between the graphs.
      arrays: Name, shape and dtype of the arrays that the run has saved.
      placements: The arrays that the graph asks for.
      run: The run, as the user names it.
      extend: Whether the user agreed to reshaped schedules.

    Returns:
      One line for every change that is let through.

    Raises:
      RunError: The run cannot be continued with this graph; holds every reason.
    """
    problems = [Problem(line) for line in comparison.refused]
    wanted = {
        name: {"shape": placement.shape, "dtype": str(jnp.dtype(placement.dtype))}
        for name, placement in placements.items()
    }
    problems += misfits(arrays, wanted)
    if problems:
        remedy = "start a run of its own: leave out --run"
        what = f"{run} cannot be continued with this graph"
        raise RunError([Problem(what, remedy=remedy), *problems])
    if comparison.reshaped and not extend:
        what = f"another number of steps reshapes {', '.join(comparison.reshaped)}"
        remedy = (
            "steps already taken followed the old curve: add --extend to go on with the new "
            "one, or leave out --run to train anew"
        )
        raise RunError(Problem(what, "training.steps", remedy=remedy))
    lines = [f"changes training from here on: {line}" for line in comparison.training]
    return lines + [f"does not change training: {line}" for line in comparison.harmless]


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith((prefix + ".", prefix + "["))


def _reshaped(recorded: Any, graph: Any) -> list[str]:
    before, after = _leaves(recorded), _leaves(graph)
    return [
        f"{path} ({before[path]} -> {value})"
        for path, value in after.items()
        if path in before and before[path] != value
    ]


def _leaves(graph: Any) -> dict[str, Any]:
    """Return the numbers of the optimizer that stand at value nodes, by path."""
    return {
        path: graphs.evaluate(value)
        for path, value in graphs.paths(graph)
        if _below(path, "optimizer") and graphs.is_value_node(value)
    }


def misfits(
    arrays: Mapping[str, Mapping[str, Any]],
    wanted: Mapping[str, Mapping[str, Any]],
    sides: tuple[str, str] = ("in the run", "in this graph"),
) -> list[Problem]:
    """Return what keeps the arrays of a run from being those that a graph asks for.

    Args:
      arrays: Name, `shape` and `dtype` of the arrays that the run has saved.
      wanted: The same of those that the graph asks for.
      sides: What the two are called.
    """
    run, here = sides
    problems = []
    for name in sorted(set(arrays) | set(wanted)):
        if name not in wanted:
            problems.append(Problem(f"is {run}, and not {here}", name))
        elif name not in arrays:
            problems.append(Problem(f"is {here}, and not {run}", name))
        else:
            saved, asked = _form(arrays[name]), _form(wanted[name])
            if saved != asked:
                problems.append(Problem(f"is {saved} {run}, {asked} {here}", name))
    return problems


def _form(array: Mapping[str, Any]) -> str:
    return f"{array['dtype']}{list(array['shape'])}"
