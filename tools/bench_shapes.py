"""Measure what planning by shapes takes, process start included, for every shipped experiment.

python tools/bench_shapes.py                          # all of them: some minutes
python tools/bench_shapes.py configs.lm.quickstart    # one

Each is planned for as many devices as its mesh asks for. Prints processor seconds, which other work
on the machine hardly changes, and seconds on the clock. Exit code 1 where a plan takes more
processor seconds than its limit, or ends otherwise than it should.
"""

from __future__ import annotations

import argparse
import inspect
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT = 3.0
FITS_OR_NOT = (0, 2)  # that an experiment does not fit a device is no fault of the plan


def references() -> list[str]:
    """Return the shipped experiments, by their module and function."""
    import importlib

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
    import math

    from luthier import graph as graphs

    graph = graphs.resolve(reference)
    mesh = graphs.build(graphs.get(graph, "parallelism.mesh"))
    sizes = [getattr(mesh, axis) for axis in ("stage", "replica", "data", "fsdp", "expert")]
    sizes += [mesh.sequence, mesh.tensor, *mesh.across_slices.sizes().values()]
    return math.prod(size for size in sizes if size > 0)


def measured(reference: str, num_devices: int) -> tuple[float, float, int, str]:
    """Return processor seconds, seconds on the clock, the exit code and the last line."""
    words = [sys.executable, "-m", "luthier", "plan", reference, "--level", "shapes"]
    left_out = "PYTHONDONTWRITEBYTECODE"  # whoever installs luthier has its modules compiled
    environment = {name: value for name, value in os.environ.items() if name != left_out}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [*words, "--slice", f"h100:{num_devices}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = (done.stdout + done.stderr).strip().splitlines() or [""]
    return used, seconds, done.returncode, lines[-1]


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("references", nargs="*", metavar="REF")
    named = parser.parse_args().references
    sys.path.insert(0, str(ROOT))
    failed, slowest = 0, 0.0
    for reference in named or references():
        used, seconds, code, line = measured(reference, devices_of(reference))
        slowest = max(slowest, used)
        failed += used > LIMIT or code not in FITS_OR_NOT
        told = "" if code in FITS_OR_NOT else f": exit code {code}: {line}"
        print(f"{used:5.2f} s  {seconds:5.1f} s on the clock  {reference}{told}", flush=True)
    print(f"the slowest took {slowest:.2f} processor seconds; {failed} beyond {LIMIT:g}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
