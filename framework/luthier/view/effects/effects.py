"""What follows from the difference of two experiments, as the JSON that views and pages read."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from luthier.errors import BadInput, Problem
from luthier.view.effects import curves, verdicts
from luthier.view.effects.facts import Facts
from luthier.view.effects.kept import known_facts

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
      name: What it counts.
      group: What it stands with.
      before: Of the first side; None where there is none.
      after: Of the second side; None where there is none.
      unit: `bytes`, `FLOPs`, or empty for a count or a text.
      note: What else should be known of it.
    """

    name: str
    group: str
    before: Number
    after: Number
    unit: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Subject:
    """One side, as the effects need it.

    Args:
      title: What it is called, for messages.
      graph: Its experiment graph.
      devices: What it would run on.
      metrics_path: The metrics.jsonl of the run that it is; None where it is none.
    """

    title: str
    graph: Any
    devices: Sequence[jax.Device]
    metrics_path: str | os.PathLike[str] | None = None


def effects(
    subjects: tuple[Subject, Subject],
    packages: Sequence[str] = (),
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Work out what follows from the difference of two experiments.

    The state is evaluated abstractly, and what was worked out before is read from a cache.

    Args:
      subjects: Both sides.
      packages: The user's packages that the graphs are made of.
      report: Is given one line about what is damaged in a record of metrics; None warns.

    Returns:
      `{"quantities": [...], "charts": [...], "verdicts": [...]}`, plain JSON values.

    Raises:
      BadInput: A side is not an experiment, or cannot run on its devices; says which.
    """
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
    recompile = verdicts.recompile(both, facts, subjects[0].devices)
    answers = [verdicts.checkpoint(both, facts), recompile]
    return {
        "quantities": [dataclasses.asdict(quantity) for quantity in quantities(*facts)],
        "charts": charts(subjects, facts, report),
        "verdicts": [dataclasses.asdict(answer) for answer in answers],
    }


def quantities(before: Facts, after: Facts) -> list[Quantity]:
    """Return the numbers of both sides, those that are equal too.

    Args:
      before: What follows from the first.
      after: What follows from the second.
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
    sides = []
    for facts in (before, after):
        parts = {
            n: a for n, a in facts.arrays.items() if n.startswith(("parameters/", "variables/"))
        }
        told = {name: f"{a['dtype']}{a['shape']}" for name, a in parts.items()}
        specs = {name: a["spec"].removeprefix("PartitionSpec") for name, a in parts.items()}
        sides.append((told, specs))
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
    subjects: tuple[Subject, Subject],
    facts: tuple[Facts, Facts],
    report: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Return the curves of both sides, one over the other.

    Args:
      subjects: Both sides; metrics are charted where both are runs.
      facts: What follows from them.
      report: Is given one line about what is damaged in a record of metrics; None warns.
    """
    rates = curves.overlaid([side.learning_rates for side in facts])
    found = [_chart(name, name, series) for name, series in rates.items()]
    paths = [s.metrics_path for s in subjects if s.metrics_path is not None]
    if len(paths) == len(subjects):
        recorded = curves.overlaid([curves.metrics(path, report) for path in paths])
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
