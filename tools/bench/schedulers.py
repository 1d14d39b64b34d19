"""Rungs against random search and two ways of stopping: the best loss over device seconds.

    python tools/bench/schedulers.py --json FILE
    python tools/bench/schedulers.py --studies rungs --seeds 1 --seconds 20     # a smoke run

The studies are those of `sweeps/rungs.py`. All ways have the same experiment, space and device
time; those of `luthier sweep` have for each seed the same settings in the same order, too. Ways
take turns in each seed.

* ASHA pauses trials at rungs, and promotes the best from their checkpoints.
* random search trains every trial to its end.
* Hyperband is Optuna's pruner, which ends trials for good at the same steps.
* Ray Tune's ASHA ends trials for good at the same steps; in the study `rungs` only, around a step
  written by hand (`tools/bench/sweep_peers`), whose compilation its time does not include.
  RAY_PYTHON names an interpreter in which ray and luthier can be imported.

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
RAY = "ASHA (Ray Tune)"
STUDIES = {
    "rungs": ("study", "random_search"),
    "digits": ("digits", "digits_random_search"),
    "translation": ("translation", "translation_random_search"),
}
"""Functions of `sweeps/rungs.py`: with rungs, and without."""
HYPERBAND = (
    "pruner=optuna.pruners.HyperbandPruner(min_resource=40, max_resource=360, reduction_factor=3)"
)
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


def ways(study: str) -> dict[str, Any]:
    """Return the ways for a study: from a folder, a name, a seed and seconds to a curve."""
    rungs, search = (f"sweeps.rungs:{function}" for function in STUDIES[study])

    def by_luthier(reference: str, *words: str) -> Any:
        def run(folder: pathlib.Path, name: str, seed: int, seconds: float) -> Any:
            budget = f"budget.device_hours={seconds / 3600}"
            return curve_of(sweep(folder, name, reference, [*words, budget, f"seed={seed}"]))

        return run

    made = {
        BASELINE: by_luthier(search),
        "ASHA": by_luthier(rungs),
        "Hyperband (Optuna)": by_luthier(search, HYPERBAND),
    }
    python = os.environ.get("RAY_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import ray.tune"], capture_output=True).returncode == 0
    if study == "rungs" and found:
        made[RAY] = lambda *given: by_ray(python, *given)
    elif study == "rungs":
        print(f"{RAY}: left out, {python} has no ray.tune (set RAY_PYTHON)")
    return made


def by_ray(
    python: str, folder: pathlib.Path, name: str, seed: int, seconds: float
) -> tuple[Curve, dict[str, Any]]:
    """Run the study under Ray Tune's ASHA; return what `curve_of` returns."""
    module = "tools.bench.sweep_peers.launch"
    command = [python, "-m", module, "asha", str(seconds), str(seed), str(folder / name)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    *complete, total = lines
    curve = Curve()
    for line in complete:
        if not curve or line["loss"] < curve[-1][1]:
            curve.append((line["seconds"], line["loss"]))
    counts = {"trials": total["trials"], "complete": len(complete)}
    return curve, counts | {"device seconds": total["seconds"]}


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


def rows_of_seed(
    study: str, seed: int, found: dict[str, tuple[Curve, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return a row for each way, compared with random search of the same seed."""
    goal_curve, goal_counts = found[BASELINE]
    goal = goal_curve[-1][1] if goal_curve else float("-inf")
    made = []
    for way, (curve, counts) in found.items():
        reached = next((seconds for seconds, loss in curve if loss <= goal), None)
        ratio = None if reached is None else reached / goal_counts["device seconds"]
        best = curve[-1][1] if curve else None
        row = {"study": study, "seed": seed, "way": way, "best loss": best, **counts}
        made.append(row | {"as good after, s": reached, "ratio": ratio})
    return made


def medians(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each study and way: its median ratio, and how often it got there."""

    def group_of(row: dict[str, Any]) -> tuple[str, str]:
        return row["study"], row["way"]

    lines = []
    for (study, way), own in itertools.groupby(sorted(rows, key=group_of), key=group_of):
        ratios = [row["ratio"] for row in own]
        # Where it was never reached, the ratio is beyond all others.
        median = statistics.median(float("inf") if ratio is None else ratio for ratio in ratios)
        reached = sum(ratio is not None for ratio in ratios)
        often = f"reached in {reached} of {len(ratios)} seeds"
        lines.append(f"{study}, {way}: median ratio {median:.2f}, {often}")
    return lines


def main() -> None:
    """Run all ways of all studies for all seeds; print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=90.0, help="device seconds of a study")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows, curves = list[dict[str, Any]](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as directory:
        for study in options.studies:
            folder = pathlib.Path(directory, study)
            folder.mkdir()
            # What all ways of a study compile is in their cache before any of them is timed.
            sweep(folder, "warm", f"sweeps.rungs:{STUDIES[study][0]}", ["budget.trials=2"])
            possible = ways(study)
            for seed in range(options.seeds):
                found = {
                    way: run(folder, f"{seed}-{number}", seed, options.seconds)
                    for number, (way, run) in enumerate(possible.items())
                }
                curves += [
                    {"study": study, "seed": seed, "way": way, "curve": curve}
                    for way, (curve, _) in found.items()
                ]
                rows += rows_of_seed(study, seed, found)
                print(json.dumps(rows[-len(found) :]), flush=True)
    settings = {name: getattr(options, name) for name in ("studies", "seeds", "seconds")}
    made = report.Report("schedulers", settings, rows, medians(rows))
    print(report.table(made), *made.notes, sep="\n")
    if options.json:
        report.write(made, options.json)
        written = json.loads(options.json.read_text(encoding="utf-8")) | {"curves": curves}
        options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
