"""A study in Weights & Biases: beside the run of each trial, one that sums them all up.

It is written by a process of its own that imports wandb, as the mirror of a run is: the driver
never does.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.graph import Graph
from luthier.records import Mirrored, Summary, Wandb, mirror_summary
from luthier.records.weights_and_biases import SummaryWriter, id_of_summary, resolved_mode
from luthier.study.driver.trial_table import Trial
from luthier.study.views.text import StudyStatus


def mirror_study(
    directory: pathlib.Path, graph: Graph, standing: StudyStatus, pages: Mapping[str, str]
) -> Mirrored | None:
    """Write the W&B run that summarizes a study, or replace it.

    It is in the group of the trials' runs, and goes where they go.

    Args:
      directory: The study's folder.
      graph: The study's graph.
      standing: Its status.
      pages: Title and path of HTML pages that go with it.

    Returns:
      Where it is; None where the experiment is not mirrored.

    Raises:
      RunError: It cannot be done; the message has the reason.
    """
    node = wandb_of(graphs.get(graph, "base"))
    if node is None:
        return None
    return mirror_summary(node, directory, summary_of(graph, standing, node, pages))


@contextlib.contextmanager
def summary_process(directory: pathlib.Path, graph: Graph) -> Iterator[Write | None]:
    """Start the process that writes the W&B run of a study; it imports wandb within the context.

    Args:
      directory: The study's folder.
      graph: The study's graph.

    Yields:
      A function like `mirror_study`, from the status and the pages to where the run is; None where
      the experiment is not mirrored.
    """
    node = wandb_of(graphs.get(graph, "base"))
    if node is None or resolved_mode(node.mode) == "off":
        yield None
        return
    with SummaryWriter(node, directory) as writer:
        yield lambda standing, pages: writer.write(summary_of(graph, standing, node, pages))


Write = Callable[[StudyStatus, Mapping[str, str]], Mirrored]


def reserve_summary(directory: pathlib.Path, base: Graph) -> str:
    """Return the id of the W&B run that will summarize a study, for the runs of its trials.

    Args:
      directory: The study's folder.
      base: The base experiment of the study.

    Returns:
      The id; empty where the experiment is not mirrored.
    """
    node = wandb_of(base)
    is_off = node is None or resolved_mode(node.mode) == "off"
    return "" if is_off else id_of_summary(directory)


def wandb_of(base: Graph) -> Wandb | None:
    """Return how the runs of an experiment are mirrored; None where they are not.

    Args:
      base: The base experiment of the study.
    """
    try:
        node = graphs.get(base, "records.wandb")
    except BadInput:
        return None
    found = graphs.build(node)
    return found if isinstance(found, Wandb) else None


def summary_of(
    graph: Graph, standing: StudyStatus, node: Wandb, pages: Mapping[str, str]
) -> Summary:
    """Return the summary of a study for W&B.

    Args:
      graph: The study's graph.
      standing: Its status.
      node: How the trials' runs are mirrored.
      pages: Title and path of HTML pages that go with it.
    """
    # A table with a row for each trial, and a history with a step for each *complete* one: the best
    # so far is a curve in W&B only if it is logged step by step, in the order of the trials.
    ledger = standing.ledger
    settings = [_settings(standing, trial) for trial in ledger.trials]
    paths = list(dict.fromkeys(path for found in settings for path in found))
    rows, history = [], []
    best: dict[str, float] = {}
    for trial, found in zip(ledger.trials, settings, strict=True):
        values = _values(standing, trial)
        row = [trial.number, trial.state, *[values.get(name) for name in standing.metrics]]
        rows.append([*row, *[found.get(path) for path in paths], trial.reason])
        if trial.state == "complete" and values and trial.is_feasible:
            best |= _better(standing, best, values)
            objectives = {f"objectives/{name}": value for name, value in values.items()}
            so_far = {f"best/{name}": value for name, value in best.items()}
            history.append({"trial": trial.number, **objectives, **so_far})
    # `best` is of each objective by itself, and its values may come from different trials. One
    # trial is named only where it is the best alone: with several objectives, there may be several
    # that no other beats.
    found_best = standing.best()
    facts: dict[str, Any] = {
        "device_hours": ledger.device_seconds / 3600,
        "trials": len(ledger.trials),
        **{f"trials_{state}": n for state in _STATES if (n := ledger.count(state))},
        **{f"best/{name}": value for name, value in best.items()},
    }
    if len(found_best) == 1:
        facts["best_trial"] = found_best[0].number
    directions = dict(zip(standing.metrics, standing.directions, strict=True))
    return Summary(
        name=standing.name,
        group=node.group or standing.name,
        config=graphs.to_dict(graph),
        columns=["trial", "state", *standing.metrics, *paths, "reason"],
        rows=rows,
        history=history,
        key="trial",
        better={f"objectives/{name}": direction for name, direction in directions.items()},
        facts=facts,
        pages=pages,
    )


_STATES = ("complete", "pruned", "infeasible", "failed")


def _settings(standing: StudyStatus, trial: Trial) -> dict[str, str]:
    """Return the values that a trial sets, by path; other overrides by their own text."""
    found = {}
    for word in standing.ledger.settings[trial.setting].words:
        path, equals, value = word.partition("=")
        found[path if equals else word] = value if equals else "yes"
    return found


def _values(standing: StudyStatus, trial: Trial) -> dict[str, float]:
    if trial.values is None:
        return {}
    named = zip(standing.metrics, trial.values, strict=True)
    return {name: value for name, value in named if math.isfinite(value)}


def _better(
    standing: StudyStatus, best: Mapping[str, float], values: Mapping[str, float]
) -> dict[str, float]:
    found = {}
    for name, direction in zip(standing.metrics, standing.directions, strict=True):
        if name in values:
            choose = min if direction == "lower" else max
            found[name] = choose(values[name], best.get(name, values[name]))
    return found
