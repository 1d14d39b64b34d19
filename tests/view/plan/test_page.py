import json
import re

from luthier.view.plan import render
from tests.browsing import check_accessible
from tests.view.plan.reports import report


def test_the_page_holds_the_plan():
    text = render(report())
    (inside,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(inside) == json.loads(json.dumps(report().to_dict()))
    assert "<title>x on v5e-16</title>" in text


def test_the_page_shows_every_part(open_page):
    page = open_page(render(report()))
    shown = page.locator("main").inner_text()
    for words in ("does not fit", "mlp_up", "all-gather", "fsdp (across slices)", "embed -> fsdp"):
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
