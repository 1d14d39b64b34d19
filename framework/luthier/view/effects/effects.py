"""Effects of a change of the config on checkpoints, compiled programs, memory and schedules."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import BadInput, LuthierError, Problem
from luthier.graph import UNSET, Change, Graph
from luthier.program.hoist import problem_with
from luthier.trainer.resume import compare, misfits
from luthier.view.effects import facts as facts_lib
from luthier.view.effects.facts import Facts, known_facts

# Fields of the experiment that a compiled step is made of; of the others it knows shapes at most.
_COMPILED = (*programs.HOISTABLE_FIELDS, "parallelism", "precision")
_NUM_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class EffectVerdict:
    """An answer in one or a few lines.

    Args:
      name: The question: `checkpoint`, `recompile` or `plan`.
      text: The answer; its reasons are on further lines.
      severity: `warn` where something is lost or refused.
    """

    name: str
    text: str
    severity: Literal["ok", "warn"]


_TITLES = ("the first", "the second")


def checkpoint(
    graphs_of: tuple[Graph, Graph],
    facts: tuple[Facts, Facts],
    titles: tuple[str, str] = _TITLES,
) -> EffectVerdict:
    """Return whether a run of the first graph can continue with the second.

    Args:
      graphs_of: Both experiment graphs.
      facts: The facts of both.
      titles: The names of both for the lines about arrays.
    """
    # From the worst to the best: arrays that do not fit, a change that resuming rejects, a schedule
    # that another number of steps reshapes (which needs a flag), and changes of training only.
    comparison = compare(*graphs_of)
    reasons = _misfits(facts, titles)
    if reasons:
        start = "no: a checkpoint of the first does not fit the second"
        return EffectVerdict("checkpoint", _listed(start, reasons), "warn")
    if comparison.refused:
        start = "it fits, but a run cannot be continued with the second"
        return EffectVerdict("checkpoint", _listed(start, comparison.refused), "warn")
    if comparison.reshaped:
        start = "yes, with --extend: another number of steps reshapes a schedule"
        return EffectVerdict("checkpoint", _listed(start, comparison.reshaped), "warn")
    if comparison.training:
        start = "yes: a run of the first can continue with the second; from there on it trains by"
        return EffectVerdict("checkpoint", _listed(start, comparison.training), "ok")
    return EffectVerdict("checkpoint", "yes: a run of the first can continue with the second", "ok")


def recompile_verdict(
    graphs_of: tuple[Graph, Graph],
    facts: tuple[Facts, Facts],
    devices: Sequence[jax.Device],
    titles: tuple[str, str] = _TITLES,
) -> EffectVerdict:
    """Return whether the second graph needs another compiled step, in a run and in a sweep.

    Args:
      graphs_of: Both experiment graphs.
      facts: The facts of both.
      devices: The devices that the first would run on.
      titles: The names of both for the lines about arrays.
    """
    before, after = facts
    if before.step == after.step:
        return EffectVerdict("recompile", "no: both compile to the same step", "ok")
    reshaped = _reshaped(facts, titles)
    if reshaped:
        start = "yes: the shapes in the step differ"
        return EffectVerdict("recompile", _listed(start, reshaped), "warn")
    # In order of cost: the text of the lowered step, then shapes, then whether the changed leaves
    # could be arguments, which needs a trace with tracers in their places.
    hoisted, constants = _leaves(*graphs_of)
    if hoisted and not constants:
        problem = _problem_with_hoisting(graphs_of[0], hoisted, devices)
        if problem is None:
            start = "yes; but in a sweep one step serves both, because these enter as arguments"
            return EffectVerdict("recompile", _listed(start, hoisted), "ok")
        constants = [f"{', '.join(hoisted)}: {problem}"]
    start = "yes: these are constants of the step" if constants else "yes: the step is another"
    return EffectVerdict("recompile", _listed(start, constants), "warn")


def _misfits(facts: tuple[Facts, Facts], titles: tuple[str, str]) -> list[str]:
    """Return the arrays that differ, those of the model first."""
    before, after = facts
    problems = misfits(before.arrays, after.arrays, (f"in {titles[0]}", f"in {titles[1]}"))
    order = sorted(problems, key=lambda problem: not problem.path.startswith("parameters/"))
    return [str(problem) for problem in order]


def _reshaped(facts: tuple[Facts, Facts], titles: tuple[str, str]) -> list[str]:
    """Return the arrays of the step that have another shape, dtype or layout."""
    misfitting = _misfits(facts, titles)
    if misfitting:
        return misfitting
    before, after = facts
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


def _leaves(before: Graph, after: Graph) -> tuple[list[str], list[str]]:
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
    graph: Graph, paths: Sequence[str], devices: Sequence[jax.Device]
) -> str | None:
    """Return why a step cannot be traced with leaves as its arguments; None where it can."""
    # Whether a number may be a runtime argument depends on what components do with it (Python
    # branches, shapes). No declaration says that in full, so a trace is the test.
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


# The effects of the difference of two experiments, as the JSON that views and pages read.

Number = int | float | str | None

_FLOPS = {
    "full": "model FLOPs per step",
    "causal": "model FLOPs per step, causal",
    "six_n": "6 N FLOPs per step",
    "hardware": "hardware FLOPs per step",
}


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A number of both sides.

    Args:
      name: The name of the quantity.
      group: The heading that it is listed under.
      before: The number of the first side; None where it has none.
      after: The number of the second side; None where it has none.
      unit: `bytes`, `FLOPs`, or empty for a count or a text.
      note: A remark.
    """

    name: str
    group: str
    before: Number
    after: Number
    unit: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class EffectSubject:
    """One side, as the effects need it.

    Args:
      title: Its name in messages.
      graph: Its experiment graph.
      devices: The devices that it would run on.
      metrics_path: The metrics.jsonl of its run; None for a graph that was not run.
    """

    title: str
    graph: Graph
    devices: Sequence[jax.Device]
    metrics_path: str | os.PathLike[str] | None = None


def effects(
    subjects: tuple[EffectSubject, EffectSubject],
    packages: Sequence[str] = (),
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Compute the effects of the difference of two experiments.

    The state is evaluated abstractly, and facts that were computed before are read from a cache.

    Args:
      subjects: Both sides.
      packages: The user's packages that the graphs are made of.
      report: Called with one line about damaged records of metrics; None warns.

    Returns:
      `{"quantities": [...], "charts": [...], "verdicts": [...]}`, plain JSON values.

    Raises:
      BadInput: A side is not an experiment, or cannot run on its devices.
    """
    # Facts of both sides first: the problems of both are reported at once, with their titles.
    problems: list[Problem] = []
    found: list[Facts] = []
    for subject in subjects:
        try:
            found.append(known_facts(subject.graph, subject.devices, packages))
        except BadInput as error:
            problems += [_named(subject.title, problem) for problem in error.problems]
    if problems:
        raise BadInput(problems)
    facts = (found[0], found[1])
    both = (subjects[0].graph, subjects[1].graph)
    # On the devices of the first only: the question is whether the step of its run could be used.
    titles = (subjects[0].title, subjects[1].title)
    # Names that are equal, or that overrides follow, would not be read as names in a sentence.
    if titles[0] == titles[1] or any(" " in title for title in titles):
        titles = _TITLES
    recompile = recompile_verdict(both, facts, subjects[0].devices, titles)
    answers = [checkpoint(both, facts, titles), recompile]
    return {
        "quantities": [dataclasses.asdict(quantity) for quantity in quantities(*facts)],
        "charts": charts(subjects, facts, report),
        "verdicts": [dataclasses.asdict(answer) for answer in answers],
    }


def quantities(before: Facts, after: Facts) -> list[Quantity]:
    """Return the numbers of both sides, equal ones included.

    Args:
      before: The facts of the first.
      after: The facts of the second.
    """
    both = dict.fromkeys((before.devices, after.devices))
    on = f"of {' and '.join(both)}"
    return [
        *_parameters(before, after),
        *_bytes("state", before.state_bytes, after.state_bytes),
        _counted("gradients", "state", before, after, "gradient bytes", "bytes"),
        *_bytes("each device", before.bytes_per_device, after.bytes_per_device, on),
        *_compute(before, after),
        *_training(before, after),
        *_arrays(before, after),
    ]


def _parameters(before: Facts, after: Facts) -> list[Quantity]:
    group = "parameters"
    total, total_after = (sum(side.parameters.values()) for side in (before, after))
    mask = "" if before.trainable == after.trainable == "all" else _arrow(before, after)
    return [
        Quantity("parameters", group, total, total_after),
        dataclasses.replace(_counted("trained", group, before, after), note=mask),
        *(
            Quantity(name, group, before.parameters.get(name), after.parameters.get(name))
            for name in dict.fromkeys((*before.parameters, *after.parameters))
        ),
    ]


def _arrow(before: Facts, after: Facts) -> str:
    if before.trainable == after.trainable:
        return before.trainable
    return f"{before.trainable} -> {after.trainable}"


def _bytes(
    group: str, before: Mapping[str, int], after: Mapping[str, int], note: str = ""
) -> list[Quantity]:
    return [
        Quantity("in all", group, sum(before.values()), sum(after.values()), "bytes", note),
        *(
            Quantity(kind, group, before.get(kind), after.get(kind), "bytes")
            for kind in dict.fromkeys((*before, *after))
        ),
    ]


def _compute(before: Facts, after: Facts) -> list[Quantity]:
    found = [
        Quantity(text, "compute", before.flops_per_step[name], after.flops_per_step[name], "FLOPs")
        for name, text in _FLOPS.items()
    ]
    first, second = (
        round(side.flops_per_step["full"] / side.counts["tokens per step"])
        for side in (before, after)
    )
    return [*found, Quantity("model FLOPs per token", "compute", first, second, "FLOPs")]


def _training(before: Facts, after: Facts) -> list[Quantity]:
    group = "training"
    tokens, tokens_after = (
        side.counts["tokens per step"] * side.counts["steps"] for side in (before, after)
    )
    names = ("steps", "rows per step", "tokens per step")
    return [
        *(_counted(name, group, before, after) for name in names),
        Quantity("tokens in all", group, tokens, tokens_after),
    ]


def _counted(
    name: str, group: str, before: Facts, after: Facts, count: str = "", unit: str = ""
) -> Quantity:
    key = count or name
    return Quantity(name, group, before.counts[key], after.counts[key], unit)


def _arrays(before: Facts, after: Facts) -> list[Quantity]:
    """Return the arrays of the model that differ in shape, dtype or layout."""
    # Only the model's arrays: those of the optimizer follow from them, and would double the list.
    # Where the spec differs too, it is shown beside the shape, since one name has one row.
    sides = []
    for facts in (before, after):
        parts = {
            n: a for n, a in facts.arrays.items() if n.startswith(("parameters/", "variables/"))
        }
        arrays = {name: f"{a['dtype']}{a['shape']}" for name, a in parts.items()}
        specs = {name: a["spec"].removeprefix("PartitionSpec") for name, a in parts.items()}
        sides.append((arrays, specs))
    (a, specs_a), (b, specs_b) = sides
    found = []
    for name in sorted({*a, *b}):
        if a.get(name) != b.get(name) or specs_a.get(name) != specs_b.get(name):
            texts: list[Number] = [a.get(name), b.get(name)]
            if specs_a.get(name) != specs_b.get(name) and None not in texts:
                texts = [f"{a[name]} {specs_a[name]}", f"{b[name]} {specs_b[name]}"]
            found.append(Quantity(name, "arrays", texts[0], texts[1]))
    return found


def charts(
    subjects: tuple[EffectSubject, EffectSubject],
    facts: tuple[Facts, Facts],
    report: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Return the curves of both sides, one over the other.

    Args:
      subjects: Both sides; metrics are charted where both are runs.
      facts: The facts of both.
      report: Called with one line about damaged records of metrics; None warns.
    """
    rates = facts_lib.overlaid([side.learning_rates for side in facts])
    found = [_chart(name, name, series) for name, series in rates.items()]
    paths = [s.metrics_path for s in subjects if s.metrics_path is not None]
    if len(paths) == len(subjects):
        recorded = facts_lib.overlaid([facts_lib.metrics(path, report) for path in paths])
        found += [_chart(name, name, series) for name, series in recorded.items()]
    return found


def _chart(title: str, y_label: str, series: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": title,
        "x_label": "step",
        "y_label": y_label,
        "log_y": False,
        "series": series,
    }


def _named(title: str, problem: Problem) -> Problem:
    return dataclasses.replace(problem, what=f"{problem.what} ({title})")
