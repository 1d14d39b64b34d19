import dataclasses
import json
import re

import pytest

from luthier.planner import targets
from luthier.view.plan import duration, lines_of, render
from tests.browsing import check_accessible
from tests.view.plan.reports import report


def test_every_part_is_a_line():
    text = "\n".join(lines_of(report(), sharding=True))
    for line in (
        "x on v5e-16: 16 x TPU v5 lite",
        "mesh fsdp=16; 1,000 parameters, 500 active",
        "16 rows and 128 tokens a step, 1 rows on a device at a time",
        "  temporaries   2.0 GiB",
        "  kept for the backward pass: mlp_up  1.0 GiB",
        "DOES NOT FIT: needs 17.0 GiB (estimated before: 16.0 GiB) of 15.8 GiB",
        "compiler error: Used 17G of 15.75G hbm",
        "  full      6.4e+05 a step  5000 a token  3 x forward, attention over all pairs",
        "  all-gather  fsdp (across slices)        26  4.0 KiB              3.8 KiB",
        "pipeline model.stack: 4 stages, 8 microbatches, bubble fraction 27.3%",
        "a step takes an estimated 500 ms, bound by links",
        "  MFU an estimated 40.0% (full)",
        "  an estimated 2.2e+07 tokens a day; 900 steps take an estimated 7.5 min",
        "  1.0 GiB  f32[4,8]  backward / dot_general",
        "  ceilings (measured): float32 as tfloat32 326 TFLOP/s, memory 4,032 GB/s",
        "  embedding.table  8x4    -, fsdp  128 B         embed -> fsdp",
        "  1. 12.0 GiB, 600 ms a step (estimated)",
        "     parallelism.mesh.fsdp=8 training.accumulation=2",
        "note: said once",
    ):
        assert line in text.splitlines(), (line, text)
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_only_what_products_take_is_a_bound():
    given = report()
    step = {**given.step, "binding": "compute", "is_bound": True}
    shares = {"bfloat16": 3, "float32": 1}
    bound = dataclasses.replace(given, step=step, flops_by_dtype=shares)
    text = "\n".join(lines_of(bound))
    assert "a step takes at least 500 ms, bound by compute" in text
    assert "MFU at most 40.0% (full)" in text
    assert "products: 75.0% bfloat16, 25.0% float32" in text


def test_a_time_that_is_too_small_is_not_printed():
    given = report()
    reason = "too small to estimate: starting a step takes about 100 µs"
    nothing = {"step_seconds": None, "serial_seconds": None, "mfu": {}, "run_seconds": None}
    proposals = [{**row, "step_seconds": None} for row in given.proposals]
    step = given.step | nothing | {"tokens_per_day": None, "reason": reason}
    small = dataclasses.replace(given, step=step, proposals=proposals)
    lines = list(lines_of(small))
    assert f"the time of a step is {reason}" in lines
    assert "  1. 12.0 GiB (estimated)" in lines
    assert not any("MFU" in line or line.startswith("a step takes") for line in lines)
    assert "too small to estimate" in render(small)


def test_conventions_of_flops_differ_only_where_there_is_attention():
    given = report()
    subject = dataclasses.replace(given.subject, has_attention=False)
    lines = list(lines_of(dataclasses.replace(given, subject=subject)))
    start = lines.index("FLOPs")
    names = [line.split()[0] for line in lines[start + 1 : lines.index("", start)]]
    assert names == [name for name in given.flops if name in ("full", "hardware")]
    assert lines[start + 1].endswith("a token  3 x forward")


def test_a_limit_below_the_memory_of_the_device_is_explained():
    reason = targets.CHIPS["h100"].limit_reason
    lines = list(lines_of(report(limit_bytes=2**34, limit_reason=reason, refusal="")))
    assert (
        "DOES NOT FIT: needs 17.0 GiB (estimated before: 16.0 GiB) of 16.0 GiB (75% of 79.1 GiB: "
        "JAX's default pool, XLA_PYTHON_CLIENT_MEM_FRACTION sets it)"
    ) in lines


@pytest.mark.parametrize(("limit", "verdict"), [(2**34, " in 16.0 GiB"), (None, "")])
def test_an_error_of_the_compiler_without_numbers_is_a_verdict(limit, verdict):
    refusal = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate."
    lines = list(lines_of(report(needed_bytes=None, limit_bytes=limit, refusal=refusal)))
    start = lines.index(f"DOES NOT FIT{verdict}")
    assert lines[start + 1] == f"compiler error: {refusal}"
    assert lines[start + 2].startswith("a checkpoint has ")


def test_a_compiler_without_a_total_gives_no_verdict():
    lines = list(lines_of(report(needed_bytes=None, refusal="")))
    assert not any("fit" in line.lower() for line in lines[: lines.index("FLOPs")])
    assert any(line.startswith("a checkpoint has ") for line in lines)


def test_a_device_of_unknown_size_gives_what_is_needed_and_no_verdict():
    lines = list(lines_of(report(limit_bytes=None, refusal="")))
    assert "needs 17.0 GiB (estimated before: 16.0 GiB)" in lines
    assert not any("fit" in line.lower() for line in lines[: lines.index("FLOPs")])


def test_what_is_estimated_is_called_so():
    given = report()
    memory = dataclasses.replace(
        given.memory, needed_bytes=2**30, estimated_bytes=2**30, limit_bytes=2**31, refusal=""
    )
    text = "\n".join(lines_of(dataclasses.replace(given, memory=memory)))
    assert "fits by estimate: needs an estimated 1.0 GiB of 2.0 GiB" in text


@pytest.mark.parametrize("is_compiled", [True, False])
def test_long_lived_temporaries_are_not_listed_as_parts_of_the_peak(is_compiled):
    """The compiler found 4.5 MiB of temporaries; the arrays that the model knows are larger."""
    found = report(
        bytes_per_device={"parameters": 2**20}
        | ({"temporaries": 9 * 2**19} if is_compiled else {}),
        residuals=[
            {"name": "mul", "bytes_per_device": 5 * 2**20},
            {"name": "div", "bytes_per_device": 2**22},
        ],
        gradient_bytes=2**20,
        estimated_bytes=24 * 2**20,
    )
    lines = list(lines_of(found))
    peak = "  temporaries by the analytic model, at the peak: 23.0 MiB"
    assert (peak in lines) is not is_compiled
    start = lines.index(
        "long-lived temporaries by the analytic model (they do not add up to the peak)"
    )
    assert lines.index("compiler error: Used 17G of 15.75G hbm") < start
    assert [" ".join(line.split()) for line in lines[start + 1 : start + 4]] == [
        "gradients 1.0 MiB",
        "kept for the backward pass: mul 5.0 MiB",
        "kept for the backward pass: div 4.0 MiB",
    ]


def test_arrays_that_account_for_little_of_the_temporaries_have_a_note():
    """As for the quickstart on v5e-16, whose only named array at the peak has 128 bytes."""
    live = [{"array": "f32[32]", "bytes_per_device": 128, "scope": "", "opcode": "copy"}]
    lines = list(lines_of(report(bytes_per_device={"temporaries": 9 * 2**19}, live=live)))
    start = lines.index("largest arrays at the peak, on each device")
    assert lines[start + 1] == (
        "  the compiled program names 128 B of 4.5 MiB of temporaries only; "
        "the rest has no array of its own in it"
    )
    assert lines[start + 2].split() == ["128", "B", "f32[32]", "copy"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12.3 ms"),
        (3.456, "3.46 s"),
        (600, "10 min"),
        (36_000, "10 h"),
        (864_000, "10 days"),
    ],
)
def test_times_are_reported_in_their_unit(seconds, text):
    assert duration(seconds) == text


def test_the_page_holds_the_plan():
    text = render(report())
    (inside,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(inside) == json.loads(json.dumps(report().to_dict()))
    assert "<title>x on v5e-16</title>" in text


def test_the_page_shows_every_part(open_page):
    page = open_page(render(report()))
    shown = page.locator("main").inner_text()
    for words in (
        "does not fit",
        "mlp_up",
        "all-gather",
        "fsdp (across slices)",
        "embed -> fsdp",
        "as tfloat32",
    ):
        assert words in shown, words
    assert "Used 17G of 15.75G hbm" in page.locator(".verdicts").inner_text()
    assert page.locator(".proposal code").inner_text().startswith("parallelism.mesh.fsdp=8")
    check_accessible(page)


def test_a_plan_by_shapes_has_a_page_too(open_page):
    bare = report(
        level="shapes", residuals=[], live=[], collectives=[], proposals=[], pipelines={},
        refusal="", needed_bytes=2**30, notes=[],
    )  # fmt: skip
    page = open_page(render(bare))
    assert "fits" in page.locator(".tiles").inner_text()
    assert page.locator("#proposals").count() == 0
