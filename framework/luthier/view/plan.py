"""A plan for a slice, as lines for the terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier.parallel import format_bytes
from luthier.planner import Report
from luthier.view.page import document

_CONVENTIONS = {
    "full": "3 x forward, attention over all pairs",
    "causal": "the same, causal attention halved",
    "six_n": "6 x active parameters x tokens",
    "hardware": "as it is run, recomputation and bubbles included",
}
_PLAIN = {"full": "3 x forward", "hardware": _CONVENTIONS["hardware"]}

_TEMPORARY = ("gradients", "temporaries", "outputs")


def lines_of(report: Report, sharding: bool = False) -> Iterator[str]:
    """Yield the lines of a report.

    Args:
      report: The report.
      sharding: Whether every parameter is listed.
    """
    # A section is left out where the report has no data for it: how much is known depends on
    # whether the step was traced and compiled.
    yield from _head(report)
    yield ""
    yield from _memory(report)
    if report.flops:
        yield ""
        yield from _flops(report)
    for core, reasons in report.attention_cores.items():
        yield f"attention by {core}: {reasons}"
    if report.collectives:
        yield ""
        yield from _collectives(report.collectives)
        exposed = sum(row.get("exposed_bytes", 0) for row in report.collectives)
        if exposed and report.subject.devices["kind"] != "CPU":
            yield f"  {format_bytes(exposed)} of these have no matrix product beside them"
    for path, pipeline in report.pipelines.items():
        size = f"{pipeline['stages']} stages, {pipeline['microbatches']} microbatches"
        yield f"pipeline {path}: {size}, bubble fraction {pipeline['bubble_fraction']:.1%}"
    if report.step:
        yield ""
        yield from _step(report)
    if report.memory.live:
        yield ""
        temporaries = report.memory.bytes_per_device.get("temporaries", 0)
        yield from _live(report.memory.live, temporaries)
    if sharding:
        yield ""
        yield from _sharding(report.sharding)
    if report.proposals:
        yield ""
        yield from _proposals(report)
    for note in report.notes:
        yield f"note: {note}"


def duration(seconds: float) -> str:
    """Return a duration with a unit of its size: `9.8 µs`, `1.2 ms`, `3.4 s`, `5.6 h`, `7.8 days`.

    Args:
      seconds: The time.
    """
    units = ((1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min"))
    for limit, size, unit in units:
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 3600:.3g} h" if seconds < 172_800 else f"{seconds / 86_400:.3g} days"


def _head(report: Report) -> Iterator[str]:
    subject, devices = report.subject, report.subject.devices
    slices = f" in {devices['slices']} slices" if devices["slices"] > 1 else ""
    mesh = " x ".join(f"{axis}={size}" for axis, size in subject.mesh.items()) or "one device"
    number = f"{devices['count']} x {devices['kind']}{slices}"
    yield f"{subject.experiment} on {subject.slice}: {number}"
    total = subject.parameters["total"]
    parts = [f", {n:,} {what}" for what, n in subject.parameters.items() if n != total]
    yield f"mesh {mesh}; {total:,} parameters{''.join(parts)}"
    rows = subject.rows
    cut = f", in {rows['accumulation']} microbatches" if rows["accumulation"] > 1 else ""
    yield (
        f"{rows['per_step']:,} rows and {subject.tokens_per_step:,} tokens a step, "
        f"{rows['per_device']:,} rows on a device at a time{cut}"
    )


def _memory(report: Report) -> Iterator[str]:
    memory = report.memory
    kinds = sorted(memory.bytes_per_device.items(), key=lambda item: -item[1])
    yield "bytes on each device"
    yield from _aligned([(f"  {kind}", format_bytes(n)) for kind, n in kinds])
    # Where the compiler has counted the temporaries, the model's number would be a second one for
    # the same; the verdict compares the totals.
    is_counted = "temporaries" in memory.bytes_per_device
    if not is_counted and memory.estimated_bytes is not None:
        held = sum(n for kind, n in memory.bytes_per_device.items() if kind not in _TEMPORARY)
        size = format_bytes(max(memory.estimated_bytes - held, 0))
        yield f"  temporaries by the analytic model, at the peak: {size}"
    yield from _verdict(report)
    if memory.refusal:
        yield f"compiler error: {memory.refusal}"
    yield f"a checkpoint has {format_bytes(report.subject.checkpoint_bytes)}"
    # Which arrays a change of remat or of the optimizer would save. They are no parts of the peak:
    # the last gradient is made when the last residual is freed, and the logits are in neither.
    if memory.estimated_bytes is not None:
        yield "long-lived temporaries by the analytic model (they do not add up to the peak)"
        within = [("  gradients", format_bytes(memory.gradient_bytes))]
        for row in memory.residuals:
            name = f"  kept for the backward pass: {row['name']}"
            within.append((name, format_bytes(row["bytes_per_device"])))
        yield from _aligned(within)


def _verdict(report: Report) -> Iterator[str]:
    memory = report.memory
    if memory.needed_bytes is None:
        # Some compilers give no total: then there is nothing to judge, unless they have refused.
        if report.fits is False:
            within = memory.limit_bytes
            yield f"DOES NOT FIT{'' if within is None else f' in {format_bytes(within)}'}"
        return
    needed = format_bytes(memory.needed_bytes)
    if memory.is_estimated:
        needed = f"an estimated {needed}"
    elif memory.estimated_bytes is not None:
        needed += f" (estimated before: {format_bytes(memory.estimated_bytes)})"
    if memory.limit_bytes is None:
        yield f"needs {needed}"
        return
    verdict = "fits" if report.fits else "DOES NOT FIT"
    verdict += " by estimate" if memory.is_estimated else ""
    reason = f" ({memory.limit_reason})" if memory.limit_reason else ""
    yield f"{verdict}: needs {needed} of {format_bytes(memory.limit_bytes)}{reason}"


def _flops(report: Report) -> Iterator[str]:
    yield "FLOPs"
    rows = []
    for name, flops in _conventions(report).items():
        per_token = flops / report.subject.tokens_per_step
        rows.append((f"  {name}", f"{flops:.4g} a step", f"{per_token:.4g} a token"))
    width = [max(len(row[i]) for row in rows) for i in range(3)]
    for (name, *cells), key in zip(rows, _conventions(report), strict=True):
        texts = [cell.rjust(w) for cell, w in zip(cells, width[1:], strict=True)]
        text = _CONVENTIONS[key] if report.subject.has_attention else _PLAIN[key]
        yield "  ".join([name.ljust(width[0]), *texts, text])


def _conventions(report: Report) -> Mapping[str, int]:
    """Return the FLOPs by convention, of which models without attention have one."""
    if report.subject.has_attention:
        return report.flops
    return {name: flops for name, flops in report.flops.items() if name in _PLAIN}


def _collectives(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "collectives of a step"
    rows: list[tuple[str, ...]] = [("  kind", "along", "how many", "bytes", "sent by each device")]
    for one in found:
        across = " (across slices)" if one["is_across_slices"] else ""
        along = f"{', '.join(one['axes'])}{across}"
        amounts = [format_bytes(one[name]) for name in ("num_bytes", "wire_bytes")]
        rows.append((f"  {one['kind']}", along, f"{one['count']:,}", *amounts))
    yield from _columns(rows, numbers=3)


def _step(report: Report) -> Iterator[str]:
    step = report.step
    if step["step_seconds"] is None:
        yield f"the time of a step is {step['reason']}"
        yield from _products(report)
        return
    terms = ", ".join(f"{term} {duration(s)}" for term, s in step["seconds_by_term"].items())
    # The time of matrix products at their peak is a lower bound. For bytes, the compiled program
    # gives only an upper bound: a fusion that reads a part of an array counts the whole, and links
    # may be faster than one way.
    bound = ("at least ", "at most ")
    least, most = bound if step["is_bound"] else ("an estimated ", "an estimated ")
    yield f"a step takes {least}{duration(step['step_seconds'])}, bound by {step['binding']}"
    yield f"  {terms}; {duration(step['serial_seconds'])} where nothing overlaps"
    known = _conventions(report)
    mfu = ", ".join(f"{x:.1%} ({name})" for name, x in step["mfu"].items() if name in known)
    yield f"  MFU {most}{mfu}"
    per_day = f"{most}{step['tokens_per_day']:.3g} tokens a day"
    run = f"{least}{duration(step['run_seconds'])}"
    yield f"  {per_day}; {report.subject.steps:,} steps take {run}"
    yield from _products(report)
    if step["grade"] != "published":
        yield f"  {_ceilings(step)}"


def _ceilings(step: Mapping[str, Any]) -> str:
    """Return the rates that a step was charged at, and their grade."""
    rates = []
    for row in step["ceilings"]:
        if row["of"] == "memory":
            rates.append(f"memory {row['per_second'] / 1e9:,.0f} GB/s")
            continue
        runs = "" if row["runs_as"] == row["of"] else f" as {row['runs_as']}"
        rates.append(f"{row['of']}{runs} {row['per_second'] / 1e12:.3g} TFLOP/s")
    return f"ceilings ({step['grade']}): {', '.join(rates)}"


def _products(report: Report) -> Iterator[str]:
    if report.flops_by_dtype:
        whole = sum(report.flops_by_dtype.values())
        shares = sorted(report.flops_by_dtype.items(), key=lambda item: -item[1])
        yield f"  products: {', '.join(f'{n / whole:.1%} {dtype}' for dtype, n in shares)}"


def _live(live: Sequence[Mapping[str, Any]], temporaries: int) -> Iterator[str]:
    yield "largest arrays at the peak, on each device"
    # In the schedule that TPU compilers print, most buffers have no instruction of their own.
    shown = sum(t["bytes_per_device"] for t in live)
    if shown < temporaries / 2:
        what = f"{format_bytes(shown)} of {format_bytes(temporaries)} of temporaries"
        yield f"  the compiled program names {what} only; the rest has no array of its own in it"
    rows = [
        (f"  {format_bytes(t['bytes_per_device'])}", t["array"], t["scope"] or t["opcode"])
        for t in live
    ]
    yield from _columns(rows, numbers=0)


def _sharding(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "parameters"
    cells = [("  name", "shape", "spec", "bytes/device", "reason")]
    for row in rows:
        shape = "x".join(map(str, row["shape"])) or "scalar"
        held = format_bytes(row["bytes_per_device"])
        cells.append((f"  {row['name']}", shape, row["spec"], held, row["reason"]))
    yield from _columns(cells, numbers=0)


def _proposals(report: Report) -> Iterator[str]:
    yield "proposed changes, by step time" if report.fits is False else "found by search"
    for number, one in enumerate(report.proposals, 1):
        sure = "compiled" if one["is_compiled"] else "estimated"
        seconds = one["step_seconds"]
        time = "" if seconds is None else f", {duration(seconds)} a step"
        needed = f"{format_bytes(one['needed_bytes'])}{time}"
        yield f"  {number}. {needed} ({sure})"
        yield f"     {' '.join(one['overrides']) or 'as it is'}"


def _aligned(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    left = max((len(name) for name, _ in rows), default=0)
    right = max((len(text) for _, text in rows), default=0)
    for name, text in rows:
        yield f"{name.ljust(left)}  {text.rjust(right)}"


def _columns(rows: Sequence[Sequence[str]], numbers: int) -> Iterator[str]:
    """Yield rows in columns; the last `numbers` of them are aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    first = len(widths) - numbers
    for row in rows:
        cells = [
            cell.rjust(width) if i >= first else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


# The plan as one HTML file.

_FILES = ("plan_page.css", "plan_page.js")


def render(report: Report) -> str:
    """Return the page of a plan as the text of one HTML file.

    Args:
      report: The plan.
    """
    return document(
        f"{report.subject.experiment} on {report.subject.slice}",
        report.to_dict(),
        _FILES,
        "This page needs JavaScript. The command `luthier plan` prints the same.",
    )
