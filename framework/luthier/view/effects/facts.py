"""Facts that follow from an experiment (sizes, FLOPs, schedules), and curves that it recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from luthier import graph as graphs
from luthier import planner
from luthier.errors import BadInput, Problem
from luthier.graph import Graph
from luthier.optim import Optimizer
from luthier.parallel.bytes import array_bytes
from luthier.planner.checks import trained
from luthier.program import Experiment
from luthier.records.events import PERFORMANCE, Evaluation, Step
from luthier.records.metrics_file import read_events
from luthier.records.source import hash_package
from luthier.storage import replacing

NUM_POINTS = 200
"""The largest number of points of a schedule; recorded metrics have up to twice as many."""

_NOT_SHOWN = frozenset({*PERFORMANCE, "tokens", "epochs", "learning_rate"})


def learning_rates(optimizer: Optimizer, steps: int) -> dict[str, list[tuple[int, float]]]:
    """Return the schedules of an optimizer, sampled over a run.

    Args:
      optimizer: An `Optimizer`.
      steps: Optimizer steps of the run.

    Returns:
      Points (step, value), float, by the schedule's name: `learning rate`, and the names of the
      parts that follow another one. Both ends are in it, and every step of a short run.
    """
    named = {"learning rate": optimizer.learning_rate, **optimizer.learning_rates}
    last = max(steps - 1, 0)
    at = np.unique(np.linspace(0, last, min(NUM_POINTS, last + 1)).round().astype(np.int32))
    found = {}
    for name, schedule in named.items():
        values = np.broadcast_to(np.asarray(schedule(jnp.asarray(at)), np.float64), at.shape)
        found[name] = [(int(step), float(value)) for step, value in zip(at, values, strict=True)]
    return found


def metrics(
    path: str | os.PathLike[str], report: Callable[[str], None] | None = None
) -> dict[str, list[tuple[int, float]]]:
    """Return the curves that a run recorded, by the names of metrics.

    Args:
      path: Its metrics.jsonl; a missing file has no curves.
      report: Called with one line about damaged lines, which are skipped; None warns.

    Returns:
      Points (step, value) of the training steps' values (`loss`) and of each evaluation
      (`held_out/loss`), without measurements of speed; NaN and infinities are skipped.

    Raises:
      RunError: The file cannot be read.
      VersionError: It was written by a later luthier.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    # A step comes only once: a run that resumes cuts its metrics back to the restored checkpoint.
    for _, step, event in read_events(path, report):
        if isinstance(event, Step):
            # Learning rates have a chart from their schedules; tokens and epochs only count steps.
            values = {n: v for n, v in event.values.items() if n not in _NOT_SHOWN}
        elif isinstance(event, Evaluation):
            values = {f"{event.name}/{name}": value for name, value in event.values.items()}
        else:
            continue
        for name, value in values.items():
            if math.isfinite(value):
                found.setdefault(name, []).append((step, float(value)))
    return {name: _thinned(points) for name, points in found.items()}


def overlaid(
    curves: Sequence[Mapping[str, Sequence[tuple[float, float]]]],
) -> dict[str, list[dict[str, Any]]]:
    """Return the curves of two sides as series of charts, one chart for each name.

    Args:
      curves: The points of each side by name.

    Returns:
      For every name that a side has, `{"side", "name", "points"}` of the sides that have it.
    """
    names = dict.fromkeys(name for side in curves for name in side)
    return {
        name: [
            {"side": side, "name": name, "points": [list(point) for point in found[name]]}
            for side, found in enumerate(curves)
            if name in found
        ]
        for name in names
    }


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return as many points as a chart can show: the mean of each stretch, at its last step."""
    # Means, since single points of a noisy loss would depend on where the cuts happen to fall.
    most = 2 * NUM_POINTS
    if len(points) <= most:
        return points
    edges = np.linspace(0, len(points), most + 1).round().astype(int)
    stretches = [points[start:end] for start, end in itertools.pairwise(edges)]
    return [
        (stretch[-1][0], sum(value for _, value in stretch) / len(stretch)) for stretch in stretches
    ]


# Cache of facts, in the user's cache folder. Facts take seconds to compute, because the step is
# lowered for them, and a diff is often repeated.

_FORMAT = 2


def folder() -> pathlib.Path:
    """Return the folder of the cache; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    cache = pathlib.Path(root) if os.path.isabs(root) else pathlib.Path.home() / ".cache"
    return cache / "luthier" / "effects"


def known_facts(graph: Graph, devices: Sequence[jax.Device], packages: Sequence[str] = ()) -> Facts:
    """Return the facts of an experiment, from the cache where it has them.

    Args:
      graph: An experiment graph.
      devices: The devices that it would run on.
      packages: The user's packages, which it may name and whose code the facts depend on.

    Raises:
      BadInput: It is not an experiment, or cannot run on these devices.
    """
    # Any file that cannot be read as facts counts as a miss: it may be damaged, or of a luthier
    # whose facts had other fields.
    path = folder() / f"{_key(graph, devices, packages)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Facts(**json.loads(path.read_text(encoding="utf-8")))
    facts = facts_of(graph, devices, packages)
    with contextlib.suppress(OSError):  # a cache that cannot be written is no error
        _write(path, json.dumps(dataclasses.asdict(facts)))
    return facts


def _key(graph: Graph, devices: Sequence[jax.Device], packages: Sequence[str]) -> str:
    """Return the key of facts: equal for equal graphs, devices and code."""
    # Facts depend on code as much as on the graph: a layer that was edited has other FLOPs.
    code = [hash_package(name) for name in ("luthier", *packages)]
    hardware = [len(devices), devices[0].device_kind]
    content = [_FORMAT, graphs.fingerprint(graph), hardware, jax.__version__, code]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _write(path: pathlib.Path, text: str) -> None:
    """Write a file at once, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode())


# Facts of one graph, computed without making an array of its state.

Points = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts that follow from an experiment on devices; plain values, which a file can hold.

    Args:
      devices: The number and kind of the devices.
      mesh: Size of every mesh axis.
      parameters: Scalars of the model, by the first part of the parameter's name.
      trainable: The mask of the trained parameters, as text.
      counts: `trained` scalars, `gradient bytes` of all that is trained, `steps` of the run, `rows
        per step`, and `tokens per step`, the positions that can be predicted.
      state_bytes: Bytes of the whole state by kind (parameters, optimizer, ...), replicas once.
      bytes_per_device: Bytes on one device by kind, gradients and the batch too.
      arrays: Every array of the state by name: its `shape`, `dtype`, and `spec` over the mesh.
      batch: Shape and dtype of every entry of a global batch, as text.
      flops_per_step: FLOPs of one step: `full`, `causal`, `six_n` and `hardware`.
      learning_rates: Points (step, value) of every schedule by its name.
      step: A hash of the lowered step, the compiler's input.
    """

    devices: str
    mesh: Mapping[str, int]
    parameters: Mapping[str, int]
    trainable: str
    counts: Mapping[str, int]
    state_bytes: Mapping[str, int]
    bytes_per_device: Mapping[str, int]
    arrays: Mapping[str, Mapping[str, Any]]
    batch: Mapping[str, str]
    flops_per_step: Mapping[str, int]
    learning_rates: Mapping[str, Points]
    step: str


def is_experiment(graph: Graph) -> bool:
    """Return whether a graph describes an experiment, of which there are effects."""
    return getattr(graph, "__fn_or_cls__", None) is Experiment


def facts_of(graph: Graph, devices: Sequence[jax.Device], packages: Sequence[str] = ()) -> Facts:
    """Compute the facts of an experiment; its state is evaluated abstractly.

    Args:
      graph: An experiment graph.
      devices: The devices that it would run on.
      packages: The user's packages, which it may name.

    Raises:
      BadInput: It is not an experiment, or cannot run on these devices.
    """
    if not is_experiment(graph):
        raise BadInput(Problem("effects are those of an experiment, and this graph is of another"))
    graphs.validate(graph, packages)
    plan = planner.make(graph, devices)
    program = plan.program
    experiment = program.experiment
    state_bytes: dict[str, int] = {}
    for name, placement in program.placements.items():
        kind = name.partition("/")[0]  # placements are named KIND/PATH, as parameters/embedding
        size = array_bytes(placement.shape, placement.dtype)
        state_bytes[kind] = state_bytes.get(kind, 0) + size
    flops = dataclasses.asdict(plan.model_flops) | {"hardware": plan.hardware_flops}
    mask = experiment.training.trainable
    # Masks, dtypes and specs become texts: the cache keeps facts as JSON, and views only compare
    # and show them.
    return Facts(
        devices=f"{len(devices)} x {devices[0].device_kind}",
        mesh=dict(program.sizes),
        parameters=dict(plan.parameters_by_subtree),
        trainable="all" if mask is None else str(mask),
        counts={
            "trained": plan.trained_parameters,
            "gradient bytes": sum(array_bytes(p.shape, p.dtype) for p in trained(program)),
            "steps": experiment.training.steps,
            "rows per step": experiment.training.global_batch_size,
            "tokens per step": plan.tokens_per_step,
        },
        state_bytes=state_bytes,
        bytes_per_device=dict(plan.bytes_per_device),
        arrays={
            name: {
                "shape": list(placement.shape),
                "dtype": jnp.dtype(placement.dtype).name,
                "spec": str(placement.spec),
            }
            for name, placement in program.placements.items()
        },
        batch={name: f"{entry.dtype}{list(entry.shape)}" for name, entry in program.batch.items()},
        flops_per_step=flops,
        learning_rates=learning_rates(experiment.optimizer, experiment.training.steps),
        # The text that the compiler gets: equal texts, equal programs. Lowering takes seconds and
        # no device.
        step=hashlib.sha256(program.traced_step.lower().as_text().encode()).hexdigest(),
    )
