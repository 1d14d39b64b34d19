"""What a change of the graph means for checkpoints and for compiled programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import LuthierError
from luthier.graph import UNSET, Change
from luthier.program.hoist import problem_with
from luthier.train.resume import compare, misfits
from luthier.view.effects.facts import Facts

# Fields of the experiment that a compiled step is made of; of the others it knows shapes at most.
_COMPILED = (*programs.HOISTABLE_FIELDS, "parallelism", "precision")
_NUM_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Verdict:
    """An answer in one or a few lines.

    Args:
      name: What is asked: `checkpoint`, `recompile` or `plan`.
      text: The answer; its reasons are on further lines.
      severity: `warn` where something is lost or refused.
    """

    name: str
    text: str
    severity: Literal["ok", "warn"]


def checkpoint(graphs_of: tuple[Any, Any], facts: tuple[Facts, Facts]) -> Verdict:
    """Say whether a run of the first graph can go on with the second.

    Args:
      graphs_of: Both experiment graphs.
      facts: What follows from them.
    """
    before, after = facts
    comparison = compare(*graphs_of)
    reasons = _misfits(before, after)
    if reasons:
        start = "no: a checkpoint of the first does not fit the second"
        return Verdict("checkpoint", _listed(start, reasons), "warn")
    if comparison.refused:
        start = "it fits, but a run cannot be continued with the second"
        return Verdict("checkpoint", _listed(start, comparison.refused), "warn")
    if comparison.reshaped:
        start = "yes, with --extend: another number of steps reshapes a schedule"
        return Verdict("checkpoint", _listed(start, comparison.reshaped), "warn")
    if comparison.training:
        start = "yes: a run of the first can go on with the second; from there on it trains by"
        return Verdict("checkpoint", _listed(start, comparison.training), "ok")
    return Verdict("checkpoint", "yes: a run of the first can go on with the second", "ok")


def recompile(
    graphs_of: tuple[Any, Any], facts: tuple[Facts, Facts], devices: Sequence[jax.Device]
) -> Verdict:
    """Say whether the second graph needs another compiled step, and what a sweep makes of it.

    Args:
      graphs_of: Both experiment graphs.
      facts: What follows from them.
      devices: What the first would run on.
    """
    before, after = facts
    if before.step == after.step:
        return Verdict("recompile", "no: both compile to the same step", "ok")
    reshaped = _reshaped(before, after)
    if reshaped:
        start = "yes: the step is of other shapes"
        return Verdict("recompile", _listed(start, reshaped), "warn")
    hoisted, constants = _leaves(*graphs_of)
    if hoisted and not constants:
        problem = _problem_with_hoisting(graphs_of[0], hoisted, devices)
        if problem is None:
            start = "yes; but in a sweep one step serves both, because these enter as arguments"
            return Verdict("recompile", _listed(start, hoisted), "ok")
        constants = [f"{', '.join(hoisted)}: {problem}"]
    start = "yes: these are constants of the step" if constants else "yes: the step is another"
    return Verdict("recompile", _listed(start, constants), "warn")


def _misfits(before: Facts, after: Facts) -> list[str]:
    """Return the arrays that differ, those of the model first."""
    problems = misfits(before.arrays, after.arrays, ("before", "after"))
    order = sorted(problems, key=lambda problem: not problem.path.startswith("parameters/"))
    return [str(problem) for problem in order]


def _reshaped(before: Facts, after: Facts) -> list[str]:
    """Return the arrays of the step that have another shape, dtype or layout."""
    told = _misfits(before, after)
    if told:
        return told
    laid_out = [
        f"{name}: {before.arrays[name]['spec']} before, {array['spec']} after"
        for name, array in after.arrays.items()
        if before.arrays[name]["spec"] != array["spec"]
    ]
    batch = [
        f"batch {name}: {before.batch.get(name)} before, {entry} after"
        for name, entry in after.batch.items()
        if before.batch.get(name) != entry
    ]
    if before.mesh != after.mesh:
        laid_out.insert(0, f"mesh: {dict(before.mesh)} before, {dict(after.mesh)} after")
    return [*batch, *laid_out]


def _leaves(before: Any, after: Any) -> tuple[list[str], list[str]]:
    """Return the changed leaves that may enter a step as arguments, and the other changes."""
    possible, constants = [], []
    for change in graphs.diff(before, after):
        if not change.is_effective or change.path.partition(".")[0] not in _COMPILED:
            continue
        if _is_number(change) and problem_with(after, change.path) is None:
            possible.append(change.path)
        else:
            constants.append(change.path)
    return possible, constants


def _is_number(change: Change) -> bool:
    sides = [graphs.evaluate(side) for side in (change.before, change.after) if side is not UNSET]
    return len(sides) == 2 and all(
        isinstance(side, int | float) and not isinstance(side, bool) for side in sides
    )


def _problem_with_hoisting(
    graph: Any, paths: Sequence[str], devices: Sequence[jax.Device]
) -> str | None:
    """Return why a step cannot be traced with leaves as its arguments; None where it can."""
    try:
        _ = programs.make(graph, devices, paths).traced_step
    except LuthierError as error:
        return str(error).partition("\n")[0]
    except Exception as error:  # a component may raise anything where it meets a tracer
        line = " ".join(str(error).strip().partition("\n")[0].split())
        return f"{type(error).__name__}: {line}"
    return None


def _listed(start: str, reasons: Sequence[str]) -> str:
    shown = [f"- {reason}" for reason in reasons[:_NUM_SHOWN]]
    if len(reasons) > _NUM_SHOWN:
        shown.append(f"- and {len(reasons) - _NUM_SHOWN} more")
    return "\n".join([start + (":" if shown else ""), *shown])
