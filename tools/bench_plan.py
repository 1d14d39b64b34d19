"""Compare the analytic model of memory with compilers, and tell what planning costs.

python tools/bench_plan.py                     # all that the installed compilers can do: an hour
python tools/bench_plan.py llama2_7b-h100:8    # one of them

Prints a table: what a step needs on each device by the compiler and by the model, how far they are
apart, the least time of a step, and processor seconds. What was compiled before is not compiled
again. Exit code 1 where the model is off by more than its limit.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT = 0.1
FULL = "model.stack=luthier.layers.Scanned(remat=luthier.layers.FullRemat())"
DOTS = "model.stack=luthier.layers.Scanned(remat=luthier.layers.SaveProjections())"
BF16 = "model.dtype=bf16"

# Recipe, rows of a step, tokens of a row, slice, and what is changed.
CASES: dict[str, tuple[str, int, int, str, list[str]]] = {
    # The model's factors were chosen by these six.
    "pax_1b-v4-8": ("pax_1b", 128, 1024, "v4-8", [FULL, BF16]),
    "pax_1b-v4-8-float32": ("pax_1b", 128, 1024, "v4-8", [FULL]),
    "pax_1b-h100:8": ("pax_1b", 32, 1024, "h100:8", [BF16]),
    "llama2_7b-h100:8": ("llama2_7b", 16, 4096, "h100:8", [FULL, BF16]),
    "llama2_7b-h100:8-float32": ("llama2_7b", 16, 4096, "h100:8", [FULL]),
    "llama2_7b-h100:8-dots": ("llama2_7b", 16, 2048, "h100:8", [DOTS, BF16]),
    # They were not chosen by these.
    "llama2_7b-h100:8-tensor": (
        "llama2_7b", 16, 4096, "h100:8", [FULL, BF16, "parallelism.mesh.tensor=4"],
    ),
    "llama2_7b-h100:8-accumulation": (
        "llama2_7b", 64, 4096, "h100:8", [FULL, BF16, "training.accumulation=4"],
    ),
    "llama2_7b-h100:8-large": ("llama2_7b", 256, 4096, "h100:8", [FULL, BF16]),
    "pax_16b-v4-16": ("pax_16b", 128, 1024, "v4-16", [FULL, BF16]),
    "pax_16b-v4-64": ("pax_16b", 512, 1024, "v4-64", [FULL, BF16, "parallelism.mesh.tensor=2"]),
    "pax_gpt3_175b-v5p-1024": (
        "pax_gpt3_175b", 512, 2048, "v5p-1024",
        [FULL, BF16, "parallelism.mesh.tensor=8", "model.embedding.pad_to_multiple=128"],
    ),
}  # fmt: skip


def experiment(recipe: str, rows: int, tokens: int, overrides: list[str]) -> Any:
    """Return an experiment with a model of a recipe, on the quickstart's data."""
    from luthier import graph
    from luthier.recipes import decoders

    made = graph.resolve("configs.lm.quickstart")
    made.name, made.model = recipe.replace("_", "-"), getattr(decoders, recipe)()
    made.data.length, made.training.global_batch_size = tokens, rows
    for evaluation in made.evaluations.values():
        evaluation.global_batch_size = rows
    return graph.apply(made, ["parallelism.mesh.fsdp=-1", "parallelism.mesh.data=1", *overrides])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    names = parser.parse_args().cases or list(CASES)
    sys.path.insert(0, str(ROOT))
    from luthier.parallel import format_bytes
    from luthier.plan import plan_apart, targets

    worst = 0.0
    print("| case | slice | compiler | model | off by | a step | bound by | CPU |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        recipe, rows, tokens, target, overrides = CASES[name]
        missing = targets.missing_compiler(targets.read(target))
        if missing:
            print(f"{name}: {missing}", file=sys.stderr)
            continue
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        report = plan_apart(experiment(recipe, rows, tokens, overrides), target)
        seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        needed, estimated = report.memory.needed_bytes, report.memory.estimated_bytes
        off = estimated / needed - 1
        worst = max(worst, abs(off))
        told = [format_bytes(needed), format_bytes(estimated), f"{off:+.1%}"]
        told += [f"{report.step['step_seconds']:.3g} s", report.step["binding"], f"{seconds:.0f} s"]
        print(f"| {name} | {target} | {' | '.join(told)} |", flush=True)
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
