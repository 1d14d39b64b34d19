"""The experiments that are shipped, and what planning them by shapes tells."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
FITS_OR_NOT = (0, 2)  # that an experiment does not fit a device is no fault of the plan


def references() -> list[str]:
    """Return the shipped experiments, by their module and function."""
    found = []
    for path in sorted((ROOT / "configs").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        module = importlib.import_module(name)
        for function, value in vars(module).items():
            is_own = inspect.isfunction(value) and value.__module__ == name
            if is_own and not function.startswith("_") and _needs_nothing(value):
                found.append(f"{name}:{function}")
    return found


def _needs_nothing(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return all(parameter.default is not parameter.empty for parameter in parameters)


def devices_of(reference: str) -> int:
    """Return how many devices the mesh of an experiment asks for."""
    from luthier import graph as graphs
    from luthier.parallel.slices import AXES

    graph = graphs.resolve(reference)
    mesh = graphs.build(graphs.get(graph, "parallelism.mesh"))
    sizes = [getattr(mesh, axis) for axis in AXES]
    return math.prod(size for size in (*sizes, *mesh.across_slices.sizes().values()) if size > 0)


def by_shapes(reference: str, slice: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Plan an experiment by shapes, as a user does: in a process of its own.

    Args:
      reference: The experiment.
      slice: The slice.
      words: More of the command line.

    Returns:
      The process, ended.
    """
    command = [sys.executable, "-m", "luthier", "plan", reference, "--level", "shapes"]
    left_out = "PYTHONDONTWRITEBYTECODE"  # whoever installs luthier has its modules compiled
    environment = {name: value for name, value in os.environ.items() if name != left_out}
    return subprocess.run(
        [*command, "--slice", slice, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def report_by_shapes(reference: str) -> dict[str, Any] | str:
    """Return the report of an experiment on as many devices as its mesh asks for.

    Args:
      reference: The experiment.

    Returns:
      The report, or the line by which the plan refuses the experiment as it is.

    Raises:
      RuntimeError: The plan ends otherwise.
    """
    done = by_shapes(reference, f"cpu:{devices_of(reference)}", "--json")
    if done.returncode not in FITS_OR_NOT:
        raise RuntimeError(f"{reference}: exit code {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout) if done.stdout else done.stderr.strip()
