"""Checks whether a run can be continued with a changed graph, changed code or changed defaults.

The rule is that nothing changes silently what is trained. Changes are sorted by what they mean for
the updates: some cannot continue the run, some need the user's consent, and the others are listed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from luthier import graph as graphs
from luthier.errors import Problem, RunError, listed
from luthier.graph import Graph
from luthier.graph.recorded_defaults import restore_defaults
from luthier.parallel import Placement
from luthier.records import RunDirectory
from luthier.records.source import Source, changed_files, reached_files, read_code, recorded_code

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
"""Paths below which a change requires a new run, and why."""


@dataclasses.dataclass(frozen=True)
class ResumeDifferences:
    """The differences of a changed graph, sorted by what they mean for a run that continues.

    Args:
      refused: Changes that require a new run.
      reshaped: Schedules that a changed number of steps changes, with both lengths.
      training: Changes that alter the updates from here on.
      harmless: Changes that leave the updates as they are.
    """

    refused: Sequence[str] = ()
    reshaped: Sequence[str] = ()
    training: Sequence[str] = ()
    harmless: Sequence[str] = ()


def compare(recorded: Graph, graph: Graph) -> ResumeDifferences:
    """Sort the differences between a run's graph and another by what they mean for the run.

    Args:
      recorded: The graph of the run.
      graph: The graph that is to continue it.

    Returns:
      The differences, a line each, in four groups: what cannot be changed, what changes the shape
      of schedules, what changes training otherwise, and what is harmless.

    Example:
      >>> import luthier
      >>> from luthier import trainer
      >>> config = luthier.experiment("quickstart")
      >>> changed = luthier.experiment("quickstart", ["optimizer.b2=0.99"])
      >>> len(trainer.compare(config, changed).training)
      1
    """
    # By prefix and not by setting: a path that nobody thought of (a new field of the optimizer)
    # changes training, which is reported, and never passes as harmless.
    found: dict[str, list[str]] = {"refused": [], "training": [], "harmless": []}
    for change in graphs.diff(recorded, graph):
        # A default that is now written out, or no longer, is the same value as before.
        if change.kind in ("set", "reset") and not change.is_effective:
            continue
        line = graphs.render_diff([change]).strip()
        reason = next((why for path, why in REFUSED.items() if _below(change.path, path)), None)
        if reason is not None:
            found["refused"].append(f"{line} ({reason})")
        elif any(_below(change.path, path) for path in HARMLESS):
            found["harmless"].append(line)
        else:
            found["training"].append(line)
    # Another number of steps is harmless by itself. But schedules share it as a value node, and
    # then the curve that the steps so far followed was another one; that needs `--extend`.
    steps = tuple(graphs.evaluate(graphs.get(g, "training.steps")) for g in (recorded, graph))
    reshaped = _reshaped(recorded, graph) if steps[0] != steps[1] else []
    return ResumeDifferences(found["refused"], reshaped, found["training"], found["harmless"])


def check_continuation(
    comparison: ResumeDifferences,
    arrays: Mapping[str, Mapping[str, Any]],
    placements: Mapping[str, Placement],
    *,
    run: str,
    extend: bool,
    named: bool = True,
) -> list[str]:
    """Reject changes that cannot be resumed with, and list the others.

    Args:
      comparison: The differences between the graphs.
      arrays: Name, shape and dtype of the arrays that the run has saved.
      placements: The arrays that the graph asks for.
      run: The run, as the user names it.
      extend: Whether the user agreed to reshaped schedules.
      named: Whether the user asked for this run, and not for the run of this graph.

    Returns:
      One line for every change that is let through.

    Raises:
      RunError: The run cannot be continued with this graph; holds every reason.
    """
    separate = "leave out --run" if named else "add --new"
    problems = [Problem(line) for line in comparison.refused]
    # `arrays` come from the plan that the run recorded: this is decided before a checkpoint is
    # read.
    wanted = {
        name: {"shape": placement.shape, "dtype": str(jnp.dtype(placement.dtype))}
        for name, placement in placements.items()
    }
    problems += misfits(arrays, wanted)
    if problems:
        remedy = f"to start a separate run, {separate}"
        what = f"{run} cannot be continued with this graph"
        raise RunError([Problem(what, remedy=remedy), *problems])
    # A learning-rate schedule over N steps is another curve over 2N: the steps already taken
    # followed the old one, and no continuation is equal to a run of 2N steps.
    # Asked after the refusals, against which `--extend` does not help.
    if comparison.reshaped and not extend:
        what = f"another number of steps reshapes {listed(comparison.reshaped, 3)}"
        remedy = f"add --extend to continue on the new curve; to start a new run, {separate}"
        raise RunError(Problem(what, "training.steps", remedy=remedy))
    # Listed only, since an override that changes a setting was typed for this very start; code and
    # defaults change without that, and have checks of their own.
    lines = [f"changes training from here on: {line}" for line in comparison.training]
    return lines + [f"does not change training: {line}" for line in comparison.harmless]


NUM_SHOWN = 5


def settle_defaults(directory: RunDirectory, recorded: Graph) -> list[str]:
    """Restore the defaults that a graph was recorded with; return a line about each kind.

    A recorded graph holds the arguments that were set. What was left to a default would take
    today's value, and the values that were recorded beside it hold the former one.

    Args:
      directory: The run's directory.
      recorded: The graph that it recorded, as it is loaded now; plain values are set in place.
    """
    before = directory.read_values()
    if not before:
        return []
    # In place, on the graph as it is loaded: today's defaults would otherwise show up as changes of
    # the user, or change the training without one.
    restored = restore_defaults(recorded, before)
    if restored:
        which = ", ".join(restored[:NUM_SHOWN])
        more = "" if len(restored) <= NUM_SHOWN else f" and {len(restored) - NUM_SHOWN} more"
        return [
            f"kept as recorded, although the defaults have changed: {which}{more}",
            *_changed_defaults(before, recorded),
        ]
    return _changed_defaults(before, recorded)


def _changed_defaults(before: Mapping[str, Any], recorded: Graph) -> list[str]:
    # Through JSON, as the recorded values went: tuples are lists there, and keys are strings.
    now = json.loads(json.dumps(graphs.to_dict(recorded), default=str))
    # What `restore_defaults` could not set back: values that are no plain ones, or arguments that
    # no longer exist.
    found = list(_differences(before, now, ""))
    if not found:
        return []
    more = "" if len(found) <= NUM_SHOWN else f" and {len(found) - NUM_SHOWN} more"
    return [
        "defaults are not what they were when this run was recorded: "
        f"{', '.join(found[:NUM_SHOWN])}{more}"
    ]


def _differences(before: Any, now: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in [*before, *(name for name in now if name not in before)]:
            below = f"{path}.{name}" if path else str(name)
            if name not in before:
                yield f"{below} (new: {_short(now[name])})"
            elif name in now:
                yield from _differences(before[name], now[name], below)
    elif before != now:
        yield f"{path} (was {_short(before)}, is {_short(now)})"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


DEFINING = ("model", "task", "data", "optimizer")
"""Paths below which code decides what is trained."""


def check_code(
    directory: RunDirectory,
    graph: Graph,
    source: Source,
    packages: Sequence[str],
    saved: int,
    accept_changes: bool,
) -> list[str]:
    """Compare the code that will run with what the run has run so far.

    Args:
      directory: The run's directory.
      graph: The graph that is to continue it.
      source: The source that will run.
      packages: The user's packages.
      saved: The step of the run's newest save; 0 where none is.
      accept_changes: Whether the user agreed to other code.

    Returns:
      One line for each package that changed.

    Raises:
      RunError: Code that the model, the task, the data or the optimizer is made of has changed
        since something was saved, and nobody agreed to that.
    """
    # Only code that changed since something was saved can change a result: before the first save a
    # run may be mended freely.
    before = directory.read_source().get("packages", {})
    since = f"since step {saved}" if saved else "since the last start"
    hashes = source.packages
    # A line for luthier, and no refusal: it is hashed as a whole and not kept file by file, so a
    # reworded message looks like another optimizer, and every upgrade would need consent.
    lines = [
        f"{name} changed {since}"
        for name, digest in hashes.items()
        if name in before and before[name] != digest
    ]
    recorded, now = recorded_code(directory.path), read_code(packages)
    # Nothing to compare file by file: a trial of a study keeps no code of its own, and `code.json`
    # may be lost. Hashes of whole packages cannot tell a layer from a plotting script, so that they
    # are reported, and refuse nothing.
    if recorded is None:
        return lines
    changed = changed_files(recorded, now)
    # From here on the user's packages are reported by file; luthier, of which no files are kept, is
    # left with the line about its package.
    if not changed:
        return [line for line in lines if line.startswith("luthier ")]
    # Modules of the classes and functions that stand below the defining paths of the graph.
    modules = {
        module
        for path, value in graphs.paths(graph)
        if any(_below(path, prefix) for prefix in DEFINING)
        for module in [getattr(getattr(value, "__fn_or_cls__", value), "__module__", None)]
        if isinstance(module, str)
    }
    # File by file: only files that are reached by imports from the modules of the deciding nodes
    # count, so that an edit of a plotting script needs no consent.
    deciding = sorted(set(changed) & reached_files(modules, packages))
    if deciding and saved and not accept_changes:
        what = (
            f"{directory.name}/{directory.id}: code of the model, the task, the data or the "
            f"optimizer changed {since}: {listed(deciding, 4)}"
        )
        remedy = "restore it from code/ of the run, or add --accept-changes or --new"
        raise RunError(Problem(what, remedy=remedy))
    files = f"code changed {since}: {', '.join(changed)}"
    return [*(line for line in lines if line.startswith("luthier ")), files]


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith((prefix + ".", prefix + "["))


def _reshaped(recorded: Graph, graph: Graph) -> list[str]:
    before, after = _leaves(recorded), _leaves(graph)
    return [
        f"{path} ({before[path]} -> {value})"
        for path, value in after.items()
        if path in before and before[path] != value
    ]


# Schedules read the number of steps through value nodes; a plain number does not follow it, and
# cannot be reshaped.
def _leaves(graph: Graph) -> dict[str, Any]:
    """Return the numbers of the optimizer that stand at value nodes, by path."""
    return {
        path: _value(value)
        for path, value in graphs.paths(graph)
        if _below(path, "optimizer") and graphs.is_value_node(value)
    }


def _value(node: Any) -> Any:
    """Return the number of a value node; as text where it is written in epochs."""
    try:
        value = graphs.evaluate(node)
    except ValueError:
        return graphs.expression(node)
    return graphs.expression(value) if graphs.is_deferred(value) else value


def misfits(
    arrays: Mapping[str, Mapping[str, Any]],
    wanted: Mapping[str, Mapping[str, Any]],
    sides: tuple[str, str] = ("in the run", "in this graph"),
) -> list[Problem]:
    """Return the differences between the arrays of a run and those that a graph needs.

    Args:
      arrays: Name, `shape` and `dtype` of the arrays that the run has saved.
      wanted: The same of those that the graph asks for.
      sides: Names of the two.

    Returns:
      A problem for each array that is missing on a side, or has another shape or dtype; none if all
      agree.

    Example:
      >>> from luthier import trainer
      >>> array = {"shape": [2], "dtype": "float32"}
      >>> print(*trainer.misfits({"kernel": array}, {"kernel": {**array, "shape": [3]}}))
      kernel: is float32[2] in the run, float32[3] in this graph
    """
    run, here = sides
    problems = []
    # All differences at once, in one order of names: a renamed layer shows as a pair of lines that
    # stand together.
    for name in sorted(set(arrays) | set(wanted)):
        if name not in wanted:
            problems.append(Problem(f"is only {run}", name))
        elif name not in arrays:
            problems.append(Problem(f"is only {here}", name))
        else:
            saved, asked = _form(arrays[name]), _form(wanted[name])
            if saved != asked:
                problems.append(Problem(f"is {saved} {run}, {asked} {here}", name))
    return problems


def _form(array: Mapping[str, Any]) -> str:
    return f"{array['dtype']}{list(array['shape'])}"
