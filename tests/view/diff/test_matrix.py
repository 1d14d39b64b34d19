from __future__ import annotations

import json
import re

import pytest

from luthier import graph as graphs
from luthier.cli import Problems, operands
from luthier.cli.operands.operand import Operand, ResultOperand
from luthier.cli.showing import matrix_of
from luthier.graph import compare
from luthier.view.diff import matrix as matrix_page
from luthier.view.diff import terminal
from luthier.view.diff.matrix import matrix, table
from tests.browsing import check_accessible, check_fits


def _change(path, before, after, kind="changed"):
    return {
        "kind": kind,
        "path": path,
        "path_before": "",
        "before": str(before),
        "after": str(after),
        "value_before": before,
        "value_after": after,
        "told": f"{before} -> {after}",
    }


COLUMNS = [{"title": f"trial {i}", "state": "complete" if i else "", "link": ""} for i in range(3)]
COMPARISONS = [
    {"changes": [_change("optimizer.b2", 0.98, 0.9)]},
    {"changes": [_change("optimizer.b2", 0.98, 0.5), _change("tied", True, False)]},
]
OBJECTIVES = [{"name": "held_out/loss", "values": [2.0, 1.5, None], "direction": "lower"}]


def test_rows_are_what_varies():
    found = matrix("2 against trial 0", COLUMNS, COMPARISONS, OBJECTIVES)
    assert found["rows"] == [
        {"path": "optimizer.b2", "texts": ["0.98", "0.9", "0.5"], "values": [0.98, 0.9, 0.5]},
        {"path": "tied", "texts": ["True", "True", "False"], "values": [None, None, None]},
    ]
    assert (found["version"], found["title"]) == (1, "2 against trial 0")
    assert found["noun"] == "config"
    assert found["objectives"] == OBJECTIVES


def test_sharing_and_several_changes_of_a_place_are_reported():
    changes = [_change("a", 1, 2), _change("a", 0, 0, kind="tags")]
    (row,) = matrix("", COLUMNS[:2], [{"changes": changes}])["rows"]
    assert row["texts"] == ["1", "1 -> 2; 0 -> 0"]
    assert row["values"] == [1, None]


def test_the_table():
    found = matrix("2 against trial 0", COLUMNS, COMPARISONS, OBJECTIVES)
    drawn = terminal.rendered(table(found, 80)).splitlines()
    assert drawn == [
        "2 against trial 0",
        "  A  trial 0",
        "  B  trial 1  (complete)",
        "  C  trial 2  (complete)",
        "",
        "                          A    B      C",
        "held_out/loss (lower)     2  1.5",
        "optimizer.b2           0.98  0.9    0.5",
        "tied                   True    .  False",
    ]


def test_columns_that_do_not_fit_stand_below():
    found = matrix("", COLUMNS, COMPARISONS)
    drawn = terminal.rendered(table(found, 24)).splitlines()
    assert [line.split() for line in drawn[5:]] == [
        ["A", "B"],
        ["optimizer.b2", "0.98", "0.9"],
        ["tied", "True", "."],
        [],
        ["C"],
        ["optimizer.b2", "0.5"],
        ["tied", "False"],
    ]
    assert max(map(len, drawn[5:])) <= 24


def test_nothing_varies():
    drawn = terminal.rendered(table(matrix("x", COLUMNS, [{"changes": []}] * 2), 80))
    assert drawn.splitlines()[-1] == "nothing differs"


def four_trials(**more):
    """Return a matrix of four trials."""
    return {
        "version": 1,
        "title": "What rates varied",
        "columns": [
            {"title": "0", "state": "complete", "link": "trials/0000/"},
            {"title": "1", "state": "pruned", "link": ""},
            {"title": "2", "state": "complete", "link": "javascript:alert(1)"},
            {"title": "3", "state": "complete", "link": None},
        ],
        "objectives": [{"name": "loss", "values": [2.5, None, 1.5, 2.0], "direction": "lower"}],
        "rows": [
            {
                "path": "optimizer.rate",
                "texts": ["0.001", "0.1", "0.01", "0.0001"],
                "values": [1e-3, 1e-1, 1e-2, 1e-4],
            },
            {"path": "mesh", "texts": ["b", "a", "b", ""], "values": [None] * 4},
        ],
        **more,
    }


def _trials(page):
    return [text.split()[0] for text in page.locator("thead th").all_text_contents()[1:]]


def _sort(page, name):
    page.locator("button.sort", has_text=name).click()
    head = page.locator("tbody th", has_text=name)
    return _trials(page), head.get_attribute("aria-sort"), page.locator("main [role=status]")


def test_the_page_holds_the_matrix():
    text = matrix_page.render(four_trials())
    (inside,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(inside) == four_trials()
    assert "<title>What rates varied</title>" in text


@pytest.mark.full
def test_it_is_sorted_by_any_row(open_page):
    page = open_page(matrix_page.render(four_trials()))
    assert _trials(page) == ["0", "1pruned", "2", "3"]
    order, is_sorted, status = _sort(page, "loss")
    assert (order, is_sorted) == (["2", "3", "0", "1pruned"], "ascending")
    assert status.inner_text() == "Sorted by loss, lowest first"
    order, is_sorted, status = _sort(page, "loss")  # what has no value stays at the end
    assert (order, is_sorted) == (["0", "3", "2", "1pruned"], "descending")
    assert _sort(page, "optimizer.rate")[0] == ["3", "0", "2", "1pruned"]
    assert _sort(page, "mesh")[0] == ["3", "1pruned", "0", "2"]
    page.keyboard.press("Enter")  # the button is the same one still
    assert page.locator("tbody th", has_text="mesh").get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="Trial").click()
    assert _trials(page) == ["0", "1pruned", "2", "3"]


def test_the_higher_objective_comes_first_where_it_is_better(open_page):
    objectives = [{"name": "loss", "values": [1.0, 3.0, None, 2.0], "direction": "higher"}]
    page = open_page(matrix_page.render(four_trials(objectives=objectives)))
    assert _sort(page, "loss")[:2] == (["1pruned", "3", "0", "2"], "descending")
    assert page.locator("td.best").all_inner_texts() == ["3"]


def test_cells_are_coloured_by_value(open_page):
    page = open_page(matrix_page.render(four_trials()))
    shade = (
        "(row) => [...row.querySelectorAll('td')].map((c) => c.style.getPropertyValue('--shade'))"
    )
    rate = page.locator("tbody tr", has_text="optimizer.rate")
    assert rate.evaluate(shade) == ["19%", "44%", "31%", "6%"]  # by the logarithm: it is wide
    loss = page.locator("tbody tr", has_text="loss")
    assert loss.evaluate(shade) == ["44%", "", "6%", "25%"]
    assert loss.locator("td.best").inner_text() == "1.5"
    kinds = "(row) => [...row.querySelectorAll('td')].map((cell) => cell.className)"
    mesh = page.locator("tbody tr", has_text="mesh").evaluate(kinds)
    assert mesh == ["kind-of kind-of-0", "kind-of kind-of-1", "same", "none"]


def test_links_lead_and_run_nothing(open_page):
    page = open_page(matrix_page.render(four_trials()))
    links = page.locator("thead a")
    assert links.count() == 1
    assert links.get_attribute("href") == "trials/0000/"


def test_paths_are_searched(open_page):
    page = open_page(matrix_page.render(four_trials()))
    page.keyboard.press("/")
    page.keyboard.type("RATE")
    assert page.locator("tbody th").all_inner_texts() == ["loss", "optimizer.rate"]
    page.keyboard.press("Escape")
    assert page.locator("tbody th").count() == 3


def test_the_matrix_is_accessible(open_page):
    page = open_page(matrix_page.render(four_trials()))
    check_accessible(page)


@pytest.mark.parametrize("numbers", [0, 1])
def test_few_trials(open_page, numbers):
    given = four_trials()
    few = four_trials(
        columns=given["columns"][:numbers],
        objectives=[{**one, "values": one["values"][:numbers]} for one in given["objectives"]],
        rows=[{k: v[:numbers] if k != "path" else v for k, v in r.items()} for r in given["rows"]],
    )
    page = open_page(matrix_page.render(few))
    assert page.locator("thead th").count() == numbers + 1


def test_names_and_values_run_nothing(open_page):
    image = '"><img src="x" onerror="document.title = \'hacked\'"><script>x</script>'
    given = four_trials(title=image, objectives=[])
    given["columns"][0].update(title=image, state=image, link=image)
    given["rows"][1] = {"path": image, "texts": [image] * 4, "values": [None] * 4}
    page = open_page(matrix_page.render(given))
    page.locator("button.sort", has_text="img").click()
    assert page.title() == image
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


WORDS = (
    "",
    "optimizer.b2=0.9",
    "model.block.norm=LayerNorm() seed=3",
    "training.steps=100",
    "name=x",
)


def _five():
    base = "configs.lm.quickstart"
    words = [f"{base} {overrides}".strip() for overrides in WORDS]
    return matrix_of(operands.read_all(words, Problems()))


def test_the_page_of_configs_calls_them_so_and_shows_what_equals_the_first_as_dots(open_page):
    page = open_page(matrix_page.render(_five()))
    assert "settings of 5 configs" in page.locator("header").inner_text()
    assert page.get_by_role("button", name="Config").count() == 1
    # Whole command lines are in the legend; the columns have letters.
    assert page.locator("thead th").all_text_contents()[1:] == list("ABCDE")
    legend = page.locator(".columns-legend li").all_text_contents()
    assert legend[1] == "Bconfigs.lm.quickstart optimizer.b2=0.9"
    cells = page.locator("tbody tr", has_text="optimizer.b2").locator("td")
    assert [cells.nth(n).get_attribute("class") for n in (2, 3, 4)] == ["same"] * 3
    assert cells.nth(2).inner_text().split() == ["·", "same", "as", "A"]
    assert "· the same as A" in page.locator(".matrix-legend").inner_text()
    check_accessible(page)


def test_results_of_a_single_run_are_left_out():
    lone = ResultOperand("held_out/loss", 1.5, "lower")
    documents = [compare.document(graphs.resolve("configs.lm.quickstart")) for _ in range(3)]
    sides = [
        Operand(f"x{n}", document, lambda: None, False, objectives=[lone] if n == 2 else ())
        for n, document in enumerate(documents)
    ]
    assert matrix_of(sides)["objectives"] == []


@pytest.mark.full
@pytest.mark.parametrize("width", [1280, 768, 390])
def test_nothing_is_cut_off(open_page, width):
    page = open_page(matrix_page.render(_five()), viewport={"width": width, "height": 900})
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        check_fits(page)
