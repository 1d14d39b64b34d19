"""What `luthier train` recorded of a run: its metrics.jsonl, which is documented, and no more."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

SKIPPED = 10  # steps before the clock runs


def steps_of(path: Path) -> list[dict[str, Any]]:
    """Return the last line of each step of a metrics.jsonl, in order."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # the line that is being written
            continue
        if event.get("kind") == "step":
            found[event["step"]] = {"step": event["step"], "time": event["time"], **event["values"]}
    return [found[step] for step in sorted(found)]


def _run_file(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("runs/*/*/metrics.jsonl"))), None)


def last_step(folder: Path) -> int:
    """Return the last step that the run below a folder recorded; 0 before there is one."""
    file = _run_file(folder)
    steps = steps_of(file) if file else []
    return steps[-1]["step"] if steps else 0


def losses(folder: Path) -> dict[int, float]:
    """Return the loss of each step of the run below a folder."""
    file = _run_file(folder)
    return {step["step"]: step["loss"] for step in steps_of(file)} if file else {}


def of_run(place: Path) -> dict[str, Any]:
    """Return what a run recorded: the seconds of a step after the first ones, memory, its chip."""
    file = place if place.is_file() else _run_file(place)
    if file is None or len(steps_of(file)) < 2:
        raise RuntimeError(f"no steps on record below {place}")
    steps = steps_of(file)
    with file.open(encoding="utf-8") as lines:
        header = json.loads(next(lines))
    warm = steps[min(SKIPPED, len(steps) - 2) :]
    each = [step["step_seconds"] for step in warm[1:]]
    last = steps[-1]
    return {
        "step_seconds": statistics.median(each),
        "mean_step_seconds": statistics.mean(each),
        "longest_step_seconds": max(each),
        "steps": len(steps),
        "loss": last["loss"],
        "tokens_per_step": last["tokens"] / last["step"],
        "peak_bytes": last["memory_bytes"],
        "flops_per_step": header["flops_per_step"],
        "devices": header["devices"],
        "data_wait_seconds": statistics.median(s["data_wait_seconds"] for s in warm),
    }
