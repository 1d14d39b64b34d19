"""Measure how near policies of precision train to float32: losses of a small model, on one CPU.

    python tools/bench/precision.py                    # all policies, about five minutes
    python tools/bench/precision.py --json tools/bench/results/precision.json

Each policy trains the same rows in the same order through `luthier.train`. A row has the mean loss
of the last 20 of 100 steps, and its difference from that of float32 as a share of it. Another seed
stands beside them: differences that are smaller than its own may be chance.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Sequence

from report import Report, table, write

EXPERIMENT = "configs.lm.quickstart"
STEPS, LAST = 100, 20
SMALL = (
    "model.dim=32",
    "model.num_layers=2",
    "data.length=32",
    "training.global_batch_size=8",
    f"training.steps={STEPS}",
    "evaluations={}",
    "checkpoints=None",
    "records.wandb=None",
)
B2 = "b2 = 0.95"
SECOND_MOMENT = ("optimizer.b2=0.95",)
REFERENCE = "float32"
ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (REFERENCE, (), REFERENCE),
    ("`bf16`", ("fiddler:bf16",), REFERENCE),
    ("`bf16_masters`", ("fiddler:bf16_masters",), REFERENCE),
    ("`int8`", ("fiddler:int8",), REFERENCE),
    ("`int8(gradient=int8)`", ("fiddler:int8(gradient=int8)",), REFERENCE),
    ("`fp8`", ("fiddler:fp8",), REFERENCE),
    ("`bf16 int8`", ("fiddler:bf16", "fiddler:int8"), REFERENCE),
    ("`bf16 fp8`", ("fiddler:bf16", "fiddler:fp8"), REFERENCE),
    (
        "`bf16_masters fp8 store_optimizer(bfloat16, 'first_moment')`",
        (
            "fiddler:bf16_masters",
            "fiddler:fp8",
            "fiddler:store_optimizer(bfloat16, 'first_moment')",
        ),
        REFERENCE,
    ),
    (f"float32, {B2}", SECOND_MOMENT, f"float32, {B2}"),
    (
        f"`bf16_masters store_optimizer(bfloat16)`, {B2}",
        ("fiddler:bf16_masters", "fiddler:store_optimizer(bfloat16)", *SECOND_MOMENT),
        f"float32, {B2}",
    ),
    ("another seed, with other parameters and rows", ("seed=1",), REFERENCE),
)
"""Names, overrides, and the row that each is compared with."""


def mean_loss(overrides: Sequence[str]) -> float:
    """Train the small model; return the mean loss of its last steps."""
    import jax

    import luthier

    with tempfile.TemporaryDirectory() as folder:
        words = [*SMALL, f"records.directory={folder}", *overrides]
        graph = luthier.graph.apply(luthier.experiment(EXPERIMENT), words)
        luthier.train(graph, devices=jax.devices()[:1])
        _, losses = luthier.runs(folder, last=1)[0].curve("loss")
    if len(losses) != STEPS:
        raise RuntimeError(f"{len(losses)} losses were recorded in {STEPS} steps")
    return float(losses[-LAST:].mean())


def main() -> int:
    """Measure, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path, help="also write the table here")
    arguments = parser.parse_args()
    losses = dict[str, float]()
    rows = []
    for name, overrides, reference in ROWS:
        losses[name] = mean_loss(overrides)
        share = losses[name] / losses[reference] - 1
        rows.append({"policy": name, "loss": losses[name], "relative": share})
    settings = {"experiment": EXPERIMENT, "overrides": SMALL, "steps": STEPS, "last": LAST}
    made = Report("precision", settings, rows)
    print(table(made))
    if arguments.json:
        write(made, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
