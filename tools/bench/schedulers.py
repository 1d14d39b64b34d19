"""Rungs against random search and a pruner: the best loss over device seconds.

    python tools/bench/schedulers.py --json FILE
    python tools/bench/schedulers.py --seeds 1 --seconds 20     # a smoke run

Every way runs `luthier sweep` on the study `sweeps.rungs`: the same experiment, space, sampler and
device time, and for each seed the same settings in the same order. Ways take turns in each seed.

* ASHA pauses trials at rungs, and promotes the best from their checkpoints.
* random search trains every trial to its end.
* Hyperband is Optuna's pruner, which ends trials for good at the same steps.

Only complete trials count: a loss is that of the full length over the whole held-out set. A row
has the device seconds after which a way was as good as random search of the same seed at its end,
and their ratio to all that random search took; both are empty where that was never reached. All
rows are printed, those that are lost too. The file has the best loss over device seconds as curves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from luthier.study.driver import read_journal
from tools.bench import report

BASELINE = "random search"
WAYS = {
    BASELINE: ("sweeps.rungs:random_search", ()),
    "ASHA": ("sweeps.rungs:study", ()),
    "Hyperband (Optuna)": (
        "sweeps.rungs:random_search",
        (
            "pruner=optuna.pruners.HyperbandPruner("
            "min_resource=40, max_resource=360, reduction_factor=3)",
        ),
    ),
}
Curve = list[tuple[float, float]]
"""(device seconds, best loss) at each complete trial that was better than all before it."""


def sweep(folder: pathlib.Path, name: str, reference: str, words: Sequence[str]) -> pathlib.Path:
    """Run a study; return its journal."""
    command = [sys.executable, "-m", "luthier", "sweep", reference, f"name={name}", *words]
    command += [f"directory={folder}", "base.records.wandb=None", "storage=None"]
    # One cache for all: no way compiles for another one, or only for itself.
    variables = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    journal = folder / name / "journal.jsonl"
    # Exit code 1: no trial is complete, which is a result.
    if done.returncode not in (0, 1) or not journal.exists():
        raise RuntimeError(done.stdout + done.stderr)
    return journal


def curve_of(journal: pathlib.Path) -> tuple[Curve, dict[str, Any]]:
    """Return the curve of a study, and how many trials it had and completed."""
    curve, seconds, counts = Curve(), 0.0, {"trials": 0, "complete": 0}
    for line in read_journal(journal):
        counts["trials"] += line["kind"] == "asked"
        seconds += line.get("device_seconds", 0.0)
        if line["kind"] == "ended" and line["outcome"] == "complete":
            counts["complete"] += 1
            (loss,) = line["values"]
            if not curve or loss < curve[-1][1]:
                curve.append((seconds, loss))
    return curve, counts | {"device seconds": seconds}


def rows_of_seed(seed: int, found: dict[str, tuple[Curve, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each way, compared with random search of the same seed."""
    goal_curve, goal_counts = found[BASELINE]
    goal = goal_curve[-1][1] if goal_curve else float("-inf")
    made = []
    for way, (curve, counts) in found.items():
        reached = next((seconds for seconds, loss in curve if loss <= goal), None)
        ratio = None if reached is None else reached / goal_counts["device seconds"]
        best = curve[-1][1] if curve else None
        row = {"seed": seed, "way": way, "best loss": best, **counts}
        made.append(row | {"as good after, s": reached, "ratio": ratio})
    return made


def medians(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each way: its median ratio, and how often it got there."""
    lines = []
    ordered = sorted(rows, key=lambda row: row["way"])
    for way, own in itertools.groupby(ordered, key=lambda row: row["way"]):
        ratios = [row["ratio"] for row in own]
        # Where it was never reached, the ratio is beyond all others.
        median = statistics.median(float("inf") if ratio is None else ratio for ratio in ratios)
        reached = sum(ratio is not None for ratio in ratios)
        lines.append(
            f"{way}: median ratio {median:.2f}, reached in {reached} of {len(ratios)} seeds"
        )
    return lines


def main() -> None:
    """Run all ways for all seeds; print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=150.0, help="device seconds of a study")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    budget = f"budget.device_hours={options.seconds / 3600}"
    rows, curves = list[dict[str, Any]](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        sweep(folder, "warm", WAYS["ASHA"][0], ["budget.trials=2"])
        for seed in range(options.seeds):
            found = {}
            for number, (way, (reference, words)) in enumerate(WAYS.items()):
                all_words = [*words, budget, f"seed={seed}"]
                found[way] = curve_of(sweep(folder, f"{seed}-{number}", reference, all_words))
                curves.append({"seed": seed, "way": way, "curve": found[way][0]})
            rows += rows_of_seed(seed, found)
            print(json.dumps(rows[-len(WAYS) :]), flush=True)
    settings = {"seeds": options.seeds, "seconds": options.seconds}
    made = report.Report("schedulers", settings, rows, medians(rows))
    print(report.table(made), *made.notes, sep="\n")
    if options.json:
        report.write(made, options.json)
        written = json.loads(options.json.read_text(encoding="utf-8")) | {"curves": curves}
        options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
