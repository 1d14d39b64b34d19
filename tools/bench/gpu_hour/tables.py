"""The tables of `tools/gpu_hour.py`, from its records: Markdown with loss curves, and JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from luthier.planner import targets

LUTHIER, TORCH = "luthier, 300 steps", "nanoGPT, 300 steps"
Records = Sequence[Mapping[str, Any]]


def write(records: Records, folder: Path, published: Path) -> str:
    """Write `gpu_hour.md` and `gpu_hour.json`; return the Markdown.

    Args:
      records: The lines of all stages.
      folder: Where the files go.
      published: The folder that the pages are made from, which takes no toys.

    Raises:
      ValueError: There is nothing to write, or it is of several chips, or of a toy size.
    """
    chips = sorted({record["chip"] for record in records})
    if len(chips) != 1:
        raise ValueError(f"records of one chip make a table, not of {', '.join(chips) or 'none'}")
    toys = {record["toy"] for record in records}
    if len(toys) > 1 or (True in toys and folder.resolve() == published.resolve()):
        raise ValueError("toy sizes measure nothing: merge them alone, with --results DIR")
    text = markdown(records)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu_hour.md").write_text(text, encoding="utf-8")
    content = {"chip": chips[0], "records": list(records)}
    (folder / "gpu_hour.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return text


def markdown(records: Records) -> str:
    """Return all tables; the first is of luthier and nanoGPT over the same batches."""
    last = records[-1]
    versions = ", ".join(f"{name} {v}" for name, v in last["versions"].items() if v)
    parts = [_product(records), _one_change(records), _packed(records), _ceilings(records)]
    failed = [r for r in records if r["status"] == "failed"]
    lines = [f"- {r['key']}: {_first(r['result'].get('error', ''))}" for r in failed]
    parts.append("Failed runs:\n\n" + "\n".join(lines) if failed else "")
    toy = " At toy size: these numbers measure nothing." if last["toy"] else ""
    parts.append(f"{last['chip']}, {last['date'][:10]}; {versions}.{toy}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _first(error: str) -> str:
    lines = error.strip().splitlines() or ["no message"]
    return lines[-1][:200]


def _found(records: Records, name: str) -> list[Mapping[str, Any]]:
    return [r["result"] for r in records if r["case"] == name and r["status"] == "ok"]


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return "-" if value is None else str(value)


def _gib(result: Mapping[str, Any]) -> float | None:
    return result["peak_bytes"] / 2**30 if result.get("peak_bytes") else None


def _product(records: Records) -> str:
    ours, theirs = (_found(records, name)[-1:] for name in (LUTHIER, TORCH))
    if not ours or not theirs:
        return "Not measured yet: a comparison of luthier and nanoGPT over the same batches."
    columns = ["side", "steps", "ms per step", "total s", "first loss", "last loss", "GiB"]
    rows = []
    for name, (own,) in (("luthier train", ours), ("nanoGPT", theirs)):
        losses = own["losses"]
        rows.append(
            [
                name,
                len(losses),
                1e3 * own["step_seconds"],
                own["train_seconds"],
                losses[0],
                losses[-1],
                _gib(own),
            ]
        )
    apart = max(abs(a - b) for a, b in zip(ours[0]["losses"], theirs[0]["losses"], strict=True))
    own = ours[0]
    notes = (
        f"The losses differ by at most {apart:.2g} in any step. `luthier train` saved and "
        "evaluated after each third of the steps. It was killed (SIGKILL) after step "
        f"{own['killed_after']}, and the same command then completed the run. The total time "
        f"includes both processes, from start to end. Of {own['resumed']} losses that were "
        f"recorded before the kill, {own['resumed_same']} are in the record of the resumed run, "
        "bit for bit."
    )
    plot = curves(own["losses"], theirs[0]["losses"])
    return f"{_table(columns, rows)}\n\n{notes}\n\n```text\n{plot}\n```"


def curves(ours: Sequence[float], theirs: Sequence[float], width: int = 72, rows: int = 14) -> str:
    """Return two curves over each other as text: `l` luthier, `n` nanoGPT, `*` both."""
    width = min(width, len(ours))
    low, high = min(*ours, *theirs), max(*ours, *theirs)
    grid = [[" "] * width for _ in range(rows)]
    for losses, mark in ((ours, "l"), (theirs, "n")):
        for x in range(width):
            value = losses[x * (len(losses) - 1) // max(width - 1, 1)]
            y = round((high - value) / ((high - low) or 1.0) * (rows - 1))
            grid[y][x] = mark if grid[y][x] == " " else "*"
    edge = {0: f"{high:8.3f} ", rows - 1: f"{low:8.3f} "}
    lines = [edge.get(y, " " * 9) + "".join(line).rstrip() for y, line in enumerate(grid)]
    return "\n".join([*lines, f"{'step 1':>15} ... {len(ours)}; l luthier, n nanoGPT, * both"])


def _one_change(records: Records) -> str:
    own = [r for r in records if r["stage"] == 2]
    names = [
        n
        for n in dict.fromkeys(r["case"] for r in own)
        if _found(own, n) and not n.startswith("profile")
    ]
    if "base" not in names:
        return ""
    speed: dict[str, float] = {}
    columns = ["GPT-2 124M", "ms per step", "spread %", "tokens/s", "/ base", "GiB"]
    columns += ["MFU %", "% of the fastest product"]
    best = next((c["square"] for c in _found(records, "ceilings")), None)
    chip = next((c for c in targets.CHIPS.values() if c.device_kind == records[0]["chip"]), None)
    peak = chip.peak("bfloat16") if chip else None
    base = _found(own, "base")[0]
    rows = []
    for name in ["base", *(n for n in names if n != "base")]:
        found = _found(own, name)
        each = [result["step_seconds"] for result in found]
        median = statistics.median(each)
        tokens = found[0].get("tokens_per_step", base["tokens_per_step"])
        speed[name] = tokens / median
        flops = base["flops_per_step"] / base["tokens_per_step"]
        shares = [100 * flops * speed[name] / of if of else None for of in (peak, best)]
        spread = 100 * (max(each) - min(each)) / median if len(each) > 1 else None
        rows.append(
            [
                name,
                1e3 * median,
                spread,
                speed[name],
                speed[name] / speed["base"],
                _gib(found[0]),
                *shares,
            ]
        )
    profile = _found(own, "profile")
    shares = [f"{k} {100 * v:.1f} %" for p in profile for k, v in p["shares"].items()]
    where = f"\n\nShares of the time of `base`: {', '.join(shares)}." if shares else ""
    note = ""
    if chip:
        note = f"\n\nMFU is relative to the published peak of the {chip.device_kind} in dense "
        note += f"bfloat16, which is {peak / 1e12:.0f} TFLOP/s. The FLOPs of a step are 3 x those "
        note += "of the forward pass, with attention over all pairs of tokens."
    return _table(columns, rows) + note + where


def _packed(records: Records) -> str:
    one, many = (_found(records, n)[-1:] for n in ("one trial", "16 packed trials"))
    if not one or not many:
        return ""
    columns = ["trials of d256", "ms per step", "trial steps per second", "sweep, s"]
    rows = [
        [name, 1e3 * r["step_seconds"], r["trial_steps_per_second"], r["wall_seconds"]]
        for name, (r,) in (("one", one), ("16 packed", many))
    ]
    for case in ("step of one trial", "step of 16 packed trials"):
        for r in _found(records, case)[-1:]:
            seconds = r["step_seconds"]
            rows.append([f"{case}, alone", 1e3 * seconds, r["trials"] / seconds, None])
    return _table(columns, rows)


def _ceilings(records: Records) -> str:
    found = _found(records, "ceilings")[-1:]
    rows = [
        [
            name,
            value / (1e9 if name == "copy_bytes" else 1e12),
            "GB/s" if name == "copy_bytes" else "TFLOP/s",
        ]
        for result in found
        for name, value in result.items()
        if isinstance(value, float) and name != "case_seconds"
    ]
    return _table(["on random data", "measured", "unit"], rows) if rows else ""
