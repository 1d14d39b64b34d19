"""Compare what steps cost with what they cost before: bytes, collectives, FLOPs.

    python tools/check_budgets.py                    # all budgets whose compiler is installed
    python tools/check_budgets.py quickstart-fsdp    # one
    python tools/check_budgets.py --update           # take what is found as the budgets

A budget is a file of tests/plan/budgets. It holds for the versions of JAX and of the slice's
compiler that it names: other versions compile other programs. A change that costs memory or adds a
collective is told, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = ROOT / "tests" / "plan" / "budgets"
COMMAND = "python tools/check_budgets.py --update"
QUICKSTART = "configs.lm.quickstart"
COMPILERS = {"TpuSlice": "libtpu", "GpuSlice": "jax-cuda13-plugin"}
VERSIONED = ("jax", *COMPILERS.values())


class Planned(NamedTuple):
    """What is planned: an experiment, changed by words, on a slice."""

    experiment: str
    slice: str
    words: tuple[str, ...] = ()


EXPERTS = (
    "model.block.mlp=Experts(num_experts=4, router=TopK(k=2), expert=GatedMlp(hidden_dim=192))",
    "model.block.mlp.dispatch=Capacity(factor=1.25)",
)
ACCELERATED = (
    "fiddler:fsdp",
    "fiddler:tensor(2)",
    "training.global_batch_size=64",
    "any:dtype=bf16",
)
PLANNED = {
    "quickstart-data": Planned(QUICKSTART, "cpu:8"),
    "quickstart-fsdp": Planned(QUICKSTART, "cpu:8", ("fiddler:fsdp",)),
    "quickstart-tensor": Planned(QUICKSTART, "cpu:8", ("fiddler:fsdp", "fiddler:tensor(2)")),
    "quickstart-sequence": Planned(QUICKSTART, "cpu:8", ("fiddler:sequence(4)",)),
    "quickstart-ring": Planned(QUICKSTART, "cpu:8", ("fiddler:ring(4)",)),
    "quickstart-experts": Planned(QUICKSTART, "cpu:8", (*EXPERTS, "fiddler:expert(4)")),
    "quickstart-pipeline": Planned(
        QUICKSTART, "cpu:8", ("fiddler:pipeline(stages=2, microbatches=2)",)
    ),
    "quickstart-v5e": Planned(QUICKSTART, "v5e-4", ACCELERATED),
    "quickstart-v4": Planned(QUICKSTART, "v4-8", ACCELERATED),
    "quickstart-h100": Planned(QUICKSTART, "h100:4", ACCELERATED),
    "pax-c4-1b": Planned("configs.lm.pax_c4", "v4-8"),
}


def found(name: str) -> object:
    """Return the budget that a plan tells now, or a line that says why there is none."""
    from luthier import graph as graphs
    from luthier.plan import plan_apart, targets
    from luthier.plan.budget import Budget

    planned = PLANNED[name]
    slice = targets.read(planned.slice)
    missing = targets.missing_compiler(slice)
    if missing:
        return missing
    graph = graphs.apply(
        graphs.resolve(planned.experiment), planned.words, shelves=("luthier.recipes",)
    )
    return Budget.of(plan_apart(graph, planned.slice))


def versions(name: str) -> dict[str, str]:
    """Return the versions of what compiles a budget's program here."""
    from luthier.plan import targets

    slice = targets.read(PLANNED[name].slice)
    found = {"jax": jax.__version__}
    package = COMPILERS.get(type(slice).__name__)
    if package is not None:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def why_not_compared(name: str) -> str:
    """Return why a budget says nothing of what is compiled here; nothing where it does."""
    kept = json.loads((BUDGETS / f"{name}.json").read_text())
    made, here = {k: kept[k] for k in VERSIONED if k in kept}, versions(name)
    if made == here:
        return ""
    told = [" ".join(f"{k} {v}" for k, v in found.items()) for found in (made, here)]
    return f"not compared: it is of {told[0]}, and here is {told[1]}"


def difference(name: str) -> list[str]:
    """Return what a step costs more than its budget, a line each."""
    from luthier.plan.budget import Budget

    kept = json.loads((BUDGETS / f"{name}.json").read_text())
    values = {key: value for key, value in kept.items() if key not in VERSIONED}
    now = found(name)
    return [] if isinstance(now, str) else Budget.from_dict(values).exceeded(now)


def update(name: str) -> str:
    """Write a budget anew; return what happened."""
    now = found(name)
    if isinstance(now, str):
        return f"not renewed: {now}"
    text = json.dumps({**versions(name), **now.to_dict()}, indent=1, sort_keys=True)
    (BUDGETS / f"{name}.json").write_text(text + "\n")
    return "written"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or renew budgets; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PLANNED))
    parser.add_argument("--update", action="store_true", help="write what is found")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(PLANNED))
    if unknown:
        parser.error(f"there is no budget {unknown[0]}; there are {', '.join(PLANNED)}")
    sys.path.insert(0, str(ROOT))
    failed = False
    for name in options.names or PLANNED:
        if options.update:
            print(f"{name}: {update(name)}", flush=True)
            continue
        skipped = why_not_compared(name)
        lines = [] if skipped else difference(name)
        failed |= bool(lines)
        told = lines or [skipped or "within its budget"]
        print("\n".join(f"{name}: {line}" for line in told), flush=True)
    if failed:
        print(f"if that is meant: {COMMAND}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
