import json
import re

from luthier.view.diff import page
from tests.view.diff import comparisons


def _data(text):
    (inside,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(inside)


def test_the_page_holds_the_whole_comparison():
    comparison, effects = comparisons.small(), comparisons.effects()
    text = page.render(comparison, effects)
    assert _data(text) == {"comparison": comparison, "effects": effects}
    assert "<title>configs.lm.quickstart → runs/quickstart/0123</title>" in text


def test_effects_are_not_needed():
    assert _data(page.render(comparisons.small()))["effects"] is None


def test_a_page_is_small():
    text = page.render(comparisons.comparison([], []))
    assert len(text) < 100_000
