"""Compare what steps cost with what they cost before: bytes, collectives, FLOPs.

    python tools/check_budgets.py                    # all budgets whose compiler is installed
    python tools/check_budgets.py quickstart-fsdp    # one
    python tools/check_budgets.py recipes            # every shipped experiment, by shapes: minutes
    python tools/check_budgets.py --update           # take what is found as the budgets
    python tools/check_budgets.py --strict           # fail where the versions are others

A budget is a file of tests/planner/budgets. It holds for the versions of JAX and of the slice's
compiler that it names: other versions compile other programs. A change that costs memory or adds a
collective is told, and the exit code is 1.

To compile every shipped experiment takes hours. What each of them takes by shapes (bytes of state,
gradients and batch on a device of its own mesh, and FLOPs) is in one file, `recipes.json`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools import shipped  # noqa: E402

if TYPE_CHECKING:
    from tools.step_budget import StepBudget

BUDGETS = ROOT / "tests" / "planner" / "budgets"
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
ROWS = ("training.global_batch_size=64", "training.accumulation=1", "evaluations={}")
GPT2, LLAMA = "configs.lm.gpt2_124m", "configs.lm.llama_350m"
SHORT = ("model.num_layers=2", "name=short")
MIXTURE = (
    "name=experts",
    "model.block.mlp=Experts(num_experts=8, router=TopK(k=2), expert=GatedMlp(hidden_dim=2736))",
    "model.block.mlp.dispatch=Capacity(factor=1.25)",
    "fiddler:expert(4)",
)
DROPLESS = (
    *MIXTURE,
    "name=dropless",
    "model.num_layers=2",
    "model.block.mlp.dispatch=Dropless()",
    "fiddler:expert(8)",
)
RESIDUAL = "fiddler:tensor(4, sequence_parallel=True)"
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
    "pax-c4-1b": Planned("configs.pax.c4", "v4-8"),
    # What `fiddler:gpu` and `fiddler:tpu` are for; the short ones are compiled by every CI run.
    "gpt2-h100-short": Planned(GPT2, "h100:1", (*ROWS, "fiddler:gpu", *SHORT)),
    "llama-h100-short": Planned(LLAMA, "h100:8", (*ROWS, "fiddler:fsdp", "fiddler:gpu", *SHORT)),
    # `:cudnn` has no remat policy: the kernel keeps no scores that would have to be computed again.
    "gpt2-h100": Planned(
        f"{GPT2}:cudnn", "h100:1", (*ROWS, "training.global_batch_size=32", "fiddler:gpu")
    ),
    "gpt2-v5e": Planned(GPT2, "v5e-1", (*ROWS, "training.global_batch_size=8", "fiddler:tpu")),
    "llama-h100": Planned(LLAMA, "h100:8", (*ROWS, "fiddler:fsdp", "fiddler:gpu")),
    "llama-v5e": Planned(LLAMA, "v5e-8", (*ROWS, "fiddler:fsdp", "fiddler:tpu")),
    "llama-2xv5e": Planned(
        LLAMA,
        "2xv5e-8",
        (*ROWS, "fiddler:fsdp(8)", "parallelism.mesh.across_slices.data=2", "fiddler:tpu"),
    ),
    "residual-v5e": Planned(
        LLAMA,
        "v5e-8",
        (*ROWS, RESIDUAL, "fiddler:tpu", "model.num_layers=4", "name=residual"),
    ),
    # Without kernels: the loops over blocks of plain XLA, with heads split by an exchange.
    "exchange-h100": Planned(
        LLAMA, "h100:8", (*ROWS, "fiddler:all_to_all(4)", "model.num_layers=2", "name=exchange")
    ),
    # With them: their abstract forms must keep the heads split, which toys on CPUs do not show.
    "exchange-kernels-h100": Planned(
        LLAMA,
        "h100:8",
        (*ROWS, "fiddler:all_to_all(4)", "fiddler:gpu", "model.num_layers=2", "name=exchange"),
    ),
    "experts-h100": Planned(LLAMA, "h100:8", (*ROWS, *MIXTURE, "fiddler:gpu")),
    "experts-v5e": Planned(LLAMA, "v5e-8", (*ROWS, *MIXTURE, "fiddler:tpu")),
    "dropless-h100": Planned(LLAMA, "h100:8", (*ROWS, *DROPLESS, "fiddler:gpu")),
    "dropless-v5e": Planned(LLAMA, "v5e-8", (*ROWS, *DROPLESS, "fiddler:tpu")),
}
ACCELERATED_PROGRAMS = (
    *("gpt2-h100", "llama-h100", "experts-h100"),
    *("gpt2-v5e", "llama-v5e", "experts-v5e", "llama-2xv5e"),
)
"""Budgets of whole models with the settings of their devices, for the page on performance."""

RECIPES = "recipes"
"""The budget of all shipped experiments, by shapes."""

NAMES = (*PLANNED, RECIPES)


def found(name: str) -> object:
    """Return the budget that a plan tells now, or a line that says why there is none."""
    from luthier import graph as graphs
    from luthier.planner import plan_apart, targets
    from tools.step_budget import StepBudget

    planned = PLANNED[name]
    slice = targets.read(planned.slice)
    missing = targets.missing_compiler(slice)
    if missing:
        return missing
    graph = graphs.apply(
        graphs.resolve(planned.experiment), planned.words, shelves=("luthier.recipes",)
    )
    return StepBudget.of(plan_apart(graph, planned.slice))


def recipes(references: Sequence[str]) -> dict[str, StepBudget | str]:
    """Return what shipped experiments take by shapes, or how they are refused, by reference.

    Args:
      references: The experiments.

    Raises:
      RuntimeError: One of them cannot be planned.
    """
    from tools.step_budget import StepBudget

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = dict(zip(references, pool.map(shipped.report_by_shapes, references), strict=True))
    return {
        reference: report
        if isinstance(report, str)
        else StepBudget(
            experiment=report["subject"]["experiment"],
            slice=report["subject"]["slice"],
            bytes_per_device=report["memory"]["bytes_per_device"],
            collectives={},
            flops=report["flops"],
        )
        for reference, report in reports.items()
    }


def difference_of_recipes(now: Mapping[str, StepBudget | str]) -> list[str]:
    """Return what shipped experiments take more than `recipes.json` allows, a line each.

    Args:
      now: What they take, or how they are refused, by reference.
    """
    from tools.step_budget import StepBudget

    lines_of = []
    kept = json.loads((BUDGETS / f"{RECIPES}.json").read_text())
    for reference, budget in now.items():
        before = kept.get(reference)
        if before is None:
            lines_of.append(f"{reference}: has no budget")
        elif isinstance(budget, str) or isinstance(before, str):
            is_new = isinstance(budget, str) and budget != before
            lines_of += [f"{reference}: is refused: {budget}"] if is_new else []
        elif before["slice"] != budget.slice:
            lines_of.append(f"{reference}: is of {budget.slice}, its budget of {before['slice']}")
        else:
            lines = StepBudget.from_dict(before).exceeded(budget)
            lines_of += [f"{reference}: {line}" for line in lines]
    return lines_of


def versions(name: str) -> dict[str, str]:
    """Return the versions of what compiles a budget's program here."""
    from luthier.planner import targets

    if name == RECIPES:
        return {"jax": jax.__version__}
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
    shown = [" ".join(f"{k} {v}" for k, v in found.items()) for found in (made, here)]
    return f"not compared: it is of {shown[0]}, and here is {shown[1]}"


def difference(name: str) -> list[str]:
    """Return what a step costs more than its budget, a line each."""
    from tools.step_budget import StepBudget

    if name == RECIPES:
        return difference_of_recipes(recipes(shipped.references()))
    kept = json.loads((BUDGETS / f"{name}.json").read_text())
    values = {key: value for key, value in kept.items() if key not in VERSIONED}
    now = found(name)
    return [] if isinstance(now, str) else StepBudget.from_dict(values).exceeded(now)


def update(name: str) -> str:
    """Write a budget anew; return what happened."""
    if name == RECIPES:
        every = recipes(shipped.references())
        content = {k: v if isinstance(v, str) else v.to_dict() for k, v in every.items()}
    else:
        now = found(name)
        if isinstance(now, str):
            return f"not renewed: {now}"
        content = now.to_dict()
    text = json.dumps({**versions(name), **content}, indent=1, sort_keys=True)
    (BUDGETS / f"{name}.json").write_text(text + "\n")
    return "written"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or renew budgets; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--update", action="store_true", help="write what is found")
    parser.add_argument(
        "--strict", action="store_true", help="fail where a budget cannot be compared"
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no budget {unknown[0]}; there are {', '.join(NAMES)}")
    failed = False
    for name in options.names or NAMES:
        if options.update:
            print(f"{name}: {update(name)}", flush=True)
            continue
        skipped = why_not_compared(name)
        lines = [] if skipped else difference(name)
        failed |= bool(lines) or (options.strict and bool(skipped))
        shown = lines or [skipped or "within its budget"]
        print("\n".join(f"{name}: {line}" for line in shown), flush=True)
    if failed:
        print(f"if that is meant: {COMMAND}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
